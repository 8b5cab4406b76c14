"""The same work in other implementations, for bench.py: nothing here is shared with model.py.

Each is a module that is called with idx and targets (B, T), -100 where nothing is to be predicted, and returns the mean
loss. All have a size's layers, width, heads, feed-forward layer, activation (GELU: the exact one) and vocabulary, tied
word vectors, no dropout, and initial weights of 0.02 where the library lets one choose. A library's padding and special
tokens stay unused.
"""

import importlib.util

import torch
import torch.nn as nn
import torch.nn.functional as F

NEEDED = {
    "transformers": ("RoBERTa", "BERT", "ModernBERT", "GPT-2"),
    "x_transformers": ("x-transformers",),
}


def rivals(task):
    """{name: function of a size that builds the module} for a task, and a sentence for each library that is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    builders = {"usual GPT": UsualGPT} if task == "causal" else {}
    if task != "seq2seq" and "transformers" not in missing:
        models = {
            "masked": {"RoBERTa": roberta, "BERT": bert, "ModernBERT": modernbert},
            "causal": {"GPT-2": gpt2},
        }[task]
        for name, build in models.items():
            for kernel in ("eager", "sdpa"):
                builders[f"{name} {kernel}"] = lambda size, build=build, kernel=kernel: (
                    FromTransformers(build(size, kernel))
                )
    if task != "seq2seq" and "x_transformers" not in missing:
        builders["x-transformers"] = lambda size: FromXTransformers(size, task)
    return builders, [
        f"{', '.join(NEEDED[name])}: {name.replace('_', '-')} is not installed (make bench installs it)"
        for name in missing
    ]


# ---------------------------------------------------------------------------- a usual GPT


class UsualGPT(nn.Module):
    """A GPT-2 as minimal codebases write it: fused q, k and v, the fused causal kernel, dropout modules, and the logits of
    all tokens at once."""

    def __init__(self, size):
        super().__init__()
        C = size.n_embd
        self.words, self.places = nn.Embedding(size.vocab_size, C), nn.Embedding(size.block_size, C)
        self.drop = nn.Dropout(0.0)
        self.layers = nn.ModuleList(UsualBlock(size) for _ in range(size.n_layer))
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, size.vocab_size, bias=False)
        self.apply(init)
        self.head.weight = self.words.weight

    def forward(self, idx, targets):
        x = self.drop(
            self.words(idx) + self.places(torch.arange(idx.size(1), device=idx.device))
        )  # (B, T, C)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))  # (B, T, V)
        return F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-100
        )


class UsualBlock(nn.Module):
    def __init__(self, size):
        super().__init__()
        C, self.n_head = size.n_embd, size.n_head
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.act, self.down = (
            nn.Linear(C, size.n_ffn),
            activation(size),
            nn.Linear(size.n_ffn, C),
        )
        self.drop1, self.drop2 = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(C, dim=2)
        )  # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        x = x + self.drop1(self.out(y.transpose(1, 2).contiguous().view(B, T, C)))
        return x + self.drop2(self.down(self.act(self.up(self.norm2(x)))))


def activation(size):
    return nn.ReLU() if size.activation == "relu" else nn.GELU()


def init(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# ---------------------------------------------------------------------------- transformers


class FromTransformers(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, idx, targets):
        if self.model.config.model_type == "gpt2":
            return self.model(
                idx, labels=targets, shift_labels=targets
            ).loss  # they are the next tokens already
        return self.model(idx, labels=targets).loss


def encoder_options(size, kernel):
    return dict(
        vocab_size=size.vocab_size,
        hidden_size=size.n_embd,
        num_hidden_layers=size.n_layer,
        num_attention_heads=size.n_head,
        intermediate_size=size.n_ffn,
        hidden_act=size.activation,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=kernel,
    )


def roberta(size, kernel):
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(
        RobertaConfig(
            **encoder_options(size, kernel),
            max_position_embeddings=size.block_size + 2,
            type_vocab_size=1,
        )
    )


def bert(size, kernel):
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(**encoder_options(size, kernel), max_position_embeddings=size.block_size)
    )


def modernbert(size, kernel):
    """Rotary positions, gated feed-forward layers of as many weights as the others', and its own mixture of local and
    global attention."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    return ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.n_embd,
            num_hidden_layers=size.n_layer,
            num_attention_heads=size.n_head,
            intermediate_size=2 * size.n_ffn // 3,
            hidden_activation=size.activation,
            max_position_embeddings=size.block_size,
            pad_token_id=0,
            bos_token_id=3,
            cls_token_id=3,
            eos_token_id=4,
            sep_token_id=4,
            attn_implementation=kernel,
        )
    )


def gpt2(size, kernel):
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # it would remark that the loss is the default one
    return GPT2LMHeadModel(
        GPT2Config(
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
    )


# ---------------------------------------------------------------------------- x-transformers


class FromXTransformers(nn.Module):
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
        logits = self.model(idx)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
