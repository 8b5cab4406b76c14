"""Objectives beyond the assignment, run as modules: python -m beyond.train_seq2seq."""
