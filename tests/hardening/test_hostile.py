"""Malicious files: nothing in them runs, no huge model is built, and messages stay one line."""

import functools
import json
import os
import pickle
import shutil
import zipfile

import pytest
import torch
from helpers import (
    SHORT,
    assert_complains,
    assert_same_run,
    call,
    contents,
    edit,
    entry,
    succeed,
    swap,
    unchanged,
)

from data.corpora.pairs import load_pairs
from data.corpora.rows import read_rows
from data.corpora.threads import load_threads
from data.files import DataError, printable, read_lines
from lab.checkpoint import read_checkpoint, write_checkpoint
from lab.errors import UserError
from lab.load import read_run
from model import Config, Decoder, LanguageModel


def opened(folder):
    """The Outcome of using a run."""
    return call("sample", folder, text="hope and change")


def compared(folder):
    """The Outcome of comparing a run."""
    return call("compare", folder, out=folder.parent / "out")


# ----------------------------------------------------------------------------- code in a checkpoint


class Marks:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


WRITE = {  # a checkpoint, in every format that torch.load knows
    "zipped": torch.save,
    "legacy": functools.partial(torch.save, _use_new_zipfile_serialization=False),
    "plain": lambda state, path: path.write_bytes(pickle.dumps(state)),
}


@pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)
@pytest.mark.parametrize("name", ["best.pt", "checkpoint.pt"])
def test_code_in_a_pickle_is_not_executed(write, name, corpus, copied, tmp_path):
    folder, marker = copied("train_mlm"), tmp_path / "marker"
    with open(folder / name, "rb") as file:
        state = torch.load(file, weights_only=True)
    write(state | {"more": Marks(marker)}, folder / name)
    # An unsafe reader runs the code, then fails.
    with pytest.raises((FileExistsError, RuntimeError)):
        torch.load(folder / name, weights_only=False)
        torch.load(folder / name, weights_only=False)
    assert marker.is_dir()
    marker.rmdir()
    (folder / "previous.pt").unlink()  # or --resume would use that
    before = contents(folder)
    resumed = ("train_mlm", *SHORT["train_mlm"], "--data", corpus, "--out", folder, "--resume")
    outcome = opened(folder) if name == "best.pt" else call(*resumed)
    assert_complains(outcome, folder / name, "not a readable checkpoint", "restore")
    assert "only" not in outcome.err, "torch's advice to load it without weights_only"
    assert not marker.exists() and contents(folder) == before


def test_a_compressed_checkpoint_is_not_read(finished, copied):
    folder = copied("train_lm")
    with (
        zipfile.ZipFile(finished("train_lm") / "best.pt") as source,
        zipfile.ZipFile(folder / "best.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    assert_complains(opened(folder), folder / "best.pt", "not a readable checkpoint")


# -------------------------------------------------------------------------- weights that do not fit


KEY = "body.blocks.0.feed_forward.up.weight"


def set_to(value):
    return lambda weights: weights.update({KEY: value})


WEIGHTS = {
    "missing": (lambda w: w.pop(KEY), "is missing"),
    "one that would broadcast": (set_to(torch.zeros(1, 16)), "is (1, 16) and should be (20, 16)"),
    "another type": (set_to(torch.zeros(20, 16).long()), "is of torch.int64"),
    "one number for all": (set_to(torch.zeros(1).expand(20, 16)), "is not in one piece"),
    "not finite": (lambda w: w[KEY][3].fill_(torch.nan), "holds numbers that are not finite"),
    "no tensor": (set_to("weights"), "is not a plain tensor"),
    "sparse": (set_to(torch.zeros(20, 16).to_sparse()), "is not a plain tensor"),
    "without a place": (lambda w: w.update(extra=torch.zeros(2)), "extra has no place"),
}


@pytest.mark.parametrize("change, told", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_do_not_fit_are_named(change, told, copied):
    folder = copied("train_lm")
    state = read_checkpoint(folder / "best.pt")
    change(state["model"])
    write_checkpoint(folder / "best.pt", state)
    told = told if told.startswith("extra") else f"{KEY} {told}"
    misfit = "the weights do not fit config.json"
    assert_complains(opened(folder), folder / "best.pt", misfit, told)


def averages(state):
    return state["optimizer"]["state"][0]


FORGED = {
    "other shape": lambda s: averages(s).update(exp_avg=torch.zeros(2)),
    "no tensor": lambda s: averages(s).update(exp_avg="x"),
    "not finite": lambda s: averages(s)["exp_avg"].fill_(torch.inf),
    "no groups": lambda s: s["optimizer"].update(param_groups=[]),
    "no dictionary": lambda s: s.update(optimizer=[1]),
    "other rates": lambda s: s["optimizer"]["param_groups"][0].pop("params"),
    "step in words": lambda s: s.update(step="4"),
    "step below zero": lambda s: s.update(step=-4),
    "seconds": lambda s: s.update(seconds="long"),
    "one time": lambda s: s.update(seconds=[1.0]),
    "more": lambda s: s.update(more=[]),
    "random state": lambda s: s.update(rng=torch.zeros(3)),
    "no random state": lambda s: s.update(rng=None),
    "best weights": lambda s: [s.pop(name) for name in set(s) - {"model", "step"}],
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_forged_checkpoint_is_not_resumed(change, corpus, copied):
    folder = copied("train_mlm")
    state = read_checkpoint(folder / "checkpoint.pt")
    change(state)
    write_checkpoint(folder / "checkpoint.pt", state)
    with unchanged(folder):
        outcome = call("train_mlm", *SHORT["train_mlm"], data=corpus, out=folder, resume=True)
        assert_complains(outcome, folder / "checkpoint.pt", "restore")


def test_a_checkpoint_with_epochs_of_another_length_is_not_resumed(corpus, copied):
    folder = copied("train_classifier")
    state = read_checkpoint(folder / "checkpoint.pt")
    state["more"]["per_epoch"] += 1
    write_checkpoint(folder / "checkpoint.pt", state)
    argv = (*SHORT["train_classifier"], "--data", corpus)
    outcome = call("train_classifier", *argv, out=folder, resume=True)
    assert_complains(outcome, folder / "checkpoint.pt", "on other data", "--overwrite")


def test_rates_in_a_checkpoint_are_not_used(corpus, finished, copied):
    """They may be forged, or those of another device, such as fused."""
    folder = copied("train_mlm")
    state = read_checkpoint(folder / "previous.pt")
    state["optimizer"]["param_groups"][0].update(weight_decay=0.9, betas=(0.5, 0.5))
    write_checkpoint(folder / "checkpoint.pt", state)
    succeed(call("train_mlm", *SHORT["train_mlm"], data=corpus, out=folder, resume=True))
    assert_same_run(folder, finished("train_mlm"))


VAST = {  # the run, what its config.json asks for, what the message says
    "width": ("train_lm", dict(model__n_embd=10**7), "should be (77, 10000000)"),
    "layers": ("train_lm", dict(model__n_layer=10**7), "too few for the 10000000 layers"),
    "members": ("train_lm", dict(members=10**9), "layers of config.json × 1000000000 members"),
    "beyond all": ("train_lm", dict(model__n_embd=10**17), "n_embd must be at most 16,777,216"),
    "members, none": ("train_lm", dict(members=0), "layers of config.json × 0 members"),
    "classifiers": ("train_generative", dict(classifier__members=10**9), "too few"),
    "classifiers, in words": ("train_generative", dict(classifier__members="2"), "too few"),
    "classes": ("train_generative", dict(classifier__n_class=10**9), "3 classes"),
    "ancestors": ("train_thread", dict(reader__n_ancestors=10**12), "describe a thread reader"),
    "ancestors, none": ("train_thread", dict(reader__n_ancestors=0), "describe a thread reader"),
    "reader": ("train_thread", dict(reader={}), "describe a thread reader"),
    "reader, more": ("train_thread", dict(reader__more=1), "does not describe a model"),
}


@pytest.mark.parametrize("script, changes, part", VAST.values(), ids=VAST)
def test_a_config_larger_than_its_checkpoint_builds_nothing(script, changes, part, copied):
    folder = copied(script)
    edit(folder / "config.json", entry(**changes))
    assert_complains(opened(folder), folder, part)


def test_a_huge_model_of_a_few_numbers_builds_nothing(copied):
    """Config and checkpoint agree on terabytes, but each tensor is one number, expanded."""
    folder = copied("train_lm")
    edit(folder / "config.json", entry(model__n_embd=4_000_000, model__n_ffn=1_000_000))
    config = Config(**json.loads((folder / "config.json").read_text())["model"])
    with torch.device("meta"):
        vast = LanguageModel(Decoder(config)).state_dict()
    expanded = {name: torch.zeros(1).expand(tensor.shape) for name, tensor in vast.items()}
    write_checkpoint(folder / "best.pt", {"model": expanded})
    assert_complains(opened(folder), folder / "best.pt", "not in one piece")
    write_checkpoint(folder / "best.pt", {"model": 4})
    assert_complains(opened(folder), folder / "best.pt", "holds 0 tensors")
    write_checkpoint(folder / "best.pt", 4)
    assert_complains(opened(folder), folder / "best.pt", "not the checkpoint it should be")


# --------------------------------------------------------------------------------------------- JSON


def deep(content):
    return b'{"kind": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


CONTROL, SHOWN = "\x1b[2J\x07\u202elm\nlm", "\\x1b[2J\\x07\\u202elm"
SETTINGS = {
    "deep": ("config.json", deep, "nested too deeply"),
    "NaN": ("config.json", swap(b'"seed": 0', b'"seed": NaN'), "NaN is not a number JSON can hold"),
    "Infinity": ("config.json", swap(b": 0.0", b": -Infinity"), "-Infinity is not a number JSON"),
    "huge": ("config.json", swap(b": 0.0", b": " + b"9" * 5000), "is not a number JSON can hold"),
    "exponent": ("config.json", swap(b": 0.0", b": 1e999"), "is not a number JSON can hold"),
    "true for a number": ("config.json", entry(flags__seed=True), "seed of a wrong type"),
    "float for an integer": ("config.json", entry(flags__n_embd=12.0), "n_embd of a wrong type"),
    "word for a stride": ("config.json", entry(flags__eval_stride="x"), "eval_stride of a wrong"),
    "list for flags": ("config.json", entry(flags=[1]), "flags of a wrong type"),
    "nested flags": ("config.json", entry(flags__data_of={"a": 1}), "not as a run writes them"),
    "given number": ("config.json", entry(given=[1]), "not as a run writes them"),
    "NUL in a path": ("config.json", entry(flags__data="a\0b"), "not as a run writes them"),
    "kind": ("config.json", entry(kind=["lm"]), "kind of a wrong type"),
    "model": ("config.json", entry(model="lm"), "model of a wrong type"),
    "null for a model": ("config.json", entry(model=None), "holds no model"),
    "control characters": ("config.json", entry(**{f"flags__{CONTROL}": [1]}), "not as a run"),
    "control characters of a kind": ("config.json", entry(kind=CONTROL), SHOWN),
    "control characters of a field": ("config.json", entry(**{f"model__{CONTROL}": 1}), SHOWN),
    "type of a size": ("config.json", entry(model__n_layer=1.0), "n_layer must be of type int"),
    "unknown": ("config.json", entry(model__layers=3), "does not describe a model"),
    "half a character": ("config.json", entry(flags__data="\ud800"), "half a character"),
    "tokenizer's depth": ("tokenizer.json", deep, "not a tokenizer file"),
    "tokenizer with gaps": ("tokenizer.json", swap(b'"and": ', b'"and": 9'), "without a gap"),
    "tokenizer without unknown": (
        "tokenizer.json",
        swap(b'"unk_token": "[UNK]"', b'"unk_token": "[UNX]"'),
        "not a tokenizer file",
    ),
}
OBAMA, WRONG = "perplexity/obama", "cannot have been measured"
NUMBERS = {
    "result true": ("result.json", entry(**{OBAMA: True}), WRONG),
    "perplexity below zero": ("result.json", entry(**{OBAMA: -1}), WRONG),
    "time as text": ("result.json", entry(seconds="9"), "seconds cannot"),
    "speed as text": ("result.json", entry(tokens_per_second="9"), "tokens_per_second cannot"),
    "size as text": ("result.json", entry(vocab_size="9"), "vocab_size cannot"),
    "result deep": ("result.json", deep, "nested too deeply"),
    "metrics deep": ("metrics.jsonl", lambda c: deep(c) + b"\n", "nested too deeply"),
    "metrics in words": ("metrics.jsonl", swap(b'"step": 0', b'"step": "0"'), "not readable"),
    "metrics lists": ("metrics.jsonl", lambda c: b'["step"]\n' + c, "not readable"),
    "metrics NaN": ("metrics.jsonl", swap(b'"step": 0', b'"step": NaN'), "NaN is not a number"),
    "metrics no text": ("metrics.jsonl", lambda c: b"\xff\n", "not readable"),
}


@pytest.mark.parametrize("row", SETTINGS.values(), ids=SETTINGS)
def test_a_run_with_invalid_settings_model_or_tokenizer(row, copied):
    refuses(opened, copied("train_lm"), *row)


@pytest.mark.parametrize("row", NUMBERS.values(), ids=NUMBERS)
def test_a_run_with_invalid_numbers(row, copied):
    refuses(compared, copied("train_lm"), *row)


def refuses(reader, folder, name, how, part):
    content = how((folder / name).read_bytes())
    assert content != (folder / name).read_bytes()
    (folder / name).write_bytes(content)
    with unchanged(folder.parent):
        outcome = reader(folder)
        assert_complains(outcome, folder / name if "\\x1b" not in part else folder, part)
        assert outcome.err[:-1].isprintable()
        assert len(outcome.err) < 3000


def test_runs_that_start_from_each_other_end_with_a_line(copied):
    folder = copied("train_lm")
    edit(folder / "config.json", entry(flags__init_from=str(folder)))
    done = compared(folder)
    assert_complains(done, folder / "config.json", "more than 20 runs that start from each other")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "metrics.jsonl", "result.json"])
def test_a_file_of_a_run_that_is_too_large_is_not_read(name, copied):
    folder = copied("train_lm")
    os.truncate(folder / name, 2**40)  # a sparse file: no space on disk, a terabyte in memory
    done = opened(folder) if name == "tokenizer.json" else compared(folder)
    assert_complains(done, folder / name, "is larger than", "MB")


def test_a_classifier_that_is_misdescribed(finished, copied):
    folder = copied("train_classifier")
    edit(folder / "config.json", entry(classes=["one"]))
    assert_complains(opened(folder), folder / "config.json", "names 1 classes")
    edit(folder / "config.json", entry(classes=["one", "two", 3]))
    assert_complains(opened(folder), folder / "config.json", "classes")
    for name, wrong in (("pool", "mode"), ("pool", 3), ("layers", "2")):  # it has one layer
        shutil.copy(finished("train_classifier") / "config.json", folder)
        edit(folder / "config.json", entry(**{f"classifier__{name}": wrong}))
        assert_complains(opened(folder), folder / "config.json", "does not describe a model")


def test_flags_that_are_missing_are_named(copied):
    folder = copied("train_lm")
    described = json.loads((folder / "config.json").read_text())
    del described["flags"]["data"]
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="config.json: holds no data; restore the file"):
        read_run(folder).config["flags"]["data"]


# --------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    "name, reader",
    [
        ("a.txt", read_lines),
        ("a.tsv", read_rows),
        ("a.jsonl", load_threads),
        ("train.en", lambda path: load_pairs(path.parent)),
    ],
)
def test_a_text_that_is_too_large_or_a_device_is_not_read(name, reader, tmp_path):
    path = tmp_path / name
    (tmp_path / "train.fr").write_text("un\n")
    for make, words in (
        (lambda: path.touch() or os.truncate(path, 2**40), "larger than 1,024 MB"),
        (lambda: os.mkfifo(path), "not a regular file"),
        (path.mkdir, "is a folder"),
    ):
        make()
        with pytest.raises(DataError, match=words):
            reader(path)
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "p", "title": "t", "comments": ' + '[{"id": "a", "body": "b", "replies": ' * 30_000,
        '{"id": NaN}',
        "[" * 10**6,
        '{"id": "p", "comments": [{"id": "a", "parent_id": ["t3_p"], "body": "x"}]}',
        '{"id": "p", "comments": [{"id": "a", "parent_id": {"t3_p": 1}, "body": "x"}]}',
        '{"id": 1e999}',
        '{"id": ' + "7" * 10**5 + "}",
    ],
)
def test_a_thread_nested_deeply_or_of_wrong_types(line, tmp_path):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="a.jsonl:1: ") as error:
        load_threads(tmp_path / "a.jsonl")
    assert len(str(error.value)) < 600


def test_half_a_surrogate_in_a_thread_can_be_tokenized(tmp_path):
    comment = '{"id": "a", "parent_id": "", "body": "so \\ud83d far"}'
    (tmp_path / "a.jsonl").write_text(f'{{"id": "p", "title": "t", "comments": [{comment}]}}\n')
    assert load_threads(tmp_path / "a.jsonl").trees[0].texts == ["t", "so ? far"]


def test_control_characters_do_not_reach_the_terminal(own_corpus, tmp_path):
    escaped = "a\\x1b[31mb\\x9b2J\\u202e\\x00\\ud800é –"
    assert printable("a\x1b[31mb\x9b2J\u202e\x00\ud800é –") == escaped
    (own_corpus / "train_CLS.tsv").write_text("\x1b[2J\x1b]0;owned\x07\ttext\n")
    folder = own_corpus.rename(tmp_path / "a\x1b[31m\nb")
    outcome = call("train_classifier", data=folder, out=tmp_path / "run")
    assert_complains(outcome, "a\\x1b[31m b", "train_CLS.tsv:1: unknown label '\\x1b[2J")
    assert outcome.err[:-1].isprintable()
    outcome = call("train_classifier", "--data", folder, "--n-\x1b[31mlayer", 3)
    assert_complains(outcome, "\\x1b[31m")
    (tmp_path / "lines").mkdir()
    path = tmp_path / "lines" / "a\x1bb.txt"
    path.write_text("\n".join(f"{number} of \x1b[31m words" for number in range(40)) + "\n")
    outcome = call("train_lm", *SHORT["train_lm"], steps=0, data=path, out=tmp_path / "\x1bout")
    assert outcome.code == 0 and "\x1b" not in outcome.out + outcome.err
