"""Encoder and decoder against torch's own, forward and backward, and what reads a memory."""

import copy

import pytest
import torch
from helpers import tiny_model
from torch import nn

from model import POSITIONS
from nets.encoder_decoder import EncoderDecoder


def tiny(pos="nope", **more):
    model = tiny_model(EncoderDecoder, pos=pos, block_size=16, **more)
    for p in model.parameters():  # initial biases and norms are 0 and 1 and would hide a mix-up
        p.data += 0.1 * torch.randn_like(p)
    return model


def batch():
    """Return a target (3, 7) and a source (3, 9) with masks; no row has equal lengths."""
    idx, source = torch.randint(5, 30, (3, 7)), torch.randint(5, 30, (3, 9))
    mask = torch.arange(7) < torch.tensor([[7], [4], [5]])
    return idx, mask, source, torch.arange(9) < torch.tensor([[6], [9], [3]])


# ---------------------------------------------------------------------------- torch's transformer


# The parts of torch's own layers: their names there and here
LAYER = {
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj.": "attention.out.",
    "linear1.": "feed_forward.up.",
    "linear2.": "feed_forward.down.",
    "norm1.": "norm1.",
}
CROSS = {
    "multihead_attn.in_proj_": "cross_attention.qkv.",
    "multihead_attn.out_proj.": "cross_attention.out.",
    "norm2.": "cross_norm.",
    "norm3.": "norm2.",
}
NAMES = {"encoder": LAYER | {"norm2.": "norm2."}, "decoder": LAYER | CROSS}


def torchs_transformer(body):
    """Return nn.Transformer with the weights of a body, and {its parameter's name: ours}."""
    c = body.config
    sizes = (c.n_embd, c.n_head, c.n_layer, c.n_layer, c.n_ffn, 0.0, c.activation)
    theirs = nn.Transformer(*sizes, batch_first=True, norm_first=c.norm_first)
    pairs = {
        f"{half}.layers.{layer}.{name}{kind}": f"{half}.blocks.{layer}.{ours}{kind}"
        for half, names in NAMES.items()
        for layer in range(c.n_layer)
        for name, ours in names.items()
        for kind in ("weight", "bias")
    }
    if c.norm_first:
        last = [f"{half}.norm.{kind}" for half in NAMES for kind in ("weight", "bias")]
        pairs |= {name: name for name in last}
    else:  # each block has normalised already
        theirs.encoder.norm = theirs.decoder.norm = None
    ours = body.state_dict()
    # strict: all of its weights
    theirs.load_state_dict({name: ours[our_name] for name, our_name in pairs.items()})
    return theirs, pairs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's note on its pre-norm encoder
# added before the first block, so torch's can have them too
@pytest.mark.parametrize(
    "pos, activation", [("nope", "gelu"), ("learned", "relu"), ("sinusoidal", "gelu")]
)
@pytest.mark.parametrize("norm_first", [True, False])
def test_it_is_torchs_transformer_forward_and_backward(norm_first, pos, activation):
    body = tiny(pos, norm_first=norm_first, activation=activation).body
    twin = copy.deepcopy(body)  # embeds for torch's
    theirs, pairs = torchs_transformer(body)
    idx, mask, source, source_mask = batch()
    expected = theirs(
        twin.encoder(source, need_states=True)[1][0],
        twin.decoder(idx, need_states=True)[1][0],
        tgt_mask=torch.ones(7, 7, dtype=torch.bool).triu(1),
        tgt_is_causal=True,
        src_key_padding_mask=~source_mask,
        tgt_key_padding_mask=~mask,
        memory_key_padding_mask=~source_mask,
    )
    got = body(idx, mask, source=source, source_mask=source_mask)
    torch.testing.assert_close(got[mask], expected[mask])
    # padding is in the future
    torch.testing.assert_close(
        body(idx, source=source, source_mask=source_mask)[mask], expected[mask]
    )

    direction = torch.randn(16)
    (expected[mask] @ direction).pow(2).sum().backward()
    (got[mask] @ direction).pow(2).sum().backward()
    weights = dict(theirs.named_parameters())
    their_grads = {our_name: weights[name].grad for name, our_name in pairs.items()}
    their_grads |= {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
    grads = {name: p.grad for name, p in body.named_parameters()}
    assert grads.keys() == their_grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, their_grads[name], atol=1e-3, rtol=1e-3, msg=name)


# ---------------------------------------------------------------------------- the memory


@pytest.mark.parametrize("pos", POSITIONS)
def test_cross_attention_has_no_positions(pos):
    """Reordering the memory changes nothing."""
    body, (idx, *_) = tiny(pos).body, batch()
    memory, order = torch.randn(3, 9, 16), torch.randperm(9)
    turned, plain = (body.decoder(idx, memory=m) for m in (memory[:, order], memory))
    torch.testing.assert_close(turned, plain, atol=1e-5, rtol=1e-5)
