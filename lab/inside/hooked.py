"""A causal model as a HookedTransformer of TransformerLens: hooks, patching, head detectors."""

from dataclasses import fields

import torch

from data.files import UserError
from model import ALiBi, NoPE
from nets.build import Options

# Options that it has, or that do not matter after training; all others keep their defaults
FREE = (
    "pos",
    "n_layer",
    "n_head",
    "n_embd",
    "n_ffn",
    "block_size",
    "vocab_size",
    "activation",
    "norm_eps",
    "tie",
    "alibi",
    "rope_share",
    "rope_base",
    "dropout",
    "attn_dropout",
    "init_std",
    "mask_id",
)


def to_hooked(run):
    """Return the HookedTransformer with the logits of a run of train_lm.py. Raises UserError for a
    model that it cannot express, and without the extra `lens`."""
    try:  # here, as few have the extra
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        raise UserError('hooked: needs TransformerLens; pip install -e ".[lens]"') from None
    model = run.model
    config = model.body.config
    obstacles = find_obstacles(model)
    if obstacles:
        raise UserError(f"{run.folder}: TransformerLens cannot express {', '.join(obstacles)}")

    D = config.n_embd // config.n_head
    shape = HookedTransformerConfig(
        n_layers=config.n_layer,
        d_model=config.n_embd,
        n_ctx=config.block_size,
        d_head=D,
        n_heads=config.n_head,
        d_mlp=config.n_ffn,
        d_vocab=config.vocab_size,
        act_fn=config.activation,
        normalization_type="LN",
        eps=config.norm_eps,
        positional_embedding_type=name_encoding(model.body),
        rotary_dim=2 * round(config.rope_share * D / 2),
        rotary_base=config.rope_base,
        rotary_adjacent_pairs=False,
        device=str(run.device),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=run.tokenizer,
        name_or_path="",
        add_bos_token=True,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="[BOS]",
        eos_token="[EOS]",
    )
    hooked = HookedTransformer(shape, tokenizer)
    # It has tables of its own, and lacks W_pos with some encodings
    hooked.load_state_dict(name_weights(model), strict=False)
    check_logits(run, hooked)
    return hooked.eval()


def find_obstacles(model):
    """Return what TransformerLens cannot express of a causal model, as words for a message."""
    config = model.body.config
    obstacles = []
    for option in fields(Options):
        value = getattr(config, option.name)
        if option.name not in FREE and value != option.default:
            obstacles.append(f"{option.name}={value}")
    if name_encoding(model.body) is None:
        obstacles.append(f"pos={config.pos}")
    if hasattr(model, "members"):
        obstacles.append("an ensemble")
    return obstacles


def name_encoding(body):
    """Return the TransformerLens name of a body's position encoding, None if it has none."""
    positions = type(body.positions)
    if positions.turn is NoPE.turn and positions.bias is NoPE.bias:
        return "standard"  # vectors that are added to those of the words, or nothing
    if positions is ALiBi:
        return "alibi"
    if body.config.pos == "rope":
        return "rotary"
    return None


def name_weights(model):
    """Return {TransformerLens name: weight} of a causal model."""
    body = model.body
    config = body.config
    # What an encoding adds does not depend on the word, but it may scale the word's vector
    x = body.embedding.weight  # (V, C)
    i = torch.arange(config.block_size, device=x.device)
    zeros = x.new_zeros(1, config.block_size, config.n_embd)
    vectors = body.positions.embed(zeros, i)[0]  # (T, C)
    words = body.positions.embed(x[:, None], i[:1])[:, 0] - vectors[0]  # (V, C)
    weights = {
        "embed.W_E": words,
        "pos_embed.W_pos": vectors,
        "ln_final.w": body.norm.weight,
        "ln_final.b": body.norm.bias,
        "unembed.W_U": model.head.words.weight.T,
        "unembed.b_U": model.head.bias,
    }
    for layer, block in enumerate(body.blocks):
        for name, weight in name_block_weights(block, config).items():
            weights[f"blocks.{layer}.{name}"] = weight
    return weights


def name_block_weights(block, config):
    """Return {TransformerLens name within a block: weight} of a Block."""
    H = config.n_head
    D = config.n_embd // H
    qkv = block.attention.qkv
    out = block.attention.out
    q, k, v = (w.view(H, D, -1).mT for w in qkv.weight.chunk(3))  # (H, C, D)
    q_bias, k_bias, v_bias = (b.view(H, D) for b in qkv.bias.chunk(3))
    return {
        "ln1.w": block.norm1.weight,
        "ln1.b": block.norm1.bias,
        "attn.W_Q": q,
        "attn.W_K": k,
        "attn.W_V": v,
        "attn.b_Q": q_bias,
        "attn.b_K": k_bias,
        "attn.b_V": v_bias,
        "attn.W_O": out.weight.T.reshape(H, D, -1),
        "attn.b_O": out.bias,
        "ln2.w": block.norm2.weight,
        "ln2.b": block.norm2.bias,
        "mlp.W_in": block.feed_forward.up.weight.T,
        "mlp.b_in": block.feed_forward.up.bias,
        "mlp.W_out": block.feed_forward.down.weight.T,
        "mlp.b_out": block.feed_forward.down.bias,
    }


@torch.no_grad()
def check_logits(run, hooked):
    """Raise UserError unless both models give the same logits."""
    config = run.model.body.config
    ids = torch.arange(config.block_size, device=run.device)[None] % config.vocab_size  # (1, T)
    if not torch.allclose(hooked(ids), run.model(ids), atol=1e-3):
        reason = "it has no edits of model.py, and its ALiBi is for 2, 4, 8, ... heads"
        raise UserError(f"{run.folder}: TransformerLens gives other logits; {reason}")
