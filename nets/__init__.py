"""Models built from model.py: classifier, ensemble, encoder-decoder, thread reader; and RoBERTa's weights."""
