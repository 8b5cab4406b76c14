"""What a training starts from: another run, RoBERTa, or prepared text."""

import dataclasses
from pathlib import Path

from data import NAMES, shards
from data.tokenizer import is_word_level
from lab.errors import UserError, require
from lab.flags import adopt
from lab.load import LoadedRun, load_run
from nets.roberta import load_roberta


def roberta_of(flags, head=True):
    """The model and tokenizer of --init as if it were a run; the flags then have its architecture.
    DataError as of roberta.load_roberta."""
    model, tokenizer = load_roberta(flags.init, head)
    adopt(flags, model.body.config, f"--init {flags.init}")
    return LoadedRun(Path(flags.init), "roberta", {"flags": {}}, model, tokenizer)


def source_of(flags, kind):
    """The run of --init-from, whose architecture the flags then have; None without the flag."""
    if not flags.init_from:
        return None
    require(
        (
            not getattr(flags, "vocab_from", ""),
            f"--init-from {flags.init_from} brings its vocabulary along; leave --vocab-from out",
        )
    )
    source = load_run(flags.init_from, (kind,), flag_name="--init-from")
    adopt(flags, source.model.body.config, f"--init-from {flags.init_from}")
    return source


def prepared_of(flags, source):
    """The prepared folder of --data, open; None where --data is a text. The flags then say what prepare.py was told.

    source: the LoadedRun to continue from, or None. UserError when it has another vocabulary, and for flags that ask for
    what prepare.py has decided.
    """
    if flags.data in NAMES or not shards.is_prepared(flags.data):
        return None
    prepared = shards.Prepared(flags.data)
    decided = {
        "tokenizer": "word" if is_word_level(prepared.tokenizer) else "bpe",
        "vocab_size": 0,
        "vocab_from": "",
        "valid": prepared.settings["valid"],
        "split": "full",
    }
    given = [
        field
        for field in dataclasses.fields(flags)
        if field.name in decided
        and getattr(flags, field.name) not in (field.default, decided[field.name])
    ]
    asked = " and ".join(
        f"--{field.name.replace('_', '-')} {getattr(flags, field.name)}" for field in given
    )
    require(
        (
            not given,
            f"{asked}: --data {flags.data} is prepared, with its own tokenizer and sets; "
            "leave that out, or give it to prepare.py and another --out",
        )
    )
    if source and source.tokenizer.to_str() != prepared.tokenizer.to_str():
        raise UserError(
            f"--data {flags.data}: was prepared with another vocabulary than that of {source.folder}; "
            f"prepare it with --vocab-from {source.folder}"
        )
    flags.tokenizer, flags.valid = decided["tokenizer"], decided["valid"]
    return prepared
