"""Finished runs, side by side: which can be compared, which are the same configuration with another seed, and its name.

`read` opens a run's numbers, `check_comparable` refuses what does not measure the same thing, `group` makes configurations
and `label` names them by the flags in which they differ. compare.py makes a table and figures of them.
"""

import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from lab.errors import UserError, require
from lab.flags import script_of
from lab.records import check_entries, read_config, read_metrics, read_result, resume_command

KINDS = {
    "lm": "Causal LM",
    "mlm": "Masked LM",
    "classifier": "Classification",
    "seq2seq": "Encoder-decoder",
    "baselines": "Baselines",
}
# Flags that leave the trained model as it is, and the seed, over which the mean is taken.
APART = (
    "seed",
    "out",
    "resume",
    "overwrite",
    "device",
    "threads",
    "accumulate",
    "timeout",
    "eval_every",
    "eval_block",
)
# Flags of train_classifier.py whose defaults follow from --encoder: where that differs they need no naming.
FOLLOWING = (
    "pool",
    "layers",
    "lr",
    "decay",
    "weight_decay",
    "n_hidden",
    "head_dropout",
    "balance",
    "init_std",
)


# ---------------------------------------------------------------------------- reading


@dataclass
class Finished:
    folder: Path
    kind: str
    data: str  # name of the corpus
    vocabulary: str
    flags: dict  # of config.json
    settings: dict  # those of them that make the configuration
    seed: str
    numbers: dict  # of result.json: {"perplexity/obama": 311.1, ..., "parameters": 154798, "seconds": 11.0}
    floor: dict  # {"perplexity/ada": 2.5, ...}
    tokens: dict  # {"obama": 3711, ...}
    metrics: list  # the lines of metrics.jsonl


def read(folder):
    """A finished run. UserError when the folder is none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder; check the path")
    if not (folder / "config.json").exists():
        raise UserError(
            f"{folder}: no config.json, so this is no run folder; "
            "give folders that train_*.py or baselines.py wrote"
        )
    config = read_config(folder)
    kind, flags, model = config.get("kind"), config["flags"], config.get("model", {})
    check_entries(folder / "config.json", model, {"vocab_size": int, "pos": str})
    if kind not in KINDS or not flags:
        raise UserError(
            f"{folder}: its config.json describes no run that can be compared; those are of {', '.join(KINDS)}"
        )
    if not (folder / "result.json").exists():
        end_it = resume_command(script_of(config) or "train_KIND.py", folder)
        raise UserError(
            f"{folder}: the run is not finished, it has no result.json; leave it out, or end it: "
            + ("repeat its command with --overwrite" if kind == "baselines" else end_it)
        )
    result = read_result(folder)
    if isinstance(result.get("parameters"), dict):
        result["parameters"] = result["parameters"].get("total")
    size = model.get("vocab_size") or result.get("vocab_size", 0)
    return Finished(
        folder,
        kind,
        corpus_name(flags),
        f"{flags.get('tokenizer')} vocabulary of {size:,}",
        flags,
        *configuration_of(config),
        pick(
            result, r"((?:perplexity|accuracy|exact|bleu|chrf)/[^@]+(?:@\d+)?|parameters|seconds)"
        ),
        pick(result, "floor/(.+)"),
        pick(result, "tokens/(.+)"),
        read_metrics(folder),
    )


def pick(result, pattern):
    """{the group of the pattern: value} of the entries whose name fits it."""
    found = {re.fullmatch(pattern, key): value for key, value in result.items()}
    return {
        match[1]: value for match, value in found.items() if match and type(value) in (int, float)
    }


def corpus_name(flags):
    """The same for `speeches` and for a folder of that name elsewhere."""
    return Path(flags.get("data", "")).resolve().stem


def configuration_of(config, depth=0):
    """The settings that make a run's configuration, and its seed. UserError for runs that continue one another in a circle.

    A pretrained encoder's architecture replaces the flags' (train_classifier.py). Of the run of --encoder or --init-from
    its own flags count, not where it lies: otherwise pretraining with different seeds would make different
    configurations. Of a RoBERTa, the name of its folder counts.
    """
    flags = config["flags"]
    require(
        (
            depth < 20,
            f"{config.path}: one of more than 20 runs that each name the next as where they began; "
            "restore the file",
        )
    )
    seed = str(flags.get("seed", 0))
    settings = {key: value for key, value in flags.items() if key not in APART} | {
        "data": corpus_name(flags)
    }
    if "encoder" in flags and not (flags["encoder"] or flags.get("init")):
        settings.pop("tune", None)  # without an encoder it means nothing
    elif flags.get("encoder") or flags.get("init"):
        model = config.get("model", {})
        settings = {
            key: value for key, value in settings.items() if key not in model and key != "tokenizer"
        } | {"pos": model.get("pos")}
    if flags.get("init"):
        settings |= {"init": Path(flags["init"]).name}
    for name in ("encoder", "init_from"):
        source = Path(flags.get(name) or "") / "config.json"
        if flags.get(name) and source.exists():
            pretrained, source_seed = configuration_of(read_config(source.parent), depth + 1)
            word = name.replace("_", "-")
            settings |= {name: "pretrained"} | {
                f"{word} {key}": value
                for key, value in pretrained.items()
                if key != "pos" and (name, key) != ("encoder", "data")
            }
            seed += f" ({word} {source_seed})" if source_seed != seed else ""
    return settings, seed


def check_comparable(trained, baselines):
    """UserError naming two runs whose numbers do not measure the same thing."""
    if not trained:
        raise UserError(
            f"{baselines[0].folder}: is a baseline; give at least one run of a train_*.py script with it"
        )
    kind, given = trained[0].kind, trained + baselines
    agree(
        trained,
        lambda run: KINDS[run.kind],
        "a masked LM sees the words on both sides of a hidden one, a causal LM only those before, an encoder-decoder "
        "writes gaps or translations, and a classifier predicts no words, so their numbers are not comparable; "
        "compare each kind on its own",
    )
    if kind == "seq2seq" and baselines:
        raise UserError(
            f"{baselines[0].folder}: n-grams read no source, so their perplexity is not comparable "
            "with an encoder-decoder's; leave the baselines out"
        )
    if kind == "mlm" and baselines:
        raise UserError(
            f"{baselines[0].folder}: n-grams see only the words before, so their perplexity is not comparable "
            "with a masked LM's; leave the baselines out"
        )
    agree(
        given,
        lambda run: f"--data {run.data}",
        "other test sentences give other numbers; give runs on the same data",
    )
    for run in baselines:
        if not any(key in trained[0].numbers for key in run.numbers if "/" in key):
            raise UserError(
                f"{run.folder}: measures nothing that {trained[0].folder} does; leave it out"
            )
    if kind == "seq2seq":
        decide = ("task", "languages", "mask_rate", "mean_span", "block_size")
        agree(
            trained,
            lambda run: ", ".join(f"{key}={run.flags.get(key)}" for key in decide),
            "these decide what has to be written, so the numbers are not comparable",
        )
    if kind == "lm":

        def texts(run):
            names = ", ".join(sorted(run.tokens.keys() - {"train", "valid"}))
            return f"test sets {names}" if run.tokens else "held-out sentences, each by itself"

        agree(
            trained,
            texts,
            "they are measured on different texts (train_mlm.py --causal has no test sets), "
            "so the perplexities are not comparable; give runs of one script on the same text",
        )
    if kind in ("lm", "mlm", "seq2seq"):
        agree(
            given,
            lambda run: run.vocabulary,
            "perplexities of different vocabularies are not comparable; compare the bits_per_byte in their result.json",
        )
    if kind in ("lm", "seq2seq"):

        def sizes(run):
            counts = [
                f"{n:,}" for name, n in sorted(run.tokens.items()) if name not in ("train", "valid")
            ]
            return f"test sets of {', '.join(counts)} tokens"

        agree(given, sizes, "the data changed in between; train them again on the same files")
    if kind == "mlm":
        agree(
            trained,
            lambda run: ", ".join(
                f"{key}={run.flags.get(key)}" for key in ("mask_rate", "mask_unit", "split")
            ),
            "these decide which words have to be found, so the perplexities are not comparable; "
            "compare classifiers on these encoders",
        )


def agree(finished, value, why):
    """UserError naming the first run and the first of another value."""
    for other in finished[1:]:
        if value(other) != value(finished[0]):
            raise UserError(
                f"{finished[0].folder} ({value(finished[0])}) and {other.folder} ({value(other)}): {why}"
            )


# ---------------------------------------------------------------------------- configurations


@dataclass
class Configuration:
    """Runs that differ in nothing but the seed."""

    runs: list
    label: str = ""

    def summary(self):
        """{name: (mean, deviation)} of the numbers all seeds have."""
        return {
            key: mean_and_deviation([run.numbers[key] for run in self.runs])
            for key in self.runs[0].numbers
            if all(key in run.numbers for run in self.runs)
        }

    def legend(self):
        return f"{self.label} ({counted(len(self.runs), 'seed')})"

    def curve(self, key, factor=1):
        """(steps, means, deviations) of a logged number, at the steps all seeds have."""
        logged = [
            {m["step"]: factor * m[key] for m in run.metrics if math.isfinite(m.get(key, math.nan))}
            for run in self.runs
        ]
        return line(
            {
                step: mean_and_deviation([values[step] for values in logged])
                for step in set.intersection(*map(set, logged))
            }
        )

    def by_length(self, key):
        """(lengths, means, deviations) of a final number, which train_lm.py calls key@length; in training's length just key."""
        summary = self.summary()
        found = {
            int(name.partition("@")[2]): number
            for name, number in summary.items()
            if name.startswith(key + "@")
        }
        return line(found | {self.runs[0].flags.get("block_size", 0): summary[key]})

    def described(self):
        return {
            "label": self.label,
            "folders": [str(run.folder) for run in self.runs],
            "seeds": [run.seed for run in self.runs],
            "settings": self.runs[0].settings,
            "numbers": {
                key: {
                    "mean": mean,
                    "deviation": deviation,
                    "values": [run.numbers[key] for run in self.runs],
                }
                for key, (mean, deviation) in self.summary().items()
            },
        }


def mean_and_deviation(values):
    """(mean, sample standard deviation); no deviation of a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def line(points):
    """{x: (mean, deviation)} as three lists."""
    xs = sorted(points)
    return xs, [points[x][0] for x in xs], [points[x][1] or 0.0 for x in xs]


def group(trained):
    """The runs by configuration, in the order given."""
    groups = {}
    for run in trained:
        seeds = groups.setdefault(json.dumps(run.settings, sort_keys=True), {})
        if run.seed in seeds:
            raise UserError(
                f"{seeds[run.seed].folder} and {run.folder}: same flags and same seed {run.seed}, "
                "so they are one measurement; give one of them"
            )
        seeds[run.seed] = run
    return [
        Configuration(
            [seeds[seed] for seed in sorted(seeds, key=lambda seed: int(seed.split()[0]))]
        )
        for seeds in groups.values()
    ]


def label(configurations, labels=""):
    """Label each by the flags that differ, as they are typed; by its folder where these do not tell it from the others."""
    settings = [c.runs[0].settings for c in configurations]
    differing = [
        key
        for key in dict.fromkeys(key for each in settings for key in each)
        if len({json.dumps(each[key]) for each in settings if key in each}) > 1
    ]

    def words(keys):
        return [
            ", ".join(
                f"{key.replace('_', '-')}={spelled(each[key])}" for key in keys if key in each
            )
            for each in settings
        ]

    found, short = words(differing), words([key for key in differing if key not in FOLLOWING])
    if "encoder" in differing and len(set(short)) == len(short):
        found = short
    for c, text in zip(configurations, found):
        folder = c.runs[0].folder.resolve().name
        if len(configurations) == 1:
            folder = folder.removesuffix(f"-{c.runs[0].seed}")
        c.label = text if text and found.count(text) == 1 else folder
    if labels:
        chosen = [text.strip() for text in labels.split(",")]
        require(
            (
                len(chosen) == len(configurations) == len(set(chosen)),
                f"--labels {labels}: give {len(configurations)} different names, "
                f"for {'; '.join(c.label for c in configurations)}",
            )
        )
        for c, text in zip(configurations, chosen):
            c.label = text


def spelled(value):
    return (
        {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else "none"
        if value in ("", None)
        else str(value)
    )


def counted(n, word):
    return f"{n} {word}{'s' * (n != 1)}"
