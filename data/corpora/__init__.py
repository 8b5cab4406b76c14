"""One file for each corpus."""
