"""Measure speed and memory, as modules from the repository root: python -m bench.speed."""
