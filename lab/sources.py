"""Load what a training starts from: another run, RoBERTa's weights, or prepared text."""

from pathlib import Path

import data
from data import NAMES, shards
from data.download import sha256
from data.tokenizer import is_word_level
from lab.errors import UserError, require
from lab.flags import adopt, typed
from lab.load import LoadedRun, read_run
from lab.records import read_config
from nets.ensemble import Ensemble
from nets.roberta import load_roberta


def load_init_from(flags, *kinds):
    """Load the run of --init-from, which must be of one of the kinds, and give the flags its
    architecture; without the flag, return None. Raises UserError as `take_over` and `check_split`
    do."""
    if not flags.init_from:
        return None
    source = read_run(flags.init_from, kinds, flag_name="--init-from")
    where = f"--init-from {flags.init_from}"
    take_over(flags, source, where)
    check_split(flags, source, where)
    return source


def load_init(flags, head=True):
    """Load the RoBERTa of --init as if it were a run, and give the flags its architecture.
    Raises DataError as `load_roberta` does."""
    model, tokenizer = load_roberta(flags.init, head)
    source = LoadedRun(Path(flags.init), "roberta", {"flags": {}}, model, tokenizer)
    take_over(flags, source, f"--init {flags.init}")
    return source


def load_encoder(flags):
    """Load the run of --encoder or the RoBERTa of --init and give the flags its architecture;
    without either, return None. Raises UserError for flags that contradict each other."""
    where = f"--encoder {flags.encoder}" if flags.encoder else f"--init {flags.init}"
    from_scratch = not (flags.encoder or flags.init)
    require(
        (not (flags.encoder and flags.init), f"{where} and --init {flags.init}: give one of them"),
        (not (from_scratch and flags.tune == "all"), "--tune all: needs --encoder or --init"),
        (not (from_scratch and flags.untrained), "--untrained: needs --encoder or --init"),
        (not (flags.init and flags.causal), f"--causal: {where} is an encoder; leave --causal out"),
    )
    if from_scratch:
        return None
    if flags.init:
        return load_init(flags, head=False)
    source = read_run(flags.encoder, ("mlm", "lm"), flag_name="--encoder")
    decoder, ensemble = source.model.body.causal, isinstance(source.model, Ensemble)
    require(
        (not ensemble, f"{where}: is an ensemble; give a run of one model"),
        (decoder or not flags.causal, f"--causal: {where} is an encoder; leave --causal out"),
    )
    take_over(flags, source, where)
    check_split(flags, source, where)
    flags.causal = decoder
    return source


def sha256_of(source):
    """Return the sha256 of the weights of a run to start from, "" for RoBERTa or nothing."""
    path = source and source.folder / "best.pt"
    return sha256(path) if path and path.exists() else ""


def take_over(flags, source, where):
    """Give the flags the architecture and the kind of tokenizer of a LoadedRun to start from.
    Raises UserError for flags that ask for others."""
    asked = typed(flags, "tokenizer", "vocab_size", "vocab_from")
    require((not asked, f"{asked}: {where} brings its vocabulary along; leave that out"))
    adopt(flags, source.model.body.config, where)
    if hasattr(flags, "anchor") and not flags.resume:  # resumed runs have their own value
        flags.anchor = flags.anchor or bool(source.config["flags"].get("anchor"))
    flags.tokenizer = tokenizer_kind(source.tokenizer)


def tokenizer_kind(tokenizer):
    """Return the value of --tokenizer that makes such a tokenizer."""
    return "word" if is_word_level(tokenizer) else "bpe"


def check_split(flags, source, where):
    """Raise UserError if the run to start from, or one that this was started from, has read the
    test sentences that --split removes."""
    split = getattr(flags, "split", "full")
    if split == "full":
        return
    for config in ancestry(source.config, flags.data):
        if split != config["flags"].get("split"):
            raise UserError(
                f"--split {split}: {where} was pretrained on test sentences; "
                f"pretrain it with --split {split} too, or use --split full"
            )


def check_rows(flags, source, prepared):
    """Raise UserError if a run to start from has read labelled rows (train_mlm.py --causal): the
    test sets of the same data may hold them."""
    if prepared or not source:
        return
    before = (config.get("script") for config in ancestry(source.config, flags.data))
    if "train_mlm.py" in before:
        corpus = data.load(flags.data)
        problem = "train_mlm.py trained it on the labelled rows, which the test sets may hold"
        message = f"--init-from {flags.init_from}: {problem}; start from train_lm.py's"
        require((not (corpus.rows and corpus.tests), message))


def ancestry(config, path):
    """Yield config.json of a run, of the run that it was started from, and so on: of those whose
    --data is `path`. The same data at another path is not recognised."""
    read = set()
    while config:
        if Path(path).resolve() == Path(config["flags"]["data"]).resolve():
            yield config
        folder = config["flags"].get("init_from")
        is_new = folder not in read and folder and (Path(folder) / "config.json").exists()
        read.add(folder)
        config = read_config(folder) if is_new else None


def open_prepared(flags, source):
    """Open the folder of --data that beyond.prepare wrote, and give the flags what was decided
    there; return None if --data is a text.

    source: the LoadedRun to start from, or None. Raises UserError if that has another vocabulary,
    and for flags that ask for something else.
    """
    if flags.data in NAMES or not shards.is_prepared(flags.data):
        return None
    prepared = shards.Prepared(flags.data)
    decided = {
        "tokenizer": tokenizer_kind(prepared.tokenizer),
        "vocab_size": 0,
        "vocab_from": "",
        "valid": prepared.settings["valid"],
        "split": "full",
    }
    asked = typed(flags, *(name for name in decided if getattr(flags, name, "") != decided[name]))
    problem = f"--data {flags.data} is prepared, with its own tokenizer and sets"
    remedy = "leave that out, or prepare the text again with it"
    require((not asked, f"{asked}: {problem}; {remedy}"))
    if source and source.tokenizer.to_str() != prepared.tokenizer.to_str():
        raise UserError(
            f"--data {flags.data}: was prepared with a different vocabulary from that of "
            f"{source.folder}; prepare it with --vocab-from {source.folder}"
        )
    flags.tokenizer, flags.valid = decided["tokenizer"], decided["valid"]
    return prepared
