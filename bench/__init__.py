"""Speed and memory, run as modules: python -m bench.speed."""
