"""Measure masked words on batches whose masks never change, and report a classifier's answers."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import pearsonr, spearmanr

from data.batching import send, send_all, send_mask, share_unknown
from data.corpus import PAIR
from data.labelled import by_seen
from data.tokenizer import EOS
from lab import dist
from lab.figures import new_figure, save, styled
from lab.flags import require
from lab.machine import autocast
from lab.predictions import FILE, Predictions, write_rows
from lab.sources import say_unknown

ROWS = 4096  # tokens whose logits are in memory at once


@torch.no_grad()
def measure_masked(model, batches, device, dtype):
    """Return (nats, hits, count), summed over all tokens to predict. Several processes share the
    batches of inputs, mask, labels (B, T), and what else the body reads {name: (B, ...)}."""
    model.eval()
    sums, count = [torch.zeros(2)], 0  # nats and hits of each batch
    for inputs, mask, labels, more in dist.my_share(batches):
        picked = (labels.flatten() != -100).nonzero().squeeze(1)  # (N,), on the CPU: no GPU sync
        targets = send(labels.flatten()[picked], device)
        read = send_all({"idx": inputs, "picked": picked, **more}, device)
        with autocast(dtype, device):
            h = model.body(mask=send_mask(mask, device), **read)  # (N, C)
            for part, target in zip(h.split(ROWS), targets.split(ROWS)):
                logits = model.head(part).float()  # (n, V)
                nats = F.cross_entropy(logits, target, reduction="sum")
                sums.append(torch.stack([nats, (logits.argmax(-1) == target).sum()]))
        count += len(picked)
    model.train()
    nats, hits = sum(part.cpu().double() for part in sums)  # only here the CPU waits for a GPU
    return dist.all_sum(torch.stack([nats, hits, nats.new_tensor(count)])).tolist()


def require_targets(batches, what):
    """Raise UserError, beginning with `what`, if the batches have no token to predict."""
    found = any((labels != -100).any() for _, _, labels, _ in batches)
    require(found, f"{what} is in the vocabulary; give a larger --vocab-size or other data")


def say_rows(run, corpus, sets, seen, note, model, source):
    """Print what a classifier reads: the number of Rows {set: ...}, and how much of them was
    truncated or is unknown. seen, note: see `Corpus.split`."""
    if note:
        run.say(note)
    named = {"train": "training rows", "valid": "for validation", "test": "test rows"}
    sizes = ", ".join(f"{len(rows):,} {named[name]}" for name, rows in sets.items())
    were = f"{int(seen.sum()):,} of them {'were' if note else 'are'} also in the training files"
    run.say_start(f"{corpus.name}: {sizes} ({were})", model)
    for name, rows in sets.items():
        lost = sum(EOS not in ids for ids in rows.sequences)
        if lost and PAIR in corpus.rows[0][1]:
            run.say(f"  note: {lost} of {len(rows):,} {name} pairs lost their second sentence")
        if rows.n_long:
            long = f"{rows.n_long} of {len(rows):,} {name} sentences are longer than --block-size"
            run.say(f"  {long} {model.body.config.block_size} and were truncated")
    for name in ("train", "test"):
        say_unknown(run, name, share_unknown(sets[name].sequences), source)


def in_words(numbers, sets):
    """Return the accuracies or correlations on all sets in words."""
    if "pearson/test" in numbers:
        return "pearson  " + "  ".join(f"{name} {numbers[f'pearson/{name}']:.3f}" for name in sets)
    shares = "  ".join(f"{name} {numbers[f'accuracy/{name}']:6.1%}" for name in sets)
    return f"accuracy  {shares}{by_seen(numbers)}"


def report_predictions(run, corpus, title, logits, seen, result, model):
    """Write predictions.tsv, result.json and confusion.png, and print the scores of each class.
    title: of the figure, below the run's name. logits (N, n_class), seen (N,): of the test rows."""
    test = Predictions(corpus.test_rows, corpus.classes, logits, seen)
    test.write(run.folder)
    about = {"rows/test": len(seen), "classes": corpus.classes, "confusion": test.confusion}
    floor = {f"floor/{name}": value for name, value in corpus.floor.items() if name in result}
    run.finish(about | result | test.scores() | floor, model)
    drawn = confusion(test.confusion, corpus.classes, f"{run.folder.name}\n{title}")
    save(drawn, run.folder / "confusion.png")
    for line in test.describe():
        run.say(line)


def report_scores(run, corpus, title, answers, seen, result, model):
    """As `report_predictions` for scores, answers (N, 1): correlations with 95% intervals, by
    Fisher's z (of ranks with the variance of Bonett and Wright 2000), and scatter.png."""
    scores, texts = zip(*corpus.test_rows)
    answers, n, z = answers[:, 0].tolist(), len(scores), 1.96
    for name, compute in ("pearson", pearsonr), ("spearman", spearmanr):
        r = np.nan_to_num(compute(answers, scores).statistic).clip(-1 + 1e-9, 1 - 1e-9).item()
        half = z * math.sqrt((1 + r**2 / 2 if name == "spearman" else 1) / max(1, n - 3))
        low, high = (math.tanh(math.atanh(r) + side) for side in (-half, half))
        result |= {f"{name}/test": r, f"{name}/test/low": low, f"{name}/test/high": high}
        run.say(f"{name} {r:.3f} (95%: {low:.3f} to {high:.3f})")
    result["squared_error/test"] = float(np.mean((np.array(answers) - scores) ** 2))
    rows = zip(texts, map(str, scores), map("{:.4f}".format, answers), np.where(seen, "yes", "no"))
    write_rows(run.folder / FILE, ("text", "gold", "predicted", "seen"), rows)
    run.finish({"rows/test": n} | result, model)
    with styled():
        figure, axis = new_figure(figsize=(4.2, 4))
        axis.plot(scores, answers, ".", markersize=3, alpha=0.3)
        axis.set(xlabel="score", ylabel="predicted score", title=f"{run.folder.name}\n{title}")
    save(figure, run.folder / "scatter.png")


@styled(grid=False)
def confusion(counts, classes, title):
    """Return a figure of counts[i][j], the rows of class i that were given class j."""
    counts, n = np.array(counts), len(classes)
    cell = max(0.3, min(0.8, 6 / n))  # inches; many classes fit on a page
    figure, axis = new_figure(figsize=(cell * n + 1.6, cell * n + 0.8))
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.ndindex(n, n):
        color = "w" if shares[i, j] > 0.5 else "k"
        axis.text(j, i, counts[i, j], ha="center", va="center", color=color)
    axis.set_xticks(range(n), classes, rotation=40, ha="right")
    axis.set_yticks(range(n), classes)
    axis.set(xlabel="predicted class", ylabel="true class\n(color: share of class)")
    right = counts.trace() / counts.sum()
    axis.set_title(f"{title}\n{counts.sum():,} test rows: {right:.1%} correct")
    return figure
