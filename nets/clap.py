"""What EIFY/fairseq has beside RoBERTa and CLAP's head: a form of that head without normalised
vectors, and sinusoidal positions beside token vectors that are not scaled."""

import torch.nn as nn

from model import Sinusoidal, sinusoids


class PlainVectors:
    """Replaces the norm of a Transformer's embeddings: those of plain-clap have none."""

    def __init__(self, config, *parts):
        super().__init__(config, *parts)
        self.embedding_norm = nn.Identity()


class PlainHead:
    """Replaces ClapHead.project: word vectors keep their length (`l2norm_embedding: false`)."""

    def project(self, h):
        return self.beta * h, self.words.weight, self.bias


class UnscaledSinusoidal(Sinusoidal):
    """Sinusoids added to the token vectors as they are (`no_scale_embedding`)."""

    def embed(self, x, i):
        return x + sinusoids(i, x.size(-1)).to(x.dtype)
