"""Text in, tensors out: corpora, tokenizers, batches and masks. `load` opens any corpus."""

from data.corpus import name_of
from data.readers import NAMES, find_task, load

__all__ = ["NAMES", "find_task", "load", "name_of"]
