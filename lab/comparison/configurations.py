"""Group finished runs into configurations: means over seeds, and references beside them."""

import json
import statistics
from dataclasses import dataclass, field

from lab.errors import UserError


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
    """Return a Reference for every baseline, and for the best possible if the corpus knows it."""
    trained = [run for run in runs if run.kind != "baselines"]
    kind, found = trained[0].kind, {}
    option, default = ("rare_unknown", 0.0) if kind == "lm" else ("split", "full")
    for run in runs:
        if run.kind == "baselines":
            name = f"{run.flags.get('order', 'n')}-gram" if kind == "lm" else "naive Bayes"
            value = run.flags.get(option, default)
            if any(other.flags.get(option, default) != value for other in trained):
                name += f", {option.replace('_', '-')}={value}"
            name = str(run.folder) if name in found else name
            style = ("--", "-.", (0, (6, 2)))[len(found) % 3]
            found[name] = Reference(name, run.numbers, style, folders={"": run.folder})
    floor = {name: value for run in runs for name, value in run.floor.items()}
    best = [Reference("best possible", floor, ":", ranked=False)] if floor else []
    return [*found.values(), *best]


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


def make_configurations(trained):
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
