"""A causal model as a HookedTransformer of TransformerLens: hooks, patching, head detectors."""

from dataclasses import fields

import torch

from data.files import UserError
from model import ALiBi, NoPE
from nets.build import Options

# Options that it has, or that do not matter after training; all others keep their defaults
FREE = set("pos n_layer n_head n_embd n_ffn block_size activation rope_share rope_base".split())
FREE |= set("vocab_size norm_eps tie dropout attn_dropout alibi init_std mask_id".split())


def to_hooked(run):
    """Return the HookedTransformer with the logits of a run of train_lm.py. Raises UserError for a
    model that it cannot express, and without the extra `lens`."""
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        raise UserError('hooked: needs TransformerLens; pip install -e ".[lens]"') from None
    model, body, c = run.model, run.model.body, run.model.body.config
    asked = {f.name: (getattr(c, f.name), f.default) for f in fields(Options)}
    others = [f"{n}={v}" for n, (v, usual) in asked.items() if n not in FREE and v != usual]
    positions, kind = type(body.positions), "standard"  # vectors added to those of the words
    if positions.turn is not NoPE.turn or positions.bias is not NoPE.bias:
        kind = "alibi" if positions is ALiBi else "rotary" if c.pos == "rope" else ""
    others += [] if kind else [f"pos={c.pos}"]
    others += ["an ensemble"] if hasattr(model, "members") else []
    if others:
        raise UserError(f"{run.folder}: TransformerLens cannot express {', '.join(others)}")

    H, D, T, x = c.n_head, c.n_embd // c.n_head, c.block_size, body.embedding.weight
    i = torch.arange(T, device=x.device)
    vectors = body.positions.embed(torch.zeros_like(x[:1]).expand(1, T, -1), i)[0]  # (T, C)
    words = body.positions.embed(x[:, None], i[:1])[:, 0] - vectors[0]  # (V, C)
    weights = {"embed.W_E": words, "unembed.W_U": model.head.words.weight.T}
    weights |= {"unembed.b_U": model.head.bias, "ln_final.w": body.norm.weight}
    weights |= {"ln_final.b": body.norm.bias, "pos_embed.W_pos": vectors}
    for n, block in enumerate(body.blocks):
        own, attention, forward = {}, block.attention, block.feed_forward
        for letter, w, b in zip("QKV", attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)):
            own[f"attn.W_{letter}"] = w.view(H, D, -1).mT  # (H, C, D)
            own[f"attn.b_{letter}"] = b.view(H, D)
        own["attn.W_O"] = attention.out.weight.T.reshape(H, D, -1)
        own["attn.b_O"] = attention.out.bias
        own |= {"mlp.W_in": forward.up.weight.T, "mlp.b_in": forward.up.bias}
        own |= {"mlp.W_out": forward.down.weight.T, "mlp.b_out": forward.down.bias}
        own |= {"ln1.w": block.norm1.weight, "ln1.b": block.norm1.bias}
        own |= {"ln2.w": block.norm2.weight, "ln2.b": block.norm2.bias}
        weights |= {f"blocks.{n}.{name}": tensor for name, tensor in own.items()}
    tokenizer = dict(tokenizer_object=run.tokenizer, name_or_path="", add_bos_token=True)
    tokenizer |= {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "bos", "eos")}
    shape = HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, n_ctx=T, d_head=D, n_heads=H, d_mlp=c.n_ffn,
        d_vocab=c.vocab_size, act_fn=c.activation, normalization_type="LN", eps=c.norm_eps,
        positional_embedding_type=kind, rotary_dim=2 * round(c.rope_share * D / 2),
        rotary_base=c.rope_base, rotary_adjacent_pairs=False, device=str(run.device),
    )  # fmt: skip
    hooked = HookedTransformer(shape, PreTrainedTokenizerFast(**tokenizer))
    hooked.load_state_dict(weights, strict=False)  # it has tables of its own, and may lack W_pos
    with torch.no_grad():
        ids = torch.arange(T, device=run.device)[None] % c.vocab_size
        if not torch.allclose(hooked(ids), model(ids), atol=1e-3):
            reason = "it has no edits of model.py, and its ALiBi is for 2, 4, 8, ... heads"
            raise UserError(f"{run.folder}: TransformerLens gives other logits; {reason}")
    return hooked.eval()
