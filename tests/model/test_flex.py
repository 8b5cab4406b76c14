"""flex.py computes ALiBi's penalty where the score is: the same attention as with the table. On the CPU it runs uncompiled."""

import pytest
import torch

from model import Config, Decoder, Encoder, alibi_bias, alibi_slopes, attend
from nets import long_alibi

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.parametrize("variant", ["causal", "offset", "symmetric", "one-sided"])
@pytest.mark.parametrize("n_head", [6])
def test_attention_is_that_with_the_table(variant, n_head):
    q, k, v = torch.randn(3, 2, n_head, 40, 8)
    slopes = alibi_slopes(n_head // 2 if variant == "one-sided" else n_head)
    torch.testing.assert_close(
        long_alibi.alibi_attention(slopes, 40, variant)(q, k, v),
        attend(q, k, v, alibi_bias(n_head, 40, variant))[0],
    )


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("more", [{"window": 7}, {"alibi": "one-sided"}, {"alibi": "offset"}])
@torch.no_grad()  # on the CPU, PyTorch has no backward pass for it
def test_a_long_sequence_gives_the_same_states(body, padded, more, monkeypatch):
    model, idx = (
        body(
            Config(vocab_size=30, n_layer=2, n_head=2, n_embd=16, pos="alibi", init_std=0.3, **more)
        ),
        torch.randint(5, 30, (2, 260)),
    )
    mask = torch.arange(260) < torch.tensor([[260], [150]]) if padded else None
    with_table = model(idx, mask)
    monkeypatch.setattr(body, "flex_devices", ("cpu",))
    monkeypatch.setattr(body, "attention_bias", None)  # no table can be made
    without = model(idx, mask)
    if padded:
        with_table, without = with_table[mask], without[mask]
    torch.testing.assert_close(without, with_table, rtol=1e-4, atol=1e-5)
