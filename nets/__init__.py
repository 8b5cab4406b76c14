"""Options that replace a method of model.py, and models that are made of it."""

LONG = 256  # tokens: up to here, attention with a table of biases is as fast as without
