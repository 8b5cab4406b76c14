"""ALiBi on some heads, Hard-ALiBi, and rotary positions of the fastest pairs."""

import math

import pytest
import torch

from model import ConfigError, alibi_slopes
from nets.build import Options, build_body, choose_positions

T = 9


def make_positions(causal=True, **options):
    options = Options(n_head=4, n_embd=32, **options)
    return choose_positions(options, causal)(options, causal)


def test_few_heads_have_the_slopes_of_so_many_and_the_others_none():
    positions = make_positions(pos="alibi", alibi_heads=2)
    t = torch.arange(T)
    bias = positions.bias(t, t)[0]
    distance = (t[:, None] - t[None, :]).abs()
    for head, slope in enumerate(alibi_slopes(2)):
        torch.testing.assert_close(bias[head], -slope * distance)
    assert not bias[2:].any()


def test_hard_heads_see_the_last_tokens_alone():
    options = dict(pos="alibi", alibi_heads=3, hard_alibi=True, vocab_size=30)
    body = build_body(Options(n_head=4, n_embd=32, **options), causal=True)
    bias = body.start(torch.zeros(1, T, dtype=torch.long))[1].bias[0]  # (H, T, T)
    for head in range(4):
        for i in range(T):
            for j in range(T):
                sees = j <= i and (head == 3 or i - j < head + 1)
                assert bias[head, i, j].item() == (0.0 if sees else -math.inf)


def test_more_heads_than_there_are_is_an_error():
    for hard in (True, False):
        with pytest.raises(ConfigError, match="at most n_head=4"):
            make_positions(pos="alibi", alibi_heads=5, hard_alibi=hard)


def test_fastest_pairs_turn_as_in_a_whole_head_and_the_slow_ones_stay():
    whole = make_positions(pos="rope")
    part = make_positions(pos="rope", rope_share=0.75, rope_speeds="fastest")
    t = torch.arange(T)
    q = torch.randn(1, 4, T, 8)
    k = torch.randn(1, 4, T, 8)
    whole_q, _ = whole.turn(q, k, t, t)
    part_q, part_k = part.turn(q, k, t, t)
    fast = [0, 1, 2, 4, 5, 6]  # pairs n and n + D/2 for n = 0, 1, 2
    slow = [3, 7]
    torch.testing.assert_close(part_q[..., fast], whole_q[..., fast])
    torch.testing.assert_close(part_q[..., slow], q[..., slow])
    torch.testing.assert_close(part_k[..., slow], k[..., slow])
    with pytest.raises(ConfigError, match="not with rope_scale"):
        make_positions(pos="rope", rope_speeds="fastest", rope_scale="ntk", rope_factor=2.0)
