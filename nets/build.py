"""Which classes make a model: those of model.py, with the options that were asked for.

An option is a class of nets/ that replaces a method of a class of model.py; most call the replaced
one by super(). `build_body(Options(window=8, log_scale=True), causal=True)` returns what you would
write as

    class SparseDecoder(Sparse, Decoder): pass
    class ScaledAttention(LogScale, Attention): pass
    def make_block(config, layer):
        return Block(config, ScaledAttention(config))
    SparseDecoder(config, make_block=make_block)

To add an option, write its class in a file of nets/, add a field to Options, and an `if` here. A
field of the same name in a script's Flags makes it a flag.
"""

from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn as nn

from data.batching import is_gpu
from model import (
    HEADS,
    POSITIONS,
    Attention,
    Block,
    ClapHead,
    Config,
    ConfigError,
    Decoder,
    Encoder,
    LanguageModel,
    NoPE,
    Transformer,
)
from nets import LONG
from nets.relative import AddContent, ContentBias, OneSided, PadValues  # adds to POSITIONS

HEADS["plain-clap"] = ClapHead  # with PlainHead and PlainVectors of nets/clap.py
ALIBI_FORMS = ("offset", "symmetric", "one-sided")  # of an encoder
ROPE_SCALES = ("none", "linear", "ntk", "yarn")  # see nets/rotary.py
ROPE_SPEEDS = ("all", "fastest")  # see nets/rotary.py
BODIES = ("transformer", "lstm")
NORMS = ("layer", "none")
CORE = (NoPE, Attention, Block, Transformer, LanguageModel)  # what an option may extend
MANY_WORDS = 7000  # above, the loss in chunks (nets/loss.py) is faster on a CPU too


@dataclass
class Options(Config):
    """The architecture of model.py and all options beside it. Raises ConfigError."""

    scale_words: bool = True  # sinusoidal positions: multiply token vectors by sqrt(n_embd) first
    body: str = "transformer"  # or lstm, in the place of a decoder
    residual: bool = True  # add a sublayer's output to its input
    norm: str = "layer"  # or none: without layer norms
    scale: bool = True  # divide scores by the square root of the head's width
    sinks: bool = False  # a trained number per head takes part in the softmax's sum
    restart_ids: tuple = ()  # tokens at which positions begin again at 0
    alibi_heads: int = 0  # ALiBi on the first heads alone, the others without positions; 0: all
    hard_alibi: bool = False  # these heads see a few tokens, in place of a penalty
    rope_share: float = 1.0  # share of each head's channels that rotary positions turn
    rope_speeds: str = "all"  # of these channels: all, or the fastest ones (p-RoPE)
    rope_scale: str = "none"  # how to adapt rotary positions to longer texts, one of ROPE_SCALES
    rope_factor: float = 1.0  # how many times as long as block_size these texts are
    nope_every: int = 0  # every n-th block attends without rotations and biases; 0: none
    random_positions: int = 0  # train on sorted random positions below this; 0: on 0, 1, 2, ...
    log_scale: bool = False  # scale queries by s log t, s trained per head (scalable softmax)
    window: int = 0  # attend only to tokens fewer than this many positions away; 0: all
    attn_block: int = 0  # attend only within blocks of this many positions; 0: everywhere
    global_tokens: int = 0  # beside window or attn_block, these first tokens see and are seen
    random_keys: int = 0  # beside them, also about this many random keys per block_size
    zero_mask: bool = False  # the mask token enters as the zero vector (zero-CLAP)
    omit_mask: bool = False  # the mask token is not an output word; output words have no bias
    mask_id: int = 2  # id of the mask token
    n_segment: int = 0  # vectors for pairs of sentences, 2 or 4, see nets/pairs.py; 0: none
    kernels: bool = True  # faster attention and loss for a GPU, long blocks and many words

    def __post_init__(self):
        super().__post_init__()
        self.restart_ids = tuple(self.restart_ids)  # a list in config.json
        if self.alibi not in ALIBI_FORMS:
            raise ConfigError(f"alibi must be one of {', '.join(ALIBI_FORMS)}")
        if self.rope_scale not in ROPE_SCALES:
            raise ConfigError(f"rope_scale must be one of {', '.join(ROPE_SCALES)}")
        if self.rope_speeds not in ROPE_SPEEDS:
            raise ConfigError(f"rope_speeds must be one of {', '.join(ROPE_SPEEDS)}")
        if self.body not in BODIES:
            raise ConfigError(f"body must be one of {', '.join(BODIES)}")
        if self.norm not in NORMS:
            raise ConfigError(f"norm must be one of {', '.join(NORMS)}")


def build_model(kind, options, device="cpu", **parts):
    """Return the untrained model of a run on the device. kind: as in the run's config.json. parts:
    what its "build" holds."""
    if kind == "lm":
        model = build_decoders(options, device, **parts)
    elif kind == "mlm":
        model = build_masked_lm(options, device, **parts)
    elif kind == "classifier":
        model = build_classifier(options, device, **parts)
    elif kind == "seq2seq":
        model = build_seq2seq(options, device)
    elif kind == "thread":
        model = build_thread_reader(options, device, **parts)
    else:
        raise ValueError(f"kind must be lm, mlm, classifier, seq2seq or thread, not {kind}")
    return model.to(device)


def build_decoders(options, device, members=1):
    """Return a causal language model, or an ensemble of several."""
    models = []
    for _ in range(members):
        if options.body == "lstm":
            from nets.recurrent import Recurrent

            body = Recurrent(options)
        else:
            body = build_body(options, causal=True, device=device)
        models.append(build_lm(body, device))
    if members == 1:
        return models[0]
    from nets.ensemble import Ensemble

    return Ensemble(models)


def build_masked_lm(options, device, next_sentence=False, two_languages=False):
    """Return a masked language model."""
    extensions = []
    if two_languages:
        from nets.two_languages import TwoLanguages

        extensions.append(TwoLanguages)
    body = build_body(options, causal=False, device=device, extensions=extensions)
    if next_sentence:
        from nets.pairs import NextSentence

        return build_lm(body, device, base=NextSentence)
    return build_lm(body, device)


def build_classifier(options, device, causal=False, **head):
    """Return a classifier. head: arguments of `Classifier`."""
    from nets.classifier import Classifier

    return Classifier(build_body(options, causal, device), **head)


def build_seq2seq(options, device):
    """Return an encoder-decoder with a language-model head."""
    from nets.seq2seq import EncoderDecoder

    encoder = build_body(options, causal=False, device=device)
    decoder = build_body(options, causal=True, device=device, cross=True)
    return build_lm(EncoderDecoder(encoder, decoder), device)


def build_thread_reader(options, device, n_ancestors, ancestor_positions="learned"):
    """Return a reader of comments with a language-model head."""
    from nets.seq2seq import ThreadReader

    encoder = build_body(options, causal=False, device=device)
    reader = build_body(options, causal=False, device=device, cross=True)
    return build_lm(ThreadReader(encoder, reader, n_ancestors, ancestor_positions), device)


def build_lm(body, device="cpu", base=LanguageModel):
    """Return a language model with this body, and new weights."""
    config = body.config
    head = HEADS[config.head]
    if config.head == "plain-clap":
        from nets.clap import PlainHead

        head = combine(head, PlainHead)
    if config.omit_mask:
        from nets.mask_token import OmitMask

        head = combine(head, OmitMask)
    if config.kernels and (is_gpu(device) or config.vocab_size > MANY_WORDS):
        from nets.loss import FusedLoss

        base = combine(base, FusedLoss)
    return base(body, head(config, body.embedding))


def build_body(config, causal, device="cpu", cross=False, extensions=()):
    """Return the untrained Encoder or Decoder of Options. cross: its blocks also read a memory.
    extensions: other classes that replace methods of it."""
    body = choose_body(config, causal, device)
    if cross:
        from nets.cross import ReadsMemory

        body = combine(body, ReadsMemory)
    for extension in extensions:
        body = combine(body, extension)
    if config.nope_every:  # last, since it copies what the others have added to a Where
        from nets.longer import NopeEvery

        body = combine(body, NopeEvery)
    positions = choose_positions(config, causal)
    attention = choose_attention(config, causal, device)
    cross_attention = None
    if cross:
        cross_attention = choose_cross_attention(config, device)
    if attention is Attention and not (cross or config.nope_every) and config.residual:
        model = body(config, positions)  # with the blocks of model.py
    else:
        classes = {"attention": attention, "cross_attention": cross_attention}
        model = body(config, positions, partial(make_optional_block, **classes))
    if config.norm == "none":
        from nets.ablations import remove_norms

        remove_norms(model)
    return model


def needs_kernels(config, device):
    """Return whether attention without a table of biases is faster, and possible."""
    is_faster = is_gpu(device) or config.block_size > LONG
    return config.kernels and is_faster and not config.sinks


def check_options(config, causal):
    """Raise ConfigError for Options that a decoder (causal) or an encoder cannot have."""
    with torch.device("meta"):  # without memory for weights
        choose_positions(config, causal)(config, causal)  # encodings check what they need
    if config.log_scale and not config.scale:
        raise ConfigError("log_scale: scales the queries, so it needs scale")
    if config.log_scale and not causal:
        raise ConfigError("log_scale: counts the keys before a query, so it needs a decoder")


def choose_body(config, causal, device):
    """Return the class of the Transformer."""
    body = Encoder
    if causal:
        body = Decoder
    if needs_kernels(config, device):
        from nets.kernels import ChooseKernel

        body = combine(body, ChooseKernel)
    if config.window or config.attn_block:
        from nets.sparse import Sparse

        body = combine(body, Sparse)
    if config.head == "plain-clap":
        from nets.clap import PlainVectors

        body = combine(body, PlainVectors)
    if config.zero_mask:
        from nets.mask_token import ZeroMask

        body = combine(body, ZeroMask)
    if config.n_segment:
        from nets.pairs import Segments

        body = combine(body, Segments)
    if config.random_positions:
        from nets.longer import RandomPositions

        body = combine(body, RandomPositions)
    if config.restart_ids:
        from nets.coupled import Coupled

        body = combine(body, Coupled)
    return body


def choose_positions(config, causal):
    """Return the class of the position encoding."""
    if config.pos == "alibi" and config.alibi == "one-sided" and not causal:
        return OneSided
    if config.pos == "sinusoidal" and not config.scale_words:
        from nets.clap import UnscaledSinusoidal

        return UnscaledSinusoidal
    if config.pos == "alibi" and config.alibi_heads:
        from nets.alibi import FewHeads, HardALiBi

        return HardALiBi if config.hard_alibi else FewHeads
    if config.pos == "rope" and (config.rope_share != 1 or config.rope_scale != "none"):
        from nets.rotary import ScaledRotary

        return ScaledRotary
    if config.pos == "learned" and config.random_positions:
        from nets.longer import LongLearned

        return LongLearned
    return POSITIONS[config.pos]


def choose_attention(config, causal, device):
    """Return the class of the attention of all blocks."""
    attention = Attention
    if needs_kernels(config, device):
        from nets.kernels import CausalFastAttention, FastAttention

        if causal:
            attention = combine(attention, CausalFastAttention)
        else:
            attention = combine(attention, FastAttention)
    if config.pos == "pope":
        attention = combine(attention, PadValues)
    if issubclass(POSITIONS[config.pos], ContentBias):
        attention = combine(attention, AddContent)
    if config.log_scale and causal:  # an encoder-decoder's encoder goes without
        from nets.longer import LogScale

        attention = combine(attention, LogScale)
    if config.sinks:
        from nets.sinks import Sinks

        attention = combine(attention, Sinks)
    if not config.scale:
        from nets.ablations import NoScale

        attention = combine(attention, NoScale)
    return attention


def choose_cross_attention(config, device):
    """Return the class of the attentions that read a memory."""
    from nets.cross import CrossAttention

    if needs_kernels(config, device):
        from nets.kernels import FastAttention

        return combine(CrossAttention, FastAttention)
    return CrossAttention


def make_optional_block(config, layer, attention, cross_attention):
    """Return the Block of a layer, counted from 0, in place of model.make_block. attention,
    cross_attention: the classes of its attentions, or None."""
    block = Block
    parts = [attention(config)]
    if cross_attention is not None:
        from nets.cross import CrossBlock

        block = CrossBlock
        parts.append(cross_attention(config))
    if config.nope_every and (layer + 1) % config.nope_every == 0:
        from nets.longer import NopeBlock

        block = combine(block, NopeBlock)
    if not config.residual:
        from nets.ablations import NoResidual

        block = combine(block, NoResidual)
    return block(config, *parts)


@cache  # so that equal models have equal classes
def combine(base, option):
    """Return the class base with the methods of an option in place of its own.
    combine(Decoder, Sparse) is `class Decoder(Sparse, Decoder): pass`. The option that was combined
    last is asked first."""
    return type(base.__name__, (option, base), {})


def name_replacements(model):
    """Return the names of the classes of nets/ whose methods stand in the place of those of
    model.py, but for encodings, which --pos names."""
    names = set()
    for module in model.modules():
        for option in type(module).__mro__:
            # An option is a class for `combine`, or a subclass of one of model.py
            is_bare = not issubclass(option, nn.Module)
            extends_core = issubclass(option, CORE)
            is_encoding = option in POSITIONS.values() or option is ContentBias
            # What `combine` makes is in this file, and its parts come later in the loop
            is_ours = option.__module__.startswith("nets.") and option.__module__ != __name__
            if is_ours and (is_bare or extends_core) and not is_encoding:
                names.add(option.__name__)
    return sorted(names)
