"""Label configurations by the flags that differ, by their folders, or by --labels."""

import json

from data.files import printable
from lab.errors import require
from lab.figures import POSITION_NAMES

# Flags of train_classifier.py whose defaults depend on --encoder. A label names them only if given.
DERIVED = "pool layers lr decay weight_decay n_hidden n_component head_dropout balance".split()
LONGEST = 60  # characters of a label made of flags


def set_labels(configurations, labels):
    """Label each configuration by the flags that differ, or by --labels, names joined by commas.

    A position encoding is written as its name alone. A configuration that its flags do not tell
    from the others is labelled by its folder, and so are all of them if the flags of one would take
    more than LONGEST characters. Raises UserError for a wrong number of labels.
    """
    named, folders = differing_flags(configurations), folder_names(configurations)
    if max(map(len, named)) > LONGEST and len(set(folders)) == len(folders):
        named = folders
        if not labels:
            print("note: rows are named after folders, since many flags differ; see --labels")
    for configuration, name, folder in zip(configurations, named, folders):
        configuration.label = name if name and named.count(name) == 1 else folder
    if labels:
        chosen = [text.strip() for text in labels.split(",")]
        problem = (
            f"--labels {labels}: give one name for each configuration, all different: "
            + "; ".join(c.label for c in configurations)
        )
        require((all(chosen) and len(chosen) == len(configurations) == len(set(chosen)), problem))
        for configuration, text in zip(configurations, chosen):
            flags = configuration.label
            configuration.label = text
            print(printable(f"label {text}: {flags}"))


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
    if value == "" or (name == "window" and value == 0):
        value = "scratch" if name in ("encoder", "init_from", "init") else "none"
    return f"{name.replace('_', '-')}={value}"
