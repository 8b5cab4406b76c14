"""Runs with random weights, which are made in no time."""

import dataclasses

import pytest
import torch

from data.files import write_json
from data.tokenizer import train_tokenizer
from lab import figures
from lab.machine import code_hash, path_of
from nets.build import Options, build_model

SCRIPTS = dict(lm="train_lm", mlm="train_mlm", classifier="train_classifier")
SCRIPTS["thread"] = "beyond.train_context"
WORDS = "this is a small sentence and we will work with the people of the world today . , ?"


@pytest.fixture
def make(tmp_path):
    """make("mlm", "bpe", pos="rope") -> the folder of a run. The weights are large, so that
    attention is not nearly uniform. name: of the folder; build: options of the script's `build`."""

    def make_run(kind="lm", words="word", name="run", build=(), **config):
        tokenizer = train_tokenizer(words, [WORDS])
        size = dict(vocab_size=tokenizer.get_vocab_size(), n_layer=2, n_head=2, n_embd=16)
        config = Options(**size | {"init_std": 0.3} | config)
        more = dict(classifier=dict(n_class=2), thread=dict(n_ancestors=8))
        build = more.get(kind, {}) | dict(build)
        torch.manual_seed(0)
        model = build_model(kind, config, **build)
        folder = tmp_path / name
        folder.mkdir(parents=True)
        about = dict(kind=kind, script=SCRIPTS[kind], flags={}, model=dataclasses.asdict(config))
        about |= dict(build=build, classes=["a", "b"], code=code_hash(path_of(SCRIPTS[kind])))
        write_json(folder / "config.json", about | {"revision": ""})
        tokenizer.save(str(folder / "tokenizer.json"))
        torch.save({"model": model.state_dict(), "step": 3}, folder / "best.pt")
        write_json(folder / "result.json", {})
        return folder

    return make_run


@pytest.fixture
def figures_drawn(monkeypatch):
    """The figures that a script saves, [(file name, figure)], which are not written."""
    found = []
    monkeypatch.setattr(figures, "save", lambda figure, path: found.append((path.name, figure)))
    return found


@pytest.fixture
def maps_of():
    """maps_of(figure) -> {title: array} of its maps."""
    return lambda figure: {
        axis.get_title(): axis.images[0].get_array() for axis in figure.axes if axis.images
    }
