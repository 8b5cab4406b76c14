"""Models built on or around model.py, n-gram and naive-Bayes models, and RoBERTa's weights."""
