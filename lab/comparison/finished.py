"""Read the finished runs that are compared."""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from data import name_of
from lab.comparison.table import METRICS
from lab.errors import UserError, require
from lab.flags import ModelFlags
from lab.records import check_entries, read_config, read_metrics, read_result
from lab.resume import MAY_CHANGE, resume_command, script_of_run
from model import Config


class Kind(NamedTuple):
    """How compare.py describes and checks the runs of one kind."""

    name: str
    note: str  # on its numbers
    decide: tuple  # flags that decide what is predicted, which must agree (lm: without test sets)


SENTENCES = ("split", "valid", "block_size")
KINDS = {
    "lm": Kind("Causal LM", "Perplexity per token; lower is better.", SENTENCES),
    "mlm": Kind(
        "Masked LM",
        "A masked LM sees the words on both sides, so its perplexity is not comparable with a "
        "causal LM's.",
        ("mask_rate", "mask_unit", *SENTENCES),
    ),
    "classifier": Kind(
        "Classification",
        "`valid` is the accuracy on held-out rows at the best epoch of the search; all other "
        "numbers are of the final model.",
        (),
    ),
    "seq2seq": Kind(
        "Encoder-decoder",
        "Perplexity of the decoder's text given the source.",
        ("task", "languages", "mask_rate", "mean_span", "block_size"),
    ),
    "baselines": Kind("Baselines", "", ()),
}
NUMBERS = rf"((?:{'|'.join(METRICS)}|bits_per_byte)/[^@]+(?:@\d+)?|parameters|seconds)"
# The seed, and flags that never change the trained model. All other flags make a configuration.
IGNORED = (*MAY_CHANGE, "seed", "keep", "eval_block")


@dataclass
class Finished:
    """A finished run, as far as it is compared."""

    folder: Path
    kind: str
    data: str = ""  # name of the corpus
    vocabulary: str = ""
    flags: dict = field(default_factory=dict)  # of config.json
    given: tuple = ()  # names of the flags on the command line; () for older runs
    settings: dict = field(default_factory=dict)  # the flags that make the configuration
    seed: str = "0"
    numbers: dict = field(default_factory=dict)  # {"perplexity/obama": 311.1, "seconds": 11.0}
    floor: dict = field(default_factory=dict)  # {"perplexity/ada": 2.5}
    tokens: dict = field(default_factory=dict)  # {"obama": 3711}
    metrics: list = field(default_factory=list)  # the lines of metrics.jsonl
    n_row: int = 0  # test rows of a classifier


def read_finished(folder):
    """Read a finished run. UserError if the folder is not a run, or its run is not finished."""
    config = read_config(folder)
    kind, flags, model = config.get("kind"), config["flags"], config.get("model", {})
    check_entries(folder / "config.json", model, {"vocab_size": int, "pos": str})
    if kind not in KINDS or not flags:
        raise UserError(
            f"{folder}: its config.json is not that of a run that can be compared; "
            f"give runs of {', '.join(KINDS)}"
        )
    check_finished(folder, config)
    result = read_result(folder)
    if isinstance(result.get("parameters"), dict):
        result["parameters"] = result["parameters"].get("total")
    size = model.get("vocab_size") or result.get("vocab_size", 0)
    settings, seed = configuration_of(config)
    return Finished(
        folder,
        kind,
        data=name_of(flags.get("data", "")),
        vocabulary=f"{flags.get('tokenizer')} vocabulary of {size:,}",
        flags=flags,
        given=tuple(config.get("given", ())),
        settings=settings,
        seed=seed,
        numbers=matching(result, NUMBERS),
        floor=matching(result, "floor/(.+)"),
        tokens=matching(result, "tokens/(.+)"),
        metrics=read_metrics(folder),
        n_row=int(result.get("rows/test", 0)),
    )


def check_finished(folder, config):
    """Raise UserError unless a run has written result.json."""
    finish = "repeat its command"
    if config.get("kind") != "baselines":
        finish = resume_command(script_of_run(config) or "train_KIND.py", folder)
    remedy = f"leave it out, or finish it with: {finish}"
    problem = f"{folder}: not finished, result.json is missing; {remedy}"
    require(((folder / "result.json").exists(), problem))


def matching(result, pattern):
    """Return {group 1 of the pattern: number} for the entries whose name matches."""
    found = {}
    for name, value in result.items():
        match = re.fullmatch(pattern, name)
        if match and type(value) in (int, float):
            found[match[1]] = value
    return found


def configuration_of(config, depth=0):
    """Return the settings that make a run's configuration, and its seed as text.

    An encoder's architecture replaces the flags of train_classifier.py. The run of --encoder or
    --init-from counts by its own settings, not by its folder, so that pretraining with several
    seeds is one configuration. A RoBERTa counts by the name of its folder.

    Raises UserError if runs start from each other in a circle.
    """
    flags = config["flags"]
    problem = f"{config.path}: more than 20 runs that start from each other; restore the file"
    require((depth < 20, problem))
    seed = str(flags.get("seed", 0))
    model = config.get("model", {})
    settings = {name: value for name, value in flags.items() if name not in IGNORED}
    # A flag of the architecture that is newer than the run had the default of Config
    newer = [field.name for field in fields(ModelFlags) if field.name not in flags]
    settings |= {name: model.get(name, getattr(Config, name)) for name in newer}
    settings["data"] = name_of(flags.get("data", ""))
    if not flags.get("valid"):
        settings.pop("eval_every", None)  # without held-out text it chooses no weights
    if flags.get("encoder") or flags.get("init"):
        replaced = {*model, *newer, "tokenizer"}
        settings = {name: value for name, value in settings.items() if name not in replaced}
        settings["pos"] = model.get("pos")
    elif "encoder" in flags:
        settings.pop("tune", None)  # without an encoder it has no effect
    if flags.get("init"):
        settings["init"] = Path(flags["init"]).name
    for name in ("encoder", "init_from"):
        folder = flags.get(name)
        if not (folder and (Path(folder) / "config.json").exists()):
            continue
        pretrained, source_seed = configuration_of(read_config(folder), depth + 1)
        option = name.replace("_", "-")
        settings[name] = "pretrained"
        settings |= {f"{option} {key}": v for key, v in pretrained.items() if key != "pos"}
        if source_seed != seed:
            seed += f" ({option} {source_seed})"
    return settings, seed
