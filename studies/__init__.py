"""Many runs and their comparison: python -m studies.NAME."""

import lab  # noqa: F401  names a missing package
