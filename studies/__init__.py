"""Many runs and their comparison, run as modules: python -m studies.nope."""
