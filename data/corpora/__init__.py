"""The named corpora: a module here with `load()`, which returns a Corpus, is a name for --data."""
