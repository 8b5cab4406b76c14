"""The report of a classifier: the rows it reads, its accuracies, its answers and their figures."""

import math

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

from data.batching import share_unknown
from data.corpus import PAIR, sentences_of
from data.files import printable
from data.labelled import by_seen
from data.tokenizer import EOS
from lab.figures import WIDTH, Panel, choose_ink, curves, new_figure, save, styled
from lab.predictions import FILE, Predictions, write_rows, yes_or_no

MOST_NUMBERS = 40  # classes whose names and numbers fit into a confusion matrix
Z95 = 1.96  # half a 95% interval, in standard deviations of a normal distribution


def say_rows(run, corpus, sets, seen, note, model, source):
    """Print how many rows a classifier reads, and how much of them is truncated or unknown.

    sets: {"train", "valid", "test": Rows}. seen, note: see `Corpus.split`."""
    if note:
        run.say(note)
    sizes = (
        f"{len(sets['train']):,} training rows, {len(sets['valid']):,} for validation, "
        f"{len(sets['test']):,} test rows"
    )
    verb = "were" if note else "are"  # --split removed them
    known = f"{int(seen.sum()):,} of them {verb} also in the training files"
    run.say_start(f"{corpus.name}: {sizes} ({known})", model)
    is_pair = PAIR in corpus.rows[0][1]
    for name, rows in sets.items():
        size = f"{len(rows):,} {name}"
        n_lost = sum(EOS not in ids for ids in rows.sequences)
        if is_pair and n_lost:
            run.say(f"  note: {n_lost} of {size} pairs lost their second sentence")
        if rows.n_long:
            words = f"{rows.n_long} of {size} sentences are longer than --block-size"
            run.say(f"  {words} {model.body.config.block_size} and were truncated")
    for name in ("train", "test"):
        run.say_unknown(name, share_unknown(sets[name].sequences), source)


def format_metrics(numbers, names):
    """Return the accuracies or correlations of the named sets as text."""
    if "pearson/test" in numbers:
        parts = [f"{name} {numbers[f'pearson/{name}']:.3f}" for name in names]
        return "pearson  " + "  ".join(parts)
    parts = [f"{name} {numbers[f'accuracy/{name}']:6.1%}" for name in names]
    return "accuracy  " + "  ".join(parts) + by_seen(numbers)


def measure_new_pairs(run, corpus, logits, labels):
    """Return {"accuracy/new": share} of the test pairs whose sentences are both new, or {} if there
    are none. logits (N, n_class) and labels (N,): of the test rows."""
    known = set(sentences_of(corpus.rows))
    is_new = torch.tensor([known.isdisjoint(text.split(PAIR)) for _, text in corpus.test_rows])
    if not is_new.any():
        return {}
    right = logits[is_new].argmax(-1) == labels[is_new]
    share = right.double().mean().item()
    run.say(f"{share:.1%} of the {len(right):,} test rows whose sentences both are new")
    return {"accuracy/new": share}


def beside_majority(accuracy, labels, classes):
    """Return in words what the most frequent class would get as every answer, and whether the
    accuracy is lower. labels (N,): of the test rows."""
    counts = labels.bincount()
    share = counts.max().item() / len(labels)
    always = f"always answering {printable(classes[counts.argmax()], 20)}"
    if accuracy < share:
        return f"below the {share:.1%} of {always}"
    return f"{always} gets {share:.1%}"


def report_classes(run, corpus, logits, seen, result, model, title):
    """Write predictions.tsv and result.json, print the scores of each class, draw confusion.png.

    logits (N, n_class), seen (N,): of the test rows. result: entries of result.json. title: of the
    figure."""
    predictions = Predictions(corpus.test_rows, corpus.classes, logits, seen)
    predictions.write(run.folder)
    counts = {"rows/test": len(seen), "classes": corpus.classes, "confusion": predictions.confusion}
    floor = {f"floor/{name}": best for name, best in corpus.floor.items() if name in result}
    run.finish(counts | result | predictions.scores() | floor, model)
    for line in predictions.describe():
        run.say(line)
    save(draw_confusion(predictions.confusion, corpus.classes, title), run.folder / "confusion.png")


def report_scores(run, corpus, answers, seen, result, model, title):
    """Write predictions.tsv, result.json and scatter.png of scores.

    answers (N, 1), seen (N,): of the test rows. result, title: see `report_classes`."""
    scores = [score for score, _ in corpus.test_rows]
    texts = [text for _, text in corpus.test_rows]
    answers = answers[:, 0].tolist()
    gold = [str(score) for score in scores]
    predicted = [f"{answer:.4f}" for answer in answers]
    header = ("text", "gold", "predicted", "seen")
    write_rows(run.folder / FILE, header, zip(texts, gold, predicted, yes_or_no(seen)))
    run.finish({"rows/test": len(scores)} | result, model)
    save(draw_scatter(scores, answers, title), run.folder / "scatter.png")


def measure_scores(run, corpus, answers):
    """Return {"pearson/test": r, "pearson/test/low": ..., "pearson/test/high": ..., ...} of the
    answers (N, 1) to the test rows, with 95% intervals; also "spearman" and "squared_error".

    The intervals are Fisher's (z = atanh(r)), of ranks with the variance of Bonett and Wright
    (2000)."""
    scores = np.array([score for score, _ in corpus.test_rows])
    answers = answers[:, 0].double().numpy()  # (N,)
    numbers = {}
    for name, compute in ("pearson", pearsonr), ("spearman", spearmanr):
        r = np.nan_to_num(compute(answers, scores).statistic)  # NaN: all answers are equal
        r = r.clip(-1 + 1e-9, 1 - 1e-9).item()  # atanh(1) is infinite
        variance = 1.0
        if name == "spearman":
            variance = 1 + r**2 / 2
        half = Z95 * math.sqrt(variance / max(1, len(scores) - 3))
        low = math.tanh(math.atanh(r) - half)
        high = math.tanh(math.atanh(r) + half)
        numbers[f"{name}/test"] = r
        numbers[f"{name}/test/low"] = low
        numbers[f"{name}/test/high"] = high
        run.say(f"{name} {r:.3f} (95%: {low:.3f} to {high:.3f})")
    numbers["squared_error/test"] = np.mean((answers - scores) ** 2).item()
    return numbers


@styled(grid=False)
def draw_confusion(counts, classes, title):
    """Return a figure of counts[i][j], the number of rows of class i that were given class j."""
    counts = np.array(counts)
    n_class = len(classes)
    is_small = n_class <= MOST_NUMBERS
    cell = min(0.8, max(0.3, (WIDTH - 1.6) / n_class))  # inches
    if not is_small:
        cell = 12 / n_class  # all on a page, without numbers
    points = min(9, 24 * cell)  # size of the numbers; four digits fit into a cell
    size = (cell * n_class + 1.6, cell * n_class + 0.8)
    figure, axis = new_figure(figsize=size)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    picture = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if is_small:
        for i, j in np.ndindex(n_class, n_class):
            color = choose_ink(picture.to_rgba(shares[i, j]))
            axis.text(j, i, counts[i, j], ha="center", va="center", color=color, size=points)
    named = range(0, n_class, math.ceil(n_class / MOST_NUMBERS))  # every n-th class
    names = [printable(classes[i], 30) for i in named]
    axis.set_xticks(named, names, rotation=40, ha="right")
    axis.set_yticks(named, names)
    axis.set(xlabel="predicted class", ylabel="true class\n(color: share of class)")
    right = counts.trace() / counts.sum()
    axis.set_title(f"{title}\n{counts.sum():,} test rows: {right:.1%} correct")
    return figure


@styled()
def draw_scatter(scores, answers, title):
    """Return a figure of the predicted scores over the true ones."""
    figure, axis = new_figure(figsize=(4.2, 4))
    axis.plot(scores, answers, ".", markersize=3, alpha=0.3)
    axis.set(xlabel="score", ylabel="predicted score", title=title)
    return figure


def draw_search(run, metric, dashed, title):
    """Return a figure of the accuracies or correlations of the search, and of its losses. dashed:
    {label: value} of dashed lines beside the former."""
    names = ("train", "valid", "test", "seen", "unseen")
    metrics = run.logged({name: f"{metric}/{name}" for name in names})
    losses = run.logged({name: f"loss/{name}" for name in ("train", "valid")})
    panels = [Panel(title, metric, metrics, dashed), Panel("", "loss (nats)", losses)]
    return curves(panels, "epoch of the search")
