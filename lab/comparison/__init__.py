"""Compare finished runs: configurations, tests of their differences, table and figures."""
