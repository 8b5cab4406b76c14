"""The reader of a comment and its ancestors, against reading one text at a time."""

import pytest
import torch
from helpers import NO_ENCODER

from data.batching import pad
from model import POSITIONS, sinusoids
from nets.build import Options, build_model

SIZES = dict(vocab_size=40, block_size=9, n_layer=2, n_embd=16, n_ffn=20, init_std=0.4)
CHAINS = {1: [0], 2: [1, 0], 3: [1, 0], 4: [2, 1, 0]}  # of each comment its ancestors, parent first


def make(pos="learned", ancestor_positions="learned"):
    torch.manual_seed(0)
    options = Options(pos=pos, **SIZES)
    parts = dict(n_ancestors=3, ancestor_positions=ancestor_positions)
    return build_model("thread", options, **parts).eval()


def texts():
    torch.manual_seed(1)
    return [torch.cat([torch.tensor([3]), torch.randint(5, 40, (n,))]) for n in (3, 5, 2, 6, 4)]


def read(sequences):
    """Return the inputs of a ThreadReader for the comments 1 to 4; three of the texts are read."""
    idx, mask = pad(sequences[1:])
    above, above_mask = pad(sequences[:3])
    ancestors, ancestors_mask = pad([torch.tensor(chain) for chain in CHAINS.values()])
    more = dict(texts=above, texts_mask=above_mask)
    return dict(idx=idx, mask=mask, ancestors=ancestors, ancestors_mask=ancestors_mask, **more)


@pytest.mark.parametrize("ancestor_positions", ["none", "learned", "sinusoidal"])
@pytest.mark.parametrize("pos", [pos for pos in POSITIONS if pos not in NO_ENCODER])
def test_a_batch_gives_the_states_of_its_comments_one_by_one(pos, ancestor_positions):
    body = make(pos, ancestor_positions).body
    sequences = texts()
    inputs = read(sequences)
    h = body(**inputs)
    table = torch.zeros(3, 16)  # added to the vectors of the ancestors
    if ancestor_positions == "learned":
        table = body.distances.weight
    if ancestor_positions == "sinusoidal":
        table = sinusoids(torch.arange(3), 16)
    for row, (comment, chain) in enumerate(CHAINS.items()):
        # one text at a time, without padding
        vectors = torch.stack([body.encoder(sequences[a][None])[0].mean(0) for a in chain])
        memory = (vectors + table[: len(chain)])[None]
        alone = body.decoder(sequences[comment][None], memory=memory)[0]
        torch.testing.assert_close(h[row, inputs["mask"][row]], alone, atol=2e-5, rtol=1e-4)
    # without its ancestors it differs
    assert not torch.allclose(h[3, :5], body(sequences[4][None])[0], atol=1e-2)


def test_both_halves_share_embeddings_and_every_part_learns():
    model, inputs = make(), read(texts())
    assert model.body.encoder.embedding is model.body.decoder.embedding is model.head.words
    model.loss(targets=inputs["idx"].masked_fill(~inputs["mask"], -100), **inputs).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
