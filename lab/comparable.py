"""Read finished runs, and refuse those whose numbers do not measure the same thing."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import UserError, require
from lab.folder import MAY_CHANGE
from lab.records import (
    check_entries,
    read_config,
    read_metrics,
    read_result,
    resume_command,
    script_of_run,
)

KINDS = {
    "lm": "Causal LM",
    "mlm": "Masked LM",
    "classifier": "Classification",
    "seq2seq": "Encoder-decoder",
    "baselines": "Baselines",
}
METRICS = "perplexity|bits_per_byte|accuracy|macro_f1|exact|bleu|chrf"
NUMBERS = rf"((?:{METRICS})/[^@]+(?:@\d+)?|parameters|seconds)"
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


def read(folder):
    """Read a finished run. UserError if the folder is not a run, or its run is not finished."""
    config = read_config(folder)
    kind, flags, model = config.get("kind"), config["flags"], config.get("model", {})
    check_entries(folder / "config.json", model, {"vocab_size": int, "pos": str})
    if kind not in KINDS or not flags:
        raise UserError(
            f"{folder}: its config.json describes no run that can be compared; "
            f"give runs of these kinds: {', '.join(KINDS)}"
        )
    if not (folder / "result.json").exists():
        finish = "repeat its command"
        if kind != "baselines":
            finish = resume_command(script_of_run(config) or "train_KIND.py", folder)
        remedy = f"leave it out, or finish it with: {finish}"
        raise UserError(f"{folder}: not finished, result.json is missing; {remedy}")

    result = read_result(folder)
    if isinstance(result.get("parameters"), dict):
        result["parameters"] = result["parameters"].get("total")
    size = model.get("vocab_size") or result.get("vocab_size", 0)
    settings, seed = configuration_of(config)
    return Finished(
        folder,
        kind,
        data=corpus_name(flags),
        vocabulary=f"{flags.get('tokenizer')} vocabulary of {size:,}",
        flags=flags,
        given=tuple(config.get("given", ())),
        settings=settings,
        seed=seed,
        numbers=matching(result, NUMBERS),
        floor=matching(result, "floor/(.+)"),
        tokens=matching(result, "tokens/(.+)"),
        metrics=read_metrics(folder),
    )


def matching(result, pattern):
    """Return {group 1 of the pattern: number} for the entries whose name matches."""
    found = {}
    for name, value in result.items():
        match = re.fullmatch(pattern, name)
        if match and type(value) in (int, float):
            found[match[1]] = value
    return found


def corpus_name(flags):
    """Return the name of --data, which is the same for `speeches` and a folder of that name."""
    return Path(flags.get("data", "")).resolve().stem


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
    settings = {name: value for name, value in flags.items() if name not in IGNORED}
    settings["data"] = corpus_name(flags)
    if flags.get("encoder") or flags.get("init"):
        model = config.get("model", {})
        replaced = {*model, "tokenizer"}
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


def test_rows(run):
    """Return in words which test rows a classifier was measured on."""
    split = run.flags.get("split", "full")
    return f"--split {split}" if "/" in split else "the test rows of the corpus"


def check_comparable(trained, baselines):
    """Raise UserError naming two runs whose numbers do not measure the same thing."""
    if not trained:
        remedy = "add at least one run of a train_*.py script"
        raise UserError(f"{baselines[0].folder}: is a baseline; {remedy}")
    kind, runs = trained[0].kind, trained + baselines
    problem = "numbers of different kinds are not comparable, since each predicts something else"
    agree(trained, lambda run: KINDS[run.kind], f"{problem}; compare each kind on its own")
    if baselines and kind in ("mlm", "seq2seq"):
        sees = "the source" if kind == "seq2seq" else "the words on both sides"
        problem = f"not comparable, since n-grams do not see {sees}"
        raise UserError(f"{baselines[0].folder}: {problem}; leave the baselines out")
    problem = "the test sentences differ; give runs on the same data"
    agree(runs, lambda run: f"--data {run.data}", problem)
    for run in baselines:
        if not any(name in trained[0].numbers for name in run.numbers if "/" in name):
            problem = f"has no number in common with {trained[0].folder}"
            raise UserError(f"{run.folder}: {problem}; leave it out")
    if kind == "lm":
        problem = "perplexities of different texts are not comparable"
        remedy = "give runs of one script on the same text"
        agree(trained, test_sets, f"{problem} (train_mlm.py --causal has no test sets); {remedy}")
    if kind in ("mlm", "seq2seq") or kind == "lm" and not measured_sets(trained[0]):
        decide = {
            "mlm": ("mask_rate", "mask_unit", "split", "valid", "block_size"),
            "lm": ("split", "valid", "block_size"),
            "seq2seq": ("task", "languages", "mask_rate", "mean_span", "block_size"),
        }[kind]
        problem = "these flags decide what is predicted, so the numbers are not comparable"

        def values(run):
            return ", ".join(f"{name}={run.flags.get(name)}" for name in decide)

        agree(trained, values, f"{problem}; give runs with the same")
    if kind == "classifier":
        problem = "accuracies on different test rows are not comparable; give runs on one part"
        agree(runs, test_rows, problem)
    else:
        problem = "perplexities of different vocabularies are not comparable"
        remedy = "compare the bits_per_byte in their result.json (train without --eval-test)"
        agree(runs, lambda run: run.vocabulary, f"{problem}; {remedy}")
        agree(runs, test_sizes, "the data has changed; train them again on the same files")


def measured_sets(run):
    """Return the names of the test sets of a language model."""
    return sorted(run.tokens.keys() - {"train", "valid"})


def test_sets(run):
    return f"test sets {', '.join(measured_sets(run))}" if run.tokens else "held-out sentences"


def test_sizes(run):
    sizes = (f"{run.tokens[name]:,}" for name in measured_sets(run))
    return f"test sets of {', '.join(sizes)} tokens"


def agree(runs, value, problem):
    """Raise UserError naming the first run and the first one with another value."""
    expected = value(runs[0])
    for other in runs[1:]:
        if value(other) != expected:
            raise UserError(
                f"{runs[0].folder} ({expected}) and {other.folder} ({value(other)}): {problem}"
            )
