"""Open finished and unfinished runs."""

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
from lab.machine import code_hash, path_of
from lab.run import load_weights, read_weights
from model import ConfigError
from nets.build import Options, build_model


def read_config(folder):
    """Return config.json of a run. Raises UserError if the folder is not one."""
    path = Path(folder).expanduser() / "config.json"
    remedy = "give the folder of a run"
    require(path.exists(), f"{folder}: has no config.json, so it is not a run; {remedy}")
    return read_json(path, remedy)


def read_metrics(folder):
    """Return the lines of metrics.jsonl, but not a last one that is truncated."""
    path = Path(folder).expanduser() / "metrics.jsonl"
    if not path.exists():
        return []
    *lines, _ = path.read_text("utf-8").split("\n")  # a whole file ends with a line end
    return [json.loads(line) for line in lines]


def read_result(folder):
    """Return result.json. Raises UserError before the run has ended."""
    path = Path(folder).expanduser() / "result.json"
    return read_json(path, "finish the run with --resume")


@dataclass(eq=False)
class LoadedRun:
    """A run, opened to look inside or to start from. It can be the key of a dictionary."""

    folder: Path
    kind: str  # see `Run`
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
    folder = getattr(flags, flag)
    if not folder:
        return None
    own_vocabulary = flags.vocab_size or getattr(flags, "vocab_from", "")
    problem = "brings its vocabulary; leave --vocab-size and --vocab-from out"
    require(not own_vocabulary, f"{spelled(flag)} {folder}: {problem}")
    return read_run(folder, kinds)


def read_run(folder, kinds=None, device="cpu", step=None):
    """Load a run: its model in evaluation mode with the best weights, and its tokenizer.

    kinds: of runs that are accepted. step: load the weights of this step, which --keep kept. Raises
    UserError for a folder that is no such run. Notes on stderr name a run that has not ended, and
    one that other code made.
    """
    folder = Path(folder).expanduser()
    config = read_config(folder)
    kind = config["kind"]
    if kinds:
        remedy = f"give one of kind {' or '.join(kinds)}"
        require(kind in kinds, f"{folder}: a run of kind {kind}; {remedy}")
    weights = find_weights(folder, step)
    code_differs = config["code"] != code_hash(path_of(config["script"]))
    note = f"{folder} was made at {config['revision']}; the code differs"
    revision = config["revision"].rstrip("+")  # a + marks changes that no commit has
    if revision:
        old_code = f"for the old code: git worktree add ../old {revision}"
        note = f"{note} ({old_code})"
    try:
        options = Options(**config["model"])
    except (TypeError, ConfigError) as error:  # an option that this code does not have
        require(not code_differs, f"{note}: {error}")
        raise
    model = build_model(kind, options, device, **config["build"])
    state = read_weights(weights)
    named = note if code_differs else weights  # what an error names
    load_weights(model, state["model"], named)
    weights_of = ""
    if step is not None:
        weights_of = f"step {step}"
    if not (folder / "result.json").exists():
        weights_of = f"unfinished: step {state['step']}"
        print(printable(f"note: {folder} has not ended; {weights_of}"), file=sys.stderr)
    if code_differs:
        print(printable(f"note: {note}"), file=sys.stderr)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return LoadedRun(folder, kind, config, model.eval(), tokenizer, weights_of)


def find_weights(folder, step):
    """Return the path of a run's best weights, or of those of a step. Raises UserError."""
    if step is None:
        path = folder / "best.pt"
        remedy = "finish the run with --resume"
    else:
        path = folder / f"step-{step}.pt"
        kept = sorted(path.stem for path in folder.glob("step-*.pt")) or ["none"]
        remedy = f"it kept {', '.join(kept)} (see --keep)"
    require(path.exists(), f"{folder}: no {path.name}; {remedy}")
    return path
