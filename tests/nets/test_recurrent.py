"""The LSTM in the place of a decoder."""

import torch
from helpers import call, fails, succeed

from lab import load_run
from nets.build import Options, build_model
from nets.cached import CachedReader

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
SIZE = dict(body="lstm", pos="nope", vocab_size=30, n_layer=2, n_embd=16, init_std=0.4)


def make():
    torch.manual_seed(0)
    return build_model("lm", Options(**SIZE)).eval()


def test_states_are_those_of_the_formulas():
    body = make().body
    idx = torch.tensor([[3, 7, 9, 7]])
    x = body.embedding(idx[0])  # (T, C)
    for layer in (0, 1):
        w_x, w_h, b_x, b_h = (getattr(body.lstm, f"{name}_l{layer}") for name in NAMES)
        h = torch.zeros(16)
        c = torch.zeros(16)
        states = []
        for x_t in x:
            i, f, g, o = (w_x @ x_t + b_x + w_h @ h + b_h).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        x = torch.stack(states)
    torch.testing.assert_close(body(idx)[0], x)


def test_no_token_sees_a_later_one_and_the_order_matters():
    body = make().body
    idx = torch.randint(5, 30, (2, 9))
    h = body(idx)
    changed = idx.clone()
    changed[:, 5:] = 4
    torch.testing.assert_close(body(changed)[:, :5], h[:, :5])
    swapped = idx[:, [*range(6), 7, 6, 8]]
    assert not torch.allclose(body(swapped)[:, -1], h[:, -1], atol=1e-3)


def test_losses_and_reading_token_by_token_agree_with_the_whole():
    model = make()
    idx = torch.randint(5, 30, (2, 9))
    targets = idx.roll(-1, 1)
    targets[:, -1] = -100
    logs = model(idx).log_softmax(-1)
    expected = -logs[:, :-1].gather(2, targets[:, :-1, None]).flatten()
    torch.testing.assert_close(model.losses(idx, targets), expected)
    reader = CachedReader(model.body)
    parts = [reader.read(part) for part in idx.split((4, 1, 4), dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model.body(idx))


def test_a_run_trains_writes_and_has_no_attention(tmp_path):
    flags = dict(data="parity", length=4, body="lstm", n_layer=1, n_embd=16, steps=8)
    succeed(call("train_lm", out=tmp_path / "run", **flags))
    run = load_run(tmp_path / "run")
    assert "LSTM" in run.describe()
    assert run.sample("1 0 1 =", tokens=1, temperature=0)[0].startswith("1 0 1 =")
    text = fails(call("attention_maps", tmp_path / "run", text="1 0 ="), "LSTM", "no attention")
    assert "give a run" in text


def test_positions_are_refused(tmp_path):
    fails(call("train_lm", body="lstm", pos="alibi", out=tmp_path / "run"), "--pos", "leave it out")
