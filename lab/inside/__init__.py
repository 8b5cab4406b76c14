"""Look inside a trained run: its attention, its answers, its mistakes."""
