"""Models on or around model.py: classifier, ensemble, encoder-decoder, thread reader, RoBERTa.

Two models that only count are here as well: n-grams and naive Bayes.
"""
