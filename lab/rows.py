"""Finished runs, and rows of them: the runs of a row differ only in the seed."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import name_of
from lab.flags import MAY_CHANGE, CommonFlags, require
from lab.load import read_config, read_result
from model import POSITIONS

IN_PERCENT = ("accuracy", "macro_f1", "exact")  # numbers that are shown in percent
HEADINGS = {"pos": "positions", "init_from": "start"}  # of settings whose values have names
LONGEST_LABEL = 60  # letters; rows with longer ones are named by their folders


@dataclass
class FinishedRun:
    """A run with a result.json. Its numbers also have joint@LENGTH, see `joint_perplexities`."""

    folder: Path
    config: dict  # config.json
    settings: dict  # the flags that make a row, see `settings_and_seed`
    seed: str  # "" for a baseline, which has none
    result: dict  # the numbers of result.json


@dataclass
class Row:
    """Runs that differ only in the seed, or a single baseline."""

    label: str
    runs: list  # of FinishedRun

    def values(self, name):
        """Return a number of each run, in percent if it is shown so; [] unless all have it."""
        numbers = [run.result.get(name) for run in self.runs]
        if None in numbers:
            return []
        return [shown_factor(name) * number for number in numbers]


def shown_factor(name):
    """Return 100 for a number that is shown in percent, else 1."""
    return 100 if name.startswith(IN_PERCENT) else 1


def read_finished_run(folder):
    """Return the FinishedRun of a folder. Raises UserError if the run has not ended."""
    config = read_config(folder)
    settings, seed = settings_and_seed(config)
    result = {}
    for name, value in read_result(folder).items():
        if isinstance(value, int | float):
            result[name] = value
    result |= joint_perplexities(result, config["flags"].get("block_size"))
    return FinishedRun(Path(folder).expanduser(), config, settings, seed, result)


def joint_perplexities(result, block_size):
    """Return {"joint@LENGTH": perplexity of all test sets together, in blocks of this length}.

    It is the exponential of the mean loss, in which a test set counts by its tokens. Baselines,
    whose block_size is None, have none.
    """
    sizes = {}  # test set: its tokens
    for name, value in result.items():
        test = name.removeprefix("tokens/")
        if test != name and test not in ("train", "valid"):
            sizes[test] = value
    if not sizes or not block_size:
        return {}
    joint = {}
    for length in sorted({name.partition("@")[2] for name in result}):
        ending = f"@{length}" if length else ""  # without: in blocks as long as in training
        perplexities = [result.get(f"perplexity/{test}{ending}") for test in sizes]
        if None not in perplexities:
            nats = np.average(np.log(perplexities), weights=list(sizes.values()))
            joint[f"joint@{length or block_size}"] = np.exp(nats)
    return joint


def settings_and_seed(config):
    """Return the settings that make a row, and the seed as text, "" for a baseline.

    The settings are the flags, but not those that only say where and how a run computes. Those of
    an --encoder or --init-from are added; its seed, if it is another one, belongs to the seed.
    """
    flags = config["flags"]
    ignored = {*MAY_CHANGE, "seed", "eval_block"}
    settings = {name: value for name, value in flags.items() if name not in ignored}
    settings["data"] = name_of(flags["data"])
    seed = str(flags.get("seed", ""))
    for flag in ("encoder", "init_from"):
        folder = flags.get(flag)
        if not folder or not Path(folder, "config.json").expanduser().exists():
            continue
        source_settings, source_seed = settings_and_seed(read_config(folder))
        for name, value in source_settings.items():
            if name != "pos":  # the run's own flag has the same value
                settings[f"{flag}-{name}"] = value
        settings[flag] = "random" if settings.pop("untrained", False) else "pretrained"
        if source_seed != seed:
            seed += f" ({flag} {source_seed})"
    return settings, seed


def group_runs(runs, labels=""):
    """Return a Row for all runs of the same settings, code and data. Raises UserError if the number
    of labels, as in --labels, is wrong.

    A seed that a row already has makes another row. Without labels, `name_rows` names the rows.
    """
    groups = {}  # what makes a row, as text: its runs
    for run in runs:
        data_hash = run.config.get("data_hash")
        if run.settings.get("encoder"):
            data_hash = ""  # it contains the hash of the encoder, which differs between seeds
        key = str([run.settings, run.result.get("parameters"), run.config.get("code"), data_hash])
        while run.seed in [other.seed for other in groups.get(key, [])]:
            key += "+"
        groups.setdefault(key, []).append(run)
    for group in groups.values():
        group.sort(key=lambda run: int(run.seed.split()[0]))  # "10", "1 (encoder 0)"

    names = name_rows([group[0] for group in groups.values()])
    chosen = names
    if labels:
        chosen = [label.strip() for label in labels.split(",")]
    fits = len(set(chosen)) == len(chosen) == len(groups)
    require(fits, f"--labels {labels}: expected a name for each of: {'; '.join(names)}")
    return [Row(label, group) for label, group in zip(chosen, groups.values())]


def name_rows(runs):
    """Return a name for each row, given its first run: the settings that differ, if these are not
    enough also those that some runs lack, then the number of parameters and the revision of the
    code, or else the folder. A single row has the name of its position encoding."""
    if len(runs) == 1 and "pos" in runs[0].settings:
        return [spell_setting("pos", runs[0].settings["pos"])]
    settings = [without_evaluation(run.settings) for run in runs]
    names = describe_differences(settings)
    if not are_distinct(names):
        settings = fill_lacking(runs)
        names = describe_differences(settings)
    if not are_distinct(names):
        facts = []
        for entries, run in zip(settings, runs):
            code = dict(parameters=run.result["parameters"], revision=run.config["revision"])
            facts.append(entries | code)
        names = describe_differences(facts)
    if are_distinct(names) and max(map(len, names)) <= LONGEST_LABEL:
        return names
    folders = [run.folder.resolve().name for run in runs]
    short = []
    for name, run in zip(folders, runs):
        short.append(re.sub(rf"[-_](seed=)?{re.escape(run.seed)}$", "", name))
    return short if len(set(short)) == len(short) else folders


def are_distinct(names):
    """Return whether all names differ, and none is empty."""
    return "" not in names and len(set(names)) == len(names)


def fill_lacking(runs):
    """Return the settings of runs. A flag that an older run lacks, because its code did, has the
    default of CommonFlags; if it is a script's own, "" (none)."""
    defaults = {field.name: field.default for field in dataclasses.fields(CommonFlags)}
    filled = {}
    for run in runs:
        for name in run.settings:
            if name in run.config["flags"]:  # not one of the run that it starts from
                filled[name] = defaults.get(name, "")
    return [without_evaluation(filled | run.settings) for run in runs]


def without_evaluation(settings):
    """Return settings without those that say on what a trained model is measured: eval_test, ..."""
    return {name: value for name, value in settings.items() if not name.startswith("eval_")}


def name_labels(rows):
    """Return the heading of a column with the labels of rows, what differs between them:
    "positions", "positions, window". If it is too much, "run"."""
    names = differing_settings([without_evaluation(row.runs[0].settings) for row in rows])
    if len(rows) == 1:
        return "positions"
    if not 1 <= len(names) <= 3:
        return "run"
    words = [HEADINGS.get(name, name.replace("_", "-")) for name in names]
    return ", ".join(words)


def describe_differences(settings):
    """Return for each dictionary the entries that differ from another's: "ALiBi, window=8"."""
    differing = differing_settings(settings)
    descriptions = []
    for entries in settings:
        words = [spell_setting(name, entries[name]) for name in differing if name in entries]
        descriptions.append(", ".join(words))
    return descriptions


def differing_settings(settings):
    """Return the names of the entries that have several values in dictionaries."""
    values = {}  # name: all its values
    for entries in settings:
        for name, value in entries.items():
            values.setdefault(name, set()).add(str(value))
    return [name for name in values if len(values[name]) > 1]


def spell_setting(name, value):
    """Return a setting as a label: "window=8", for a position encoding its name in figures."""
    if name == "pos" and value in POSITIONS:
        return POSITIONS[value].label
    if value == "":
        value = "none"
    return f"{name.replace('_', '-')}={value}"
