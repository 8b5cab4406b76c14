"""The captions of compare.py: what is compared, and how to read the numbers."""

from types import SimpleNamespace

from lab.comparison.finished import KINDS
from lab.figures import name_positions

TRAINING = ("block_size", "batch_size", "lr", "steps", "epochs")


def spread_and_best(configurations, entries):
    """Return what a caption says of ± and of the bold cells among the entries of a table."""
    best, spread = "", "a single run"
    if sum(entry.ranked for entry in entries) > 1:
        best = " The best on held-out and test data is bold, even if the difference may be chance."
        spread = "single runs, so differences may come from the seed"
    if any(len(c.runs) > 1 for c in configurations):
        spread = "mean ± sample standard deviation over the seeds given"
    return f"{spread}.{best}"


def caption(configurations, others):
    first = configurations[0].runs[0]
    about = spread_and_best(configurations, configurations + others)
    equal, unequal = [], []
    flags = [c.runs[0].flags for c in configurations]
    for name in ("n_layer", "n_head", "n_embd", *TRAINING):
        values = sorted({each[name] for each in flags if name in each})
        found = f"{name.replace('_', '-')} {', '.join(map(str, values))}"
        if len(values) == 1 and all(name in each for each in flags):
            equal.append(found)
        elif len(values) > 1 and name in TRAINING:
            unequal.append(found)
    seen = ""
    if any("accuracy/seen" in c.summary() for c in configurations):
        clean = [each.get("split") == "clean" for each in flags]
        fate = "were removed from training" if all(clean) else "are partly memorised"
        unless = " without --split clean" * (any(clean) and not all(clean))
        seen = f" Seen test sentences also appear in the training files and {fate}{unless}."
    rows = {run.n_row for c in configurations for run in c.runs}
    n_row = f" Test rows: {first.n_row:,}." if len(rows) == 1 and first.n_row else ""
    alike = f" Settings: {', '.join(equal)}." if equal else ""
    alike += f" Trained differently: {'; '.join(unequal)}." if unequal else ""
    note = KINDS[first.kind].note
    return f"{subject(configurations)}: {about} {note}{seen}{n_row}{alike}"


def subject(configurations):
    """Return the kind of model and its data, with the position encoding and window all share."""
    first = configurations[0].runs[0]
    flags = [c.runs[0].flags for c in configurations]
    frozen = all(f.get("tune") == "frozen" and (f.get("encoder") or f.get("init")) for f in flags)
    text = KINDS[first.kind].name + " with frozen features" * bool(frozen) + f" on {first.data}"
    each = ({f.get(name) for f in flags} for name in ("pos", "window"))
    pos, window = (values.pop() if len(values) == 1 else None for values in each)
    if pos:
        return f"{text}, {name_positions(SimpleNamespace(pos=pos, window=window))}"
    return f"{text}, window {window}" if window else text
