"""Group finished runs into configurations: means over seeds, labels, and references beside them."""

import json
import statistics
from dataclasses import dataclass, field

from lab.errors import UserError, require
from lab.figures import POSITION_NAMES

# Flags of train_classifier.py whose defaults depend on --encoder. A label names them only if given.
DERIVED = "pool layers lr decay weight_decay n_hidden n_component head_dropout balance".split()
LONGEST = 60  # characters of a label made of flags


@dataclass
class Configuration:
    """Runs that differ in nothing but the seed."""

    runs: list
    label: str = ""
    ranked = True  # can be the best of a column

    @property
    def seeds(self):
        return ", ".join(run.seed for run in self.runs)

    @property
    def folders(self):
        """{seed: run folder}"""
        return {run.seed: run.folder for run in self.runs}

    @property
    def legend(self):
        """The label in a figure, with the number of seeds if it is above 1."""
        n = len(self.runs)
        return f"{self.label} ({n} seeds)" if n > 1 else self.label

    def summary(self):
        """Return {name: (mean, deviation)} of the numbers that all seeds have."""
        return {
            name: mean_and_deviation([run.numbers[name] for run in self.runs])
            for name in self.runs[0].numbers
            if all(name in run.numbers for run in self.runs)
        }

    def curve(self, name, factor=1):
        """Return (steps, means, deviations) of a logged number, at the steps all seeds have."""
        logged = [
            {m["step"]: factor * m[name] for m in run.metrics if name in m} for run in self.runs
        ]
        shared = set.intersection(*map(set, logged))
        return as_line({s: mean_and_deviation([values[s] for values in logged]) for s in shared})

    def by_length(self, name):
        """Return (lengths, means, deviations) of a number measured at several lengths.

        result.json has it as name@length, and at the length of training as name.
        """
        summary = self.summary()
        found = {self.runs[0].flags.get("block_size", 0): summary[name]}
        for key, number in summary.items():
            if key.startswith(name + "@"):
                found[int(key.partition("@")[2])] = number
        return as_line(found)

    def described(self):
        """Return what compare.json says of the configuration."""
        numbers = {
            name: with_values([run.numbers[name] for run in self.runs]) for name in self.summary()
        }
        return {
            "label": self.label,
            "folders": [str(run.folder) for run in self.runs],
            "seeds": [run.seed for run in self.runs],
            "settings": self.runs[0].settings,
            "numbers": numbers,
        }


@dataclass
class Reference:
    """A baseline, the best possible, or what several runs answer together: a row of the table and
    a horizontal line of the figure."""

    label: str
    numbers: dict
    style: object = "--"  # of the line
    ranked: bool = True  # can be the best of a column
    folders: dict = field(default_factory=dict)  # {seed: run folder}; a baseline's seed is ""
    deviations: dict = field(default_factory=dict)  # of the numbers over the seeds
    seeds: str = ""

    def summary(self):
        return {name: (n, self.deviations.get(name)) for name, n in self.numbers.items()}


def references(runs):
    """Return a Reference for every baseline, and one for the floor if the corpus knows it."""
    kind = next(run.kind for run in runs if run.kind != "baselines")
    found = {}
    for run in runs:
        if run.kind == "baselines":
            name = f"{run.flags.get('order', 'n')}-gram" if kind == "lm" else "naive Bayes"
            option = "rare_unknown" if kind == "lm" else "split"
            if run.flags.get(option, 0) not in (0, "full"):
                name += f", {option.replace('_', '-')}={run.flags[option]}"
            name = str(run.folder) if name in found else name
            style = ("--", "-.", (0, (6, 2)))[len(found) % 3]
            found[name] = Reference(name, run.numbers, style, folders={"": run.folder})
    floor = {name: value for run in runs for name, value in run.floor.items()}
    best = "floor (best possible)" if kind == "lm" else "best possible"
    return [*found.values(), *([Reference(best, floor, ":", ranked=False)] if floor else [])]


def mean_and_deviation(values):
    """Return (mean, sample standard deviation); the deviation of a single value is None."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def with_values(values):
    """Return {"mean", "deviation", "values"} for a JSON file."""
    mean, deviation = mean_and_deviation(values)
    return {"mean": mean, "deviation": deviation, "values": values}


def as_line(points):
    """Return {x: (mean, deviation)} as three lists: xs, means, deviations."""
    xs = sorted(points)
    return xs, [points[x][0] for x in xs], [points[x][1] or 0.0 for x in xs]


def group(trained):
    """Return the configurations in the order of their first runs. UserError for a repeated seed.

    A flag that is off equals one that is missing, as in a run of an older version.
    """
    groups = {}
    for run in trained:
        settings = {name: value for name, value in run.settings.items() if value}
        seeds = groups.setdefault(json.dumps(settings, sort_keys=True), {})
        if run.seed in seeds:
            raise UserError(
                f"{seeds[run.seed].folder} and {run.folder}: same flags and same seed {run.seed}, "
                "so they are one measurement; give one of them"
            )
        seeds[run.seed] = run
    return [
        Configuration([seeds[seed] for seed in sorted(seeds, key=lambda s: int(s.split()[0]))])
        for seeds in groups.values()
    ]


def set_labels(configurations, labels):
    """Label each configuration by the flags that differ, or by --labels, names joined by commas.

    A position encoding is written as its name alone. A configuration that the flags do not tell
    from the others is labelled by its folder, and so are all of them if the flags of one would take
    more than LONGEST characters. Raises UserError for a wrong number of labels.
    """
    named, folders = differing_flags(configurations), folder_names(configurations)
    if max(map(len, named)) > LONGEST and len(set(folders)) == len(folders):
        named = folders
        if not labels:
            print("note: rows have the names of folders, since many flags differ; see --labels")
    for configuration, name, folder in zip(configurations, named, folders):
        configuration.label = name if name and named.count(name) == 1 else folder
    if labels:
        chosen = [text.strip() for text in labels.split(",")]
        problem = (
            f"--labels {labels}: give {len(configurations)} different names, "
            f"for {'; '.join(c.label for c in configurations)}"
        )
        require((all(chosen) and len(chosen) == len(configurations) == len(set(chosen)), problem))
        for configuration, text in zip(configurations, chosen):
            configuration.label = text


def folder_names(configurations):
    """Return the names of the first runs' folders, without the seed if they still differ."""
    runs = [configuration.runs[0] for configuration in configurations]
    names = [run.folder.resolve().name for run in runs]
    short = [name.removesuffix(f"-{run.seed}") for name, run in zip(names, runs)]
    return short if len(set(short)) == len(short) else names


def differing_flags(configurations):
    """Return for each configuration the flags that differ from another's, as text."""
    settings = [c.runs[0].settings for c in configurations]
    differing = [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if len({json.dumps(each[name]) for each in settings if name in each}) > 1
    ]
    given = {name for c in configurations for run in c.runs for name in run.given}
    named = [name for name in differing if name not in DERIVED or name in given]

    def words(names):
        return [
            ", ".join(in_label(name, each[name]) for name in names if name in each)
            for each in settings
        ]

    short = words(named)
    if "encoder" in differing and len(set(short)) == len(short):
        return short
    return words(differing)


def in_label(name, value):
    """Return "ALiBi" for pos, "norm-first=yes" for another setting."""
    if name == "pos":
        return POSITION_NAMES.get(value, str(value))
    if isinstance(value, bool):
        value = "yes" if value else "no"
    missing = "scratch" if name in ("encoder", "init_from", "init") else "none"
    return f"{name.replace('_', '-')}={missing if value == '' else value}"
