"""Two sentences in one encoder: language vectors, and positions that restart."""

import pytest
import torch
from helpers import NO_ENCODER

from data.pairs import join
from data.tokenizer import BOS
from model import POSITIONS
from nets.build import Options, build_model
from nets.classifier import read_states

ENCODERS = [pos for pos in POSITIONS if pos not in NO_ENCODER]
FORMS = [(pos, "offset") for pos in ENCODERS]
FORMS += [("alibi", "symmetric"), ("alibi", "one-sided")]


def bilingual(pos="learned", **options):
    torch.manual_seed(0)
    size = dict(vocab_size=40, block_size=9, n_layer=2, n_embd=16, n_ffn=20, init_std=0.4)
    options = Options(pos=pos, **size | options)
    return build_model("mlm", options, two_languages=True).eval().body


def sequences(*lengths):
    return [torch.cat([torch.tensor([BOS]), torch.randint(5, 40, (n - 1,))]) for n in lengths]


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("pos, alibi", FORMS)
def test_the_order_of_the_two_sentences_does_not_matter(pos, window, alibi):
    # Vectors, angles, distances and the window must all follow the restarted positions.
    model = bilingual(pos, window=window, alibi=alibi)
    a, b = sequences(4, 5)
    idx, mask, where = join([a], [b])
    h = model(idx, mask, **where)
    turned, _, _ = join([b], [a])
    moved = {name: torch.cat([value[:, 4:], value[:, :4]], dim=1) for name, value in where.items()}
    expected = torch.cat([h[:, 4:], h[:, :4]], dim=1)
    torch.testing.assert_close(model(turned, mask, **moved), expected, atol=1e-5, rtol=1e-4)
    if pos != "nope" or window:  # restarted positions differ from the plain ones
        assert not torch.allclose(model(idx, mask, languages=where["languages"]), h, atol=1e-3)


def test_the_embedding_is_the_sum_of_its_parts():
    model = bilingual("learned")
    idx, _, where = join(sequences(3), sequences(4))
    words = model.embedding.weight[idx[0]]
    places = model.positions.vectors.weight[[0, 1, 2, 0, 1, 2, 3]]
    expected = words + places + model.languages.weight[[0, 0, 0, 1, 1, 1, 1]]
    states = read_states(model, idx, **where)
    torch.testing.assert_close(states[0][0], expected)


@pytest.mark.parametrize("pos", ENCODERS)
def test_the_padding_of_a_pair_is_invisible(pos):
    # A pair may be longer than the learned table of 9, since each half starts at 0.
    model, firsts, seconds = bilingual(pos), sequences(5, 9, 2), sequences(3, 9, 6)
    idx, mask, where = join(firsts, seconds)
    h = model(idx, mask, **where)
    for row, pair in enumerate(zip(firsts, seconds)):
        idx, _, where = join(*([side] for side in pair))
        torch.testing.assert_close(h[row, mask[row]], model(idx, **where)[0], atol=1e-5, rtol=1e-4)
