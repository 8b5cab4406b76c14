"""Open finished and unfinished runs."""

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch

from data.batching import device_of
from data.files import printable, read_json
from data.tokenizer import load_tokenizer
from lab.flags import require, spelled
from lab.machine import code_hash
from lab.run import load_weights, read_weights
from model import Config


def read_config(folder):
    """Return config.json of a run. Raises UserError if the folder is not one."""
    path, remedy = Path(folder).expanduser() / "config.json", "give the folder of a run"
    require(path.exists(), f"{folder}: has no config.json, so it is not a run; {remedy}")
    return read_json(path, remedy)


def read_metrics(folder):
    """Return the lines of metrics.jsonl, but not a last one that is cut off."""
    path = Path(folder).expanduser() / "metrics.jsonl"
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def read_result(folder):
    """Return result.json. Raises UserError before the run has ended."""
    path = Path(folder).expanduser() / "result.json"
    return read_json(path, "finish the run with --resume")


@dataclass(eq=False)
class LoadedRun:
    """A run, opened to look inside or to start from. It can be the key of a dictionary."""

    folder: Path
    kind: str
    config: dict  # config.json
    model: torch.nn.Module
    tokenizer: tokenizers.Tokenizer
    weights_of: str = ""  # which weights, unless the final ones: "step 100", "unfinished: step 300"

    @property
    def device(self):
        return device_of(self.model)


def open_source(flags, flag, kinds):
    """Return the run of --init-from or --encoder (flag) as a LoadedRun, or None. Raises UserError
    if flags ask for another vocabulary."""
    folder, asked = getattr(flags, flag), flags.vocab_size or getattr(flags, "vocab_from", "")
    problem = "brings its vocabulary; leave --vocab-size and --vocab-from out"
    require(not (folder and asked), f"{spelled(flag)} {folder}: {problem}")
    return read_run(folder, kinds) if folder else None


def read_run(folder, kinds=None, device="cpu", step=None):
    """Load a run: its model, which the script's `build` makes, in evaluation mode with the best
    weights, and its tokenizer. kinds: of runs that are accepted. step: load the weights of this
    step, which --keep kept. Raises UserError for a folder that is no such run. Notes on stderr name
    a run that has not ended, and one that other code made."""
    folder, config = Path(folder).expanduser(), read_config(folder)
    kind, other = config["kind"], f"; give one of kind {' or '.join(kinds or ())}"
    require(not kinds or kind in kinds, f"{folder}: a run of kind {kind}{other}")
    weights = folder / ("best.pt" if step is None else f"step-{step}.pt")
    kept = ", ".join(sorted(path.stem for path in folder.glob("step-*.pt"))) or "none"
    remedy = "finish the run with --resume" if step is None else f"it kept {kept} (see --keep)"
    require(weights.exists(), f"{folder}: no {weights.name}; {remedy}")
    script = importlib.import_module(config["script"])
    differs = config["code"] != code_hash(script.__file__)
    made = f"{folder} was made at {config['revision']}; the code differs"
    try:
        model = script.build(Config(**config["model"]), **config["build"])
    except (TypeError, ValueError) as error:
        require(not differs, f"{made}: {error}")
        raise
    state = read_weights(weights)
    load_weights(model, state["model"], made if differs else weights)
    weights_of = "" if step is None else f"step {step}"
    if not (folder / "result.json").exists():
        weights_of = f"unfinished: step {state['step']}"
        print(printable(f"note: {folder} has not ended; {weights_of}"), file=sys.stderr)
    if differs:
        print(printable(f"note: {made}"), file=sys.stderr)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return LoadedRun(folder, kind, config, model.to(device).eval(), tokenizer, weights_of)
