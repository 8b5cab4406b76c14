"""Text in, tensors out: corpora, tokenizers, batches and masks. `load` opens any corpus."""

from data.corpus import NAMES, load, name_of

__all__ = ["NAMES", "load", "name_of"]
