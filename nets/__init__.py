"""Models built from or around model.py, and its loss kernel."""
