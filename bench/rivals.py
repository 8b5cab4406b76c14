"""Other implementations that bench.speed times. Nothing here is shared with model.py.

Each is a module called with idx and targets (B, T), -100 where there is no target, that returns the
mean loss. All have the layers, width, heads, feed-forward layer, activation (exact GELU) and
vocabulary of a Size, tied word vectors, no dropout, and an initial std of 0.02 where the library
lets one choose. Padding and special tokens of the libraries stay unused.

In masked LM the rivals compute the logits of every token, but poslab only those of the masked 15%
(and its last feed-forward layer only there). "ModernBERT sparse" also computes only those logits.
`logits` of a module says which: all | masked.
"""

import importlib.util
from functools import partial

import torch.nn as nn

from bench.usual_gpt import UsualGPT, activation, mean_loss

LIBRARIES = ("transformers", "x_transformers")


def rivals(task):
    """Return {name: function of a Size that builds the module}, and the missing libraries."""
    if task == "seq2seq":
        return {}, []  # none has an encoder-decoder
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    builders = {"usual GPT": UsualGPT} if task == "causal" else {}
    if "transformers" not in missing:
        for name, options, kernel in TRANSFORMERS[task]:
            builders[name] = partial(FromTransformers, options, kernel)
    if "x_transformers" not in missing:
        builders["x-transformers"] = partial(FromXTransformers, task)
    return builders, [name.replace("_", "-") for name in missing]


# ---------------------------------------------------------------------------- transformers


class FromTransformers(nn.Module):
    """A model of transformers, which computes the loss itself."""

    def __init__(self, options, kernel, size):
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
        from transformers.utils import logging

        super().__init__()
        logging.set_verbosity_error()  # GPT-2 prints a remark about the default loss
        config = AutoConfig.for_model(**options(size), attn_implementation=kernel)
        self.causal = config.model_type == "gpt2"
        auto_model = AutoModelForCausalLM if self.causal else AutoModelForMaskedLM
        self.model = auto_model.from_config(config)
        self.logits = "masked" if getattr(config, "sparse_prediction", False) else "all"

    def forward(self, idx, targets):
        # As `labels` alone, GPT-2 would shift targets that are shifted already
        more = {"shift_labels": targets} if self.causal else {}
        return self.model(idx, labels=targets, **more).loss


def encoder(size):
    return dict(
        vocab_size=size.vocab_size,
        hidden_size=size.n_embd,
        num_hidden_layers=size.n_layer,
        num_attention_heads=size.n_head,
    )


def bert(size):
    return encoder(size) | dict(
        model_type="bert",
        intermediate_size=size.n_ffn,
        hidden_act=size.activation,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=size.block_size,
    )


def roberta(size):
    positions = dict(max_position_embeddings=size.block_size + 2, type_vocab_size=1)
    return bert(size) | positions | dict(model_type="roberta")


def modernbert(size):
    """ModernBERT: rotary positions, its own mixture of local and global attention."""
    return encoder(size) | dict(
        model_type="modernbert",
        intermediate_size=2 * size.n_ffn // 3,  # gated: as many weights as in the others
        hidden_activation=size.activation,
        max_position_embeddings=size.block_size,
        pad_token_id=0,
        bos_token_id=3,
        cls_token_id=3,
        eos_token_id=4,
        sep_token_id=4,
    )


def sparse_modernbert(size):
    """ModernBERT that computes only the logits of tokens that have a target."""
    return modernbert(size) | dict(sparse_prediction=True)


def gpt2(size):
    return dict(
        model_type="gpt2",
        vocab_size=size.vocab_size,
        n_positions=size.block_size,
        n_embd=size.n_embd,
        n_layer=size.n_layer,
        n_head=size.n_head,
        n_inner=size.n_ffn,
        activation_function=size.activation,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=3,
        eos_token_id=4,
    )


# By task: name in the table, options, kernel of attention
TRANSFORMERS = {
    "masked": [
        (f"{name} {kernel}", options, kernel)
        for name, options in (("RoBERTa", roberta), ("BERT", bert), ("ModernBERT", modernbert))
        for kernel in ("eager", "sdpa")
    ]
    + [("ModernBERT sparse", sparse_modernbert, "sdpa")],
    "causal": [(f"GPT-2 {kernel}", gpt2, kernel) for kernel in ("eager", "sdpa")],
}


# ---------------------------------------------------------------------------- x-transformers


class FromXTransformers(nn.Module):
    """An encoder or decoder of x-transformers with fused attention."""

    logits = "all"

    def __init__(self, task, size):
        from x_transformers import Decoder, Encoder, TransformerWrapper

        super().__init__()
        layers = (Encoder if task == "masked" else Decoder)(
            dim=size.n_embd,
            depth=size.n_layer,
            heads=size.n_head,
            attn_dim_head=size.n_embd // size.n_head,
            attn_flash=True,
            ff_mult=size.n_ffn / size.n_embd,
            ff_custom_activation=activation(size),
        )
        self.model = TransformerWrapper(
            num_tokens=size.vocab_size,
            max_seq_len=size.block_size,
            tie_embedding=True,
            attn_layers=layers,
        )

    def forward(self, idx, targets):
        return mean_loss(self.model(idx), targets)
