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
        for name, model, options in TRANSFORMERS[task]:
            builders[name] = lambda size, model=model, options=options: FromTransformers(
                model(size, **options)
            )
    if "x_transformers" not in missing:
        builders["x-transformers"] = lambda size: FromXTransformers(size, task)
    return builders, [name.replace("_", "-") for name in missing]


# ---------------------------------------------------------------------------- transformers


class FromTransformers(nn.Module):
    """A model of transformers, which computes the loss itself."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.logits = "masked" if getattr(model.config, "sparse_prediction", False) else "all"

    def forward(self, idx, targets):
        if self.model.config.model_type == "gpt2":  # shift_labels: targets are shifted already
            return self.model(idx, labels=targets, shift_labels=targets).loss
        return self.model(idx, labels=targets).loss


def encoder_options(size, kernel):
    return dict(
        vocab_size=size.vocab_size,
        hidden_size=size.n_embd,
        num_hidden_layers=size.n_layer,
        num_attention_heads=size.n_head,
        attn_implementation=kernel,
    )


def bert_options(size, kernel):
    return encoder_options(size, kernel) | dict(
        intermediate_size=size.n_ffn,
        hidden_act=size.activation,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def roberta(size, kernel):
    from transformers import RobertaConfig, RobertaForMaskedLM

    more = dict(max_position_embeddings=size.block_size + 2, type_vocab_size=1)
    return RobertaForMaskedLM(RobertaConfig(**bert_options(size, kernel), **more))


def bert(size, kernel):
    from transformers import BertConfig, BertForMaskedLM

    more = dict(max_position_embeddings=size.block_size)
    return BertForMaskedLM(BertConfig(**bert_options(size, kernel), **more))


def modernbert(size, kernel, sparse=False):
    """ModernBERT: rotary positions, its own mixture of local and global attention.

    Its gated feed-forward layers get as many weights as the others'. sparse: compute only the
    logits of tokens that have a target.
    """
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        **encoder_options(size, kernel),
        intermediate_size=2 * size.n_ffn // 3,
        hidden_activation=size.activation,
        max_position_embeddings=size.block_size,
        sparse_prediction=sparse,
        pad_token_id=0,
        bos_token_id=3,
        cls_token_id=3,
        eos_token_id=4,
        sep_token_id=4,
    )
    return ModernBertForMaskedLM(config)


def gpt2(size, kernel):
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # it prints a remark about the default loss
    config = GPT2Config(
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
        attn_implementation=kernel,
    )
    return GPT2LMHeadModel(config)


# By task: name in the table, builder, its options
TRANSFORMERS = {
    "masked": [
        (f"{name} {kernel}", build, {"kernel": kernel})
        for name, build in (("RoBERTa", roberta), ("BERT", bert), ("ModernBERT", modernbert))
        for kernel in ("eager", "sdpa")
    ]
    + [("ModernBERT sparse", modernbert, {"kernel": "sdpa", "sparse": True})],
    "causal": [(f"GPT-2 {kernel}", gpt2, {"kernel": kernel}) for kernel in ("eager", "sdpa")],
}


# ---------------------------------------------------------------------------- x-transformers


class FromXTransformers(nn.Module):
    """An encoder or decoder of x-transformers with fused attention."""

    logits = "all"

    def __init__(self, size, task):
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
