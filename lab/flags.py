"""Flags: one dataclass per script, put together from the groups below.

A script lists its groups and changes their defaults:

    @dataclass
    class Flags(RunFlags, ModelFlags, LoopFlags, MachineFlags):
        lr: float = 3e-3
        mask_rate: float = flag(0.3, "share of tokens to predict", above=0, below=1)

`lab.command` turns the dataclass into a command line. The docstring of a group is its title in
--help.
"""

import dataclasses
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from data import NAMES
from data.masking import UNITS
from lab.errors import UserError, require
from lab.limits import LARGEST, make_config
from model import ALIBI_VARIANTS, CHOICES, HEADS, POSITIONS, Config

ROOT = Path(__file__).parents[1]


def flag(default, help, choices=None, *, shown=None, positional=False, pair=None, **limits):
    """Return a dataclass field with what the command line needs to know about a flag.

    shown: how --help describes the default, if the value alone would be unclear. pair: two
    defaults of which the script chooses one.
    limits: above, at_least, below, at_most. A flag of type list[str] can be given several times.
    """
    about = {"help": help, "choices": choices, "shown": shown, "positional": positional}
    return dataclasses.field(default=default, metadata=about | {"pair": pair, "limits": limits})


def share(default, help):
    """Return a flag that is a share: at least 0 and below 1."""
    return flag(default, help, at_least=0, below=1)


@dataclass
class RunFlags:
    """the run"""

    data: str = flag(
        "toy",
        f"a corpus ({', '.join(NAMES)}), a .txt, a .tsv or .csv of labelled rows, or a folder: "
        "see docs/data.md",
    )
    out: str = flag(
        "",
        "run folder",
        shown="named by kind, data, position encoding and seed: out/lm-toy-alibi-0",
    )
    seed: int = flag(0, "seed of the initial weights, data order, masks and dropout")
    resume: bool = flag(
        False, "continue the run in --out; flags that are not given keep the values of the run"
    )
    overwrite: bool = flag(False, "delete the run in --out and start again")


@dataclass
class ModelFlags:
    """the model"""

    pos: str = flag("learned", "position encoding; rope: rotary, nope: none", POSITIONS)
    n_layer: int = flag(4, "number of blocks")
    n_head: int = flag(2, "attention heads per block")
    n_embd: int = flag(64, "width of the hidden states")
    n_ffn: int = flag(100, "width of the feed-forward layer; 0: four times --n-embd")
    block_size: int = flag(32, "longest sequence, in tokens", at_least=2)
    dropout: float = flag(0.0, "dropout of embeddings and sublayer outputs")
    attn_dropout: float = flag(0.0, "dropout of attention weights")
    norm_first: bool = flag(True, "layer norm before each sublayer (GPT-2), not after (RoBERTa)")
    activation: str = flag("relu", "activation of the feed-forward layer", CHOICES["activation"])
    window: int = flag(0, "attend only to tokens fewer than this many positions away; 0: all")
    alibi: str = flag("offset", "form of ALiBi in an encoder", ALIBI_VARIANTS)
    init_std: float = flag(0.05, "standard deviation of the initial weights")


@dataclass
class LoopFlags:
    """the training"""

    steps: int = flag(500, "number of updates", at_least=0)
    batch_size: int = flag(16, "sequences per update", at_least=1, at_most=LARGEST)
    lr: float = flag(1e-3, "peak learning rate", above=0)
    warmup: int = flag(0, "steps over which the learning rate rises", at_least=0)
    decay: float = flag(
        0.5,
        "the learning rate falls to zero over this last share of the steps",
        at_least=0,
        at_most=1,
    )
    weight_decay: float = flag(0.01, "weight decay of matrices", at_least=0)
    clip: float = flag(1.0, "clip the gradient norm to this; 0: no limit", at_least=0)
    eval_every: int = flag(100, "steps between evaluations", at_least=1)
    keep: str = flag("", "also keep the weights of these steps, as step-N.pt, for example 0,100")


@dataclass
class MaskFlags:
    """the masked words"""

    block_size: int = flag(32, "longest sentence, in tokens, with [BOS]", at_least=2)
    head: str = flag("linear", "output head, from hidden states to words", HEADS)
    mask_rate: float = flag(0.3, "share of tokens to predict", above=0, below=1)
    mask_unit: str = flag(
        "token", "what is masked together: tokens, whole words, or spans of about 3 tokens", UNITS
    )


@dataclass
class NoiseFlags:
    """noise and smoothing, against memorising a small text"""

    drop_words: float = share(0.0, "share of the input words replaced by [UNK]")
    swap_words: float = share(0.0, "share of the input words replaced by other words")
    rare_unknown: float = flag(
        0.0, "share of rare targets (words seen once) replaced by [UNK]", at_least=0, at_most=1
    )
    label_smoothing: float = share(0.0, "share of each target spread over all words")

    @property
    def noise(self):
        """Return the arguments of `data.noise.noise_tokens`."""
        return self.drop_words, self.swap_words, self.rare_unknown

    def check_together(self):
        replaced = self.drop_words + self.swap_words
        problem = f"--drop-words and --swap-words must be below 1 together, got {replaced:g}"
        require((replaced < 1, problem))


@dataclass
class TokenizerFlags:
    """the vocabulary"""

    tokenizer: str = flag("word", "word level, or byte-level BPE", ("word", "bpe"))
    vocab_size: int = flag(
        0, "size of the vocabulary", shown="every word of the training text, or 4000 BPE pieces"
    )


@dataclass
class ContinueFlags:
    """pretraining on one text, then training on another"""

    vocab_from: str = flag("", "corpus to take the vocabulary from, instead of --data")
    init_from: str = flag(
        "", "run folder of the same kind to start from: its weights, architecture, vocabulary"
    )


@dataclass
class MachineFlags:
    """the machine"""

    device: str = flag(
        "auto", "where to compute; auto: CUDA if present", ("auto", "cpu", "cuda", "mps")
    )
    dtype: str = flag(
        "auto", "precision; auto: bfloat16 on GPUs that support it", ("auto", "float32", "bfloat16")
    )
    threads: int = flag(
        0,
        "CPU threads",
        shown="1 for models up to 128 wide, else all cores",
        at_least=0,
        at_most=4096,
    )
    compile: bool = flag(False, "compile the blocks: takes half a minute, speeds up steps on a GPU")


@dataclass
class ProcessFlags:
    """several processes (torchrun), and a batch in several parts"""

    accumulate: int = flag(1, "parts into which a batch is split, to save memory", at_least=1)
    timeout: int = flag(600, "seconds to wait for another process", at_least=1)

    def check_together(self):
        problem = f"--accumulate {self.accumulate}: is more than --batch-size {self.batch_size}"
        require((self.accumulate <= self.batch_size, problem))


@dataclass
class CommonFlags(RunFlags, ModelFlags, TokenizerFlags, MachineFlags):
    """flags of all training scripts"""


@dataclass
class TrainFlags(CommonFlags, LoopFlags):
    """flags of all training scripts that count steps"""


# ---------------------------------------------------------------------------- using flags


def resolve_pairs(flags, second):
    """Set each flag that has two defaults and was not given. second: whether to take the second."""
    for field in dataclasses.fields(flags):
        if field.metadata.get("pair") and getattr(flags, field.name) is None:
            setattr(flags, field.name, field.metadata["pair"][second])


def was_given(flags, name):
    """Return whether a flag was on the command line, even with its default value."""
    return name in getattr(flags, "given", ())


def typed(flags, *names):
    """Return those of the flags that were on the command line, as typed, joined by "and"."""
    words = [spelled(name, getattr(flags, name)) for name in names if was_given(flags, name)]
    return " and ".join(words)


def whole_numbers(flags, name):
    """Return the numbers of a flag like --keep 0,100 in order. Raises UserError."""
    text = getattr(flags, name)
    try:
        return sorted({int(number) for number in text.split(",") if number})
    except ValueError:
        problem = "must be whole numbers joined by commas, like 32,64,128"
        raise UserError(f"{spelled(name, text)}: {problem}") from None


def known_names(flags, name, known):
    """Return the names of a flag like --only a,b, each once. Raises UserError for one not known."""
    text = getattr(flags, name)
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    problem = f"{spelled(name, text)}: must be one or more of {', '.join(known)}, joined by commas"
    require((found and set(found) <= set(known), problem))
    return found


def spelled(name, value=None):
    """Return a field name as it is typed: "--n-head", with a value "--n-head 4" or "--no-tie"."""
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name.replace('_', '-')}"
    return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")


def script_of(flags):
    """Return the arguments of python that run the script of these flags: "train_lm.py", or
    "-m beyond.train_tlm"."""
    flags_class = flags if isinstance(flags, type) else type(flags)
    path = Path(sys.modules[flags_class.__module__].__file__).resolve()
    if path.parent == ROOT or ROOT not in path.parents:
        return path.name
    return "-m " + ".".join(path.relative_to(ROOT).with_suffix("").parts)


def model_config(flags, source=None, causal=False, **more):
    """Return the Config of `source`, a LoadedRun, or without one that of the flags.

    A value that Config resolves (--n-ffn 0 is four times the width) is written back into the
    flags. Raises UserError naming the flags where Config names fields, and for --alibi where it
    would be ignored.
    """
    if source:
        return source.model.body.config
    if was_given(flags, "alibi"):
        problem = f"--alibi {flags.alibi}: a causal model has one form of ALiBi"
        require((not causal, f"{problem}; leave the flag out"))
        problem = f"--alibi {flags.alibi}: --pos {flags.pos} has no such form"
        require((flags.pos == "alibi", f"{problem}; add --pos alibi, or leave the flag out"))
    names = {field.name for field in dataclasses.fields(Config)}
    values = {name: value for name, value in vars(flags).items() if name in names} | more
    try:
        config = make_config(values)
    except ValueError as error:  # "n_head must ..." becomes "--n-head must ..."
        fields = re.compile(rf"\b({'|'.join(names)})(?= must|=)|\bn_embd\b")
        raise UserError(fields.sub(lambda found: spelled(found[0]), str(error))) from None
    adopt(flags, config)
    return config


def adopt(flags, config, source=""):
    """Give the flags the values of the model that is used.

    source: the flag and folder the model comes from, for the message. Raises UserError for a
    given flag that asks for another value.
    """
    for name, used in vars(config).items():
        if not hasattr(flags, name) or name == "vocab_size":  # the flag is an upper limit
            continue
        asked = getattr(flags, name)
        if source and was_given(flags, name) and asked != used:
            problem = f"{source} has {used}, which cannot be changed"
            raise UserError(f"{spelled(name, asked)}: {problem}; leave the flag out")
        setattr(flags, name, used)
