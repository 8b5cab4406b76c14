"""Measure speed and memory, as modules from the repository root: python -m bench.speed."""

import os

# Torch reads it when it is imported. Without it, the profiler of bench.length writes to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
