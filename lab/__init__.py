"""The plumbing of a run: command line, run folder, checkpoints, several processes, figures."""
