"""Print and draw the parts that all training scripts share."""

from typing import NamedTuple

from lab import figures
from lab.parameters import count_parameters
from lab.predictions import Predictions
from lab.records import read_metrics


def say_start(run, what, model):
    """Print the data (in the script's words), and the vocabulary, size and device of the model."""
    config, total = model.body.config, count_parameters(model)["total"]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    of_them = f", {trained:,} of them trained" if trained < total else ""
    run.say(
        f"{what}, {config.vocab_size:,} entries in the vocabulary; "
        f"{total:,} parameters{of_them}, pos={config.pos}, on {run.device}"
    )


def say_unknown(run, name, share, source=None):
    """Print a note if the vocabulary lacks over a tenth of the words of a set. source: its run."""
    vocabulary = "the vocabulary; try --tokenizer bpe"
    if source:
        vocabulary = f"{source.folder}; pretrain it on text of the same kind"
    if share > 0.1:
        run.say(f"  note: {share:.0%} of the {name} words are unknown to {vocabulary}")


def heading(run, title):
    """Return a title below the run's name, for the first panel of a figure."""
    return f"{run.folder.name}\n{title}"


class Curves(NamedTuple):
    """A panel of curve.png."""

    title: str
    ylabel: str
    names: dict  # {label: name in metrics.jsonl}
    floors: dict = {}  # {label: value}
    log: bool = False  # a logarithmic axis


def draw_curve(run, panels, xlabel="step"):
    """Draw logged numbers over steps as curve.png. panels: a list of Curves."""
    lines = read_metrics(run.folder)
    drawn = []
    for title, ylabel, names, floors, log in panels:
        shown = {}
        for label, name in names.items():
            found = [line for line in lines if name in line]
            if found:
                shown[label] = [line["step"] for line in found], [line[name] for line in found]
        above = title if drawn else heading(run, title)
        drawn.append((above, ylabel, shown, floors, log))
    figures.save(figures.curves(drawn, xlabel), run.folder / "curve.png")


def report_predictions(run, corpus, title, logits, seen, result, model):
    """Write predictions.tsv, result.json and confusion.png, and print the scores of each class and
    the most confident errors. title: of the figure, below the run's name. logits (N, n_class),
    seen (N,): of the test rows."""
    test = Predictions(corpus.test_rows, corpus.classes, logits, seen)
    test.write(run.folder)
    about = {"rows/test": len(test.rows), "classes": corpus.classes, "confusion": test.confusion}
    floor = {f"floor/{name}": value for name, value in corpus.floor.items() if name in result}
    run.finish(about | result | test.scores() | floor, model)
    drawn = figures.confusion(test.confusion, corpus.classes, heading(run, title))
    figures.save(drawn, run.folder / "confusion.png")
    for line in test.describe_scores() + test.describe_errors():
        run.say(line)
    if getattr(run.flags, "refit", False) and run.is_behind(final := result["accuracy/train"]):
        shares = f"{final:.1%} of the training rows right, that of the search "
        shares += f"{run.accuracy_of_search():.1%}"
        run.say(f"note: the final model gets only {shares}; to keep the latter, add --no-refit")


def above_floor(result, key):
    """Return in words how far a perplexity is above the best possible, "" if that is unknown."""
    if (floor := result.get(f"floor/{key}")) is None:
        return ""
    times = result[key] / floor
    far = f"{times - 1:.0%} above" if times < 10 else f"{times:.0f} times"
    return f" ({far} the best possible, {floor:.2f})"
