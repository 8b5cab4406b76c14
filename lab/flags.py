"""The command line of every script: its flags, one dataclass a script, and what a mistake costs: one line and exit code 2."""

import dataclasses
import re
from dataclasses import dataclass

import model as models
from data import NAMES
from lab.errors import UserError
from lab.limits import LARGEST, make_config

# ---------------------------------------------------------------------------- flags


def flag(default, help, choices=None, positional=False):
    """A dataclass field with what the command line needs to know about it. A list[str] field may be given several times."""
    return dataclasses.field(
        default=default, metadata={"help": help, "choices": choices, "positional": positional}
    )


@dataclass
class RunFlags:
    """the run: its text, folder and machine"""

    data: str = flag(
        "toy",
        f"corpus: {', '.join(NAMES)}, a folder in the assignment's or in WikiText's form or of prepare.py, "
        "a .txt, or a .tsv of label<TAB>text",
    )
    out: str = flag(
        "", "run folder (default: out/KIND-DATA-POS-SEED, and the split if it is not full)"
    )
    seed: int = flag(0, "seed of the initial weights, the data order, the masks and the dropout")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))
    dtype: str = flag(
        "auto",
        "bfloat16 autocast or plain float32; auto: bfloat16 on CUDA",
        ("auto", "float32", "bfloat16"),
    )
    threads: int = flag(
        0,
        "CPU threads; 0: one for models up to 128 wide, which gain little from more and leave them to "
        "other runs, else all cores",
    )
    compile: bool = flag(False, "compile the blocks, half a minute; worth it on a GPU")
    resume: bool = flag(
        False, "continue the run; with --out RUN, what is not given is as the run was started"
    )
    overwrite: bool = flag(False, "delete the run in --out and start anew")


@dataclass
class ModelFlags:
    """the model: the assignment's base setting, unless you say otherwise"""

    pos: str = flag("learned", "how the model knows where a token is", models.POSITIONS)
    alibi: str = flag(
        "offset",
        "form of ALiBi in an encoder; a decoder has the causal form",
        models.ALIBI_VARIANTS,
    )
    window: int = flag(0, "attend only to tokens less than this far away; 0: to all")
    n_layer: int = flag(4, "number of blocks")
    n_head: int = flag(2, "attention heads a block")
    n_embd: int = flag(64, "width")
    n_ffn: int = flag(100, "width of the feed-forward layer; 0: four times the width")
    block_size: int = flag(32, "longest sequence, in tokens")
    norm_first: bool = flag(
        True, "layer norm before each sublayer (GPT-2); --no-norm-first: after it (RoBERTa)"
    )
    activation: str = flag("relu", "of the feed-forward layer", ("relu", "gelu"))
    dropout: float = flag(0.0, "of embeddings and sublayer outputs")
    attn_dropout: float = flag(0.0, "of attention weights")
    init_std: float = flag(0.05, "standard deviation of the initial weights")


@dataclass
class TokenizerFlags:
    """the vocabulary"""

    tokenizer: str = flag("word", "word level, or byte-level BPE", ("word", "bpe"))
    vocab_size: int = flag(
        0, "size of the vocabulary; 0: every word of the training text, or 4000 BPE pieces"
    )


@dataclass
class SpreadFlags:
    """several processes (torchrun), and a batch in several parts"""

    accumulate: int = flag(
        1,
        "parts that a process computes its share of a batch in, one after the other: "
        "less memory, the same result",
    )
    timeout: int = flag(
        60,
        "seconds to wait for another process before it counts as gone; "
        "more where writing a checkpoint takes longer",
    )


@dataclass
class ContinueFlags:
    """pretraining on one text, then going on with another"""

    vocab_from: str = flag(
        "",
        "corpus that gives the vocabulary instead of --data: the one to continue on with --init-from",
    )
    init_from: str = flag(
        "",
        "run folder of the same script to continue from: its weights, architecture and vocabulary",
    )


def step_checks(flags):
    """What `require` is to check of the flags of a training that counts steps."""
    return (
        (flags.steps >= 0, f"--steps must not be negative, got {flags.steps}"),
        (
            0 < flags.batch_size <= LARGEST,
            f"--batch-size must be at least 1 and at most {LARGEST:,}, got {flags.batch_size}",
        ),
        (
            0 < getattr(flags, "accumulate", 1) <= max(1, flags.batch_size),
            f"--accumulate must be at least 1 and at most --batch-size {flags.batch_size}, "
            f"got {getattr(flags, 'accumulate', 1)}",
        ),
        (flags.eval_every > 0, f"--eval-every must be at least 1, got {flags.eval_every}"),
        (flags.lr > 0, f"--lr must be above 0, got {flags.lr}"),
        (flags.weight_decay >= 0, f"--weight-decay must not be negative, got {flags.weight_decay}"),
        (flags.warmup >= 0, f"--warmup must not be negative, got {flags.warmup}"),
        (flags.clip >= 0, f"--clip must not be negative, got {flags.clip}"),
        (0 <= flags.decay <= 1, f"--decay must be from 0 to 1, got {flags.decay}"),
    )


def model_config(flags, **more):
    """The model's Config from the flags of the same names; its complaints become complaints about flags.

    What the Config makes of a flag (`--n-ffn 0` is four times the width) is written back, so that config.json holds it.
    """
    names = {field.name for field in dataclasses.fields(models.Config)}
    values = {name: value for name, value in vars(flags).items() if name in names} | more
    try:
        config = make_config(values)
        adopt(flags, config)
        return config
    except ValueError as error:
        fields = re.compile(rf"\b({'|'.join(names)})(?= must|=)|\b(n_head|n_embd|block_size)\b")
        raise UserError(
            fields.sub(lambda found: "--" + found[0].replace("_", "-"), str(error))
        ) from None


def adopt(flags, config, source=""):
    """Give the flags the values of the model that is really used.

    With a source, the flag and run folder the model comes from: UserError for a flag that asks for something else.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}
    for field in dataclasses.fields(config):
        if hasattr(flags, field.name) and field.name != "vocab_size":  # as a flag, that is a limit
            given, used = getattr(flags, field.name), getattr(config, field.name)
            if source and given not in (defaults[field.name], used):
                raise UserError(
                    f"--{field.name.replace('_', '-')} {given}: {source} has {used}, which cannot be changed; "
                    "leave the flag out"
                )
            setattr(flags, field.name, used)
