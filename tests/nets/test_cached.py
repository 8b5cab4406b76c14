"""Reading token by token: the same states and the same words as reading the whole text anew."""

from itertools import product

import pytest
import torch
from helpers import NO_ENCODER

from model import POSITIONS
from nets.build import Options, build_model
from nets.cached import CachedReader
from nets.seq2seq import generate

SIZES = dict(vocab_size=40, block_size=12, n_layer=2, n_head=4, n_embd=32, init_std=0.4)

OPTIONS = [
    {},
    dict(window=3),
    dict(attn_block=5, log_scale=True, nope_every=2),
    dict(window=2, global_tokens=1, random_keys=3),
]
CASES = list(product(POSITIONS, OPTIONS, (True, False)))
CASES.append(("rope", dict(rope_share=0.5), True))
CASES.append(("learned", dict(restart_ids=(7, 9)), True))
CASES.append(("alibi", dict(restart_ids=(7,), sinks=True, scale=False), True))
CASES.append(("rope", dict(rope_scale="yarn", rope_factor=2.0), True))


def make(kind, **options):
    torch.manual_seed(0)
    return build_model(kind, Options(**SIZES | options)).eval()


@pytest.mark.parametrize("pos, options, norm_first", CASES)
def test_states_are_those_of_the_whole_text(pos, options, norm_first):
    body = make("lm", pos=pos, norm_first=norm_first, **options).body
    idx = torch.randint(5, 40, (3, 12))
    expected = body(idx)
    reader = CachedReader(body)
    parts = []
    for part in idx.split((4, 1, 1, 5, 1), dim=1):
        parts.append(reader.read(part))
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(body(idx), expected)  # nothing of the reader stays


@pytest.mark.parametrize("pos", [pos for pos in POSITIONS if pos not in NO_ENCODER])
def test_translations_are_those_written_without_a_cache(pos):
    model = make("seq2seq", pos=pos)
    source = torch.randint(5, 40, (3, 7))
    mask = torch.arange(7) < torch.tensor([[7], [4], [5]])
    written = generate(model, source, mask, 10)
    idx = torch.full((3, 1), 3)
    for _ in range(written.size(1)):
        logits = model(idx, source=source, source_mask=mask)[:, -1].clone()
        logits[:, :4] = -torch.inf
        idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], dim=1)
    assert written.tolist() == idx[:, 1:].tolist()
