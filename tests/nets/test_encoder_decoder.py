"""Encoder and decoder against torch's own, forward and backward; generation."""

import copy
from itertools import product

import pytest
import torch
from torch import nn

from data.tokenizer import EOS
from nets.build import Options, build_model
from nets.seq2seq import generate


def tiny(pos="nope", **options):
    torch.manual_seed(0)
    size = dict(vocab_size=30, block_size=16, n_layer=2, n_embd=16, n_ffn=20, init_std=0.3)
    model = build_model("seq2seq", Options(**size | dict(pos=pos) | options)).eval()
    for p in model.parameters():  # initial biases and norms are 0 and 1 and would hide a mix-up
        p.data += 0.1 * torch.randn_like(p)
    return model


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
    pairs = {}
    for half, names in NAMES.items():
        for (their_name, our_name), layer in product(names.items(), range(c.n_layer)):
            for kind in ("weight", "bias"):
                theirs_in_full = f"{half}.layers.{layer}.{their_name}{kind}"
                pairs[theirs_in_full] = f"{half}.blocks.{layer}.{our_name}{kind}"
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
    idx, source = torch.randint(5, 30, (3, 7)), torch.randint(5, 30, (3, 9))
    mask = torch.arange(7) < torch.tensor([[7], [4], [5]])
    source_mask = torch.arange(9) < torch.tensor([[6], [9], [3]])
    expected = theirs(
        twin.encoder.start(source)[0],
        twin.decoder.start(idx)[0],
        tgt_mask=torch.ones(7, 7, dtype=torch.bool).triu(1),
        tgt_is_causal=True,
        src_key_padding_mask=~source_mask,
        tgt_key_padding_mask=~mask,
        memory_key_padding_mask=~source_mask,
    )
    got = body(idx, mask, source=source, source_mask=source_mask)
    torch.testing.assert_close(got[mask], expected[mask])
    # padding is in the future
    alone = body(idx, source=source, source_mask=source_mask)
    torch.testing.assert_close(alone[mask], expected[mask])

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


def test_generation_ends_when_every_row_has_ended():
    model = tiny("rope", n_ffn=0, init_std=0.8)
    model.head.bias.data[EOS] = 1e4
    assert generate(model, torch.randint(5, 30, (3, 4)), None, 10).tolist() == [[EOS]] * 3
    words = iter(torch.tensor([[EOS, 9], [9, EOS], [9, 9]]))  # of two rows, at each step
    written = generate(model, torch.randint(5, 30, (2, 4)), None, 10, lambda _: next(words))
    assert written.tolist() == [[EOS, 9], [9, EOS]]
    # special tokens below [EOS] are never written, however likely
    model.head.bias.data[: EOS + 1] = torch.tensor([1e4, 1e4, 1e4, 1e4, -1e4])
    assert (generate(model, torch.randint(5, 30, (3, 4)), None, 7) > EOS).all()
