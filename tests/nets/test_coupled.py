"""Positions that restart at tokens: what they are, that the model reads them, and when drawn."""

import torch
from helpers import TINY, call, fails, succeed

from lab import load_run
from model import Decoder
from nets.build import Options, build_body
from nets.coupled import count_from

OPTIONS = dict(vocab_size=30, block_size=24, n_layer=2, n_head=2, n_embd=16, init_std=0.4)
IDX = torch.tensor([[3, 11, 12, 13, 9, 11, 12, 13], [3, 11, 9, 11, 9, 12, 13, 14]])  # 9 is the =


def make(**options):
    torch.manual_seed(0)
    return build_body(Options(**OPTIONS | options), causal=True).eval()


def test_positions_count_from_the_last_restart():
    expected = [[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 0, 1, 0, 1, 2, 3]]
    assert count_from(IDX, (9,)).tolist() == expected
    assert count_from(IDX, (9, 12)).tolist() == [[0, 1, 0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0, 1, 2]]


def test_a_model_reads_them_and_sees_no_later_token():
    for pos in ("learned", "rope", "alibi"):
        body = make(pos=pos, restart_ids=(9,))
        plain = make(pos=pos)
        plain.load_state_dict(body.state_dict())
        h = body(IDX)
        torch.testing.assert_close(h, plain(IDX, at=count_from(IDX, (9,))))
        assert not torch.allclose(h, plain(IDX))
        changed = IDX.clone()
        changed[:, 5:] = 20
        torch.testing.assert_close(body(changed)[:, :5], h[:, :5])


def test_only_learned_positions_begin_at_random_numbers_and_only_in_training():
    at = count_from(IDX, (9,))
    body = make(pos="learned", restart_ids=(9,))
    assert torch.equal(body.number(IDX, None), at)
    body.train()
    starts = set()
    for _ in range(400):
        shift = body.number(IDX, None) - at  # (B, T)
        assert (shift == shift[:, :1]).all()
        starts.update(shift[:, 0].tolist())
    assert starts == set(range(24 - 3))  # the largest position is 3, the table has 24
    rotary = make(pos="rope", restart_ids=(9,)).train()
    assert torch.equal(rotary.number(IDX, None), at)


def test_without_restarts_the_method_is_that_of_the_core():
    assert type(make()) is Decoder


def test_a_coupled_run_says_so_and_writes_its_own_answer(tmp_path):
    flags = dict(data="copy", length=4, pos="rope", steps=4, n_embd=16, out=tmp_path / "run")
    outcome = succeed(call("train_lm", "--couple", **flags))
    assert "with Coupled (nets/)" in outcome.out
    run = load_run(tmp_path / "run")
    assert "coupled" in run.describe()
    sign = run.tokenizer.token_to_id("=")
    assert run.model.body.config.restart_ids == (sign,)
    assert len(run.sample("a b =", tokens=2, temperature=0)[0].split()) == 5


def test_couple_is_for_tasks_that_say_what_belongs_together(tmp_path):
    flags = dict(out=tmp_path / "run")
    fails(call("train_lm", "--couple", data="sort", **flags), "--couple", "copy or add")
    fails(call("train_lm", "--couple", *TINY, **flags), "--couple", "copy or add")
