"""The report of the assignment, as pieces of Markdown, from its finished runs.

Every section has a question, a table, what its numbers allow to conclude, and a figure. Long tables
and further figures are in the appendix.
"""

import math
import statistics

from lab import tables
from lab.comparison import lengths
from lab.comparison.mcnemar import LEVEL
from lab.figures import POSITION_NAMES, save
from lab.inside.heatmaps import draw_tables
from lab.predictions import FILE, read_predictions
from lab.records import read_config, read_record
from model import alibi_bias
from studies.assignment_appendix import appendix, attention
from studies.assignment_runs import (
    COMPARED,
    FORMS,
    LENGTHS,
    conclude,
    join,
    percent,
    signed,
    write_table,
)
from studies.report import literal, picture, read_table

LIKELIHOOD = "ALiBi, a decoder per class"
UNTRAINED = "ALiBi, encoder with random weights"
ABSENT = {
    "classifier": "Part 1, classification, is left out: the data have no labelled rows.",
    "lm": "Part 2, language modelling, is left out: the data have no texts to test on.",
}


def report_parts(runs):
    """Return the report, without its title, as pieces of Markdown."""
    rest = " Pictures of single models show seed 0." if runs.seeds > 1 else ""
    return [
        f"{runs.numbers}{rest} Each run has a folder: `config.json` holds its "
        "settings, `result.json` its command and results.",
        *(said for part, said in ABSENT.items() if part not in runs.parts),
        *(classification(runs) if "classifier" in runs.parts else []),
        *(frozen_encoder(runs) if "frozen" in runs.parts else []),
        *(language_model(runs) if "lm" in runs.parts else []),
        *alibi(runs),
        *attention(runs),
        *appendix(runs),
    ]


# ---------------------------------------------------------------------------- parts 1 and 2


def classification(runs):
    names = [literal(name, 40) for name in runs.corpus.classes]
    which = join(names, "or") if len(names) < 8 else f"one of {len(names)} classes"
    n, n_seen = len(runs.seen), sum(runs.seen)
    seen = f"{n_seen:,} also appear in the training rows, with their label"
    if runs.split == "clean":
        seen = f"{n_seen:,} were in the training rows before all test sentences were removed there"
    table, conclusion = accuracy(runs, "classifier", "accuracy", "jointly trained classifiers")
    return [
        "## Part 1: classification",
        f"Can a transformer tell the class of a sentence: {which}? An encoder and a classifier are "
        f"trained jointly on {len(runs.corpus.rows):,} rows. Of the {n:,} test rows, {seen} "
        "(seen). The best epoch is chosen on held-out training rows.",
        table,
        conclusion,
        picture(
            "compare-classifier/compare.png",
            f"Accuracy on {runs.data}. Lines: after each epoch of the search for the best epoch, "
            f"while some training rows are held out. Stars: the final models. {runs.lines}",
        ),
        class_scores(runs),
        picture(
            "classifier-alibi-0/confusion.png",
            f"Confusion matrix of the {n:,} test rows of {runs.data}: ALiBi, seed 0. Colors are "
            "shares of the true class.",
        ),
        *worst_errors(runs),
    ]


def accuracy(runs, part, name, what):
    """Return a table of the test accuracies of a part, and what can be concluded from it."""
    bayes = runs.baselines()
    shares = [p for p in ("test", "seen", "unseen") if f"accuracy/{p}" in bayes]

    def row(label, name):
        return [label, *(percent(runs.values(name, f"accuracy/{share}")) for share in shares)]

    rows = [row(POSITION_NAMES[pos], f"{part}-{pos}") for pos in COMPARED]
    others = {"untrained-alibi": UNTRAINED} if part == "frozen" else {}
    others |= {"likelihood-alibi": LIKELIHOOD}
    rows += [None, *(row(label, name) for name, label in others.items())]
    rows += [["naive Bayes", *(percent([bayes[f"accuracy/{share}"]]) for share in shares)]]
    header = ["model", *shares]
    seen = " Seen: also in the training files." if len(shares) > 1 else ""
    below = " Below the line: others, for comparison."
    caption = f"Accuracy (%) of {what} on the test rows of {runs.name}.{below}{seen} {runs.numbers}"

    shown, rows_are, n = runs.rows_that_count(), "test rows", len(runs.seen)
    if shown == "unseen":
        rows_are, n = "unseen test rows", n - sum(runs.seen)
    values = {
        POSITION_NAMES[pos]: [100 * a for a in runs.values(f"{part}-{pos}", f"accuracy/{shown}")]
        for pos in COMPARED
    }
    best = max(statistics.fmean(shares) for shares in values.values()) / 100
    error = 100 * math.sqrt(best * (1 - best) / n)

    def score(run):
        return percent(runs.values(f"{run}-alibi", f"accuracy/{shown}"))

    said = conclude(values, max, f"accuracy of the encodings on {rows_are}", "%")
    if part == "frozen":
        said += f" ALiBi has {score('frozen')}%, with random weights {score('untrained')}%."
    conclusion = (
        f"{said} With {n:,} {rows_are}, an accuracy of {best:.0%} also has a standard error of "
        f"{error:.1f} points from the choice of the rows. Two models choose the class that makes "
        f"a sentence likeliest: a decoder per class has {score('likelihood')}%, and naive Bayes, "
        f"which counts words, has {bayes[f'accuracy/{shown}']:.1%}.{compare_rows(runs, part)}"
    )
    return write_table(runs, name, header, rows, caption), conclusion


def compare_rows(runs, part):
    """Say how many encodings differ by McNemar's test, if compare.py could run it."""
    found = read_record(runs.out / f"compare-{part}" / "compare.json").get("mcnemar", [])
    pairs = [test["results"] for test in found if "naive" not in test["first"] + test["second"]]
    differ = [
        all(result["p"] < LEVEL for result in results)
        and len({result["only_first"] > result["only_second"] for result in results}) == 1
        for results in pairs
    ]
    if not pairs or runs.seeds == 1:  # one seed cannot tell encodings apart
        return ""
    seen = f" ({sum(runs.seen):,} of them seen)" if runs.rows_that_count() == "unseen" else ""
    return (
        f" By McNemar's test on all test rows{seen}, {sum(differ)} of {len(pairs)} pairs of "
        f"encodings differ significantly with every seed (p < {LEVEL}; see the appendix)."
    )


def class_scores(runs):
    """Return a table of the scores of each class that is true or predicted with every seed."""
    rows, results = [], runs.results("classifier-alibi")
    for name, counts in zip(results[0]["classes"], results[0]["confusion"]):
        if all(f"f1/{name}" in result for result in results):
            entries = [f"{score}/{name}" for score in ("precision", "recall", "f1")]
            cells = (percent(runs.values("classifier-alibi", entry)) for entry in entries)
            rows.append([name, *cells, f"{sum(counts):,}"])
    header = ["class", "precision (%)", "recall (%)", "F1 (%)", "rows"]
    caption = f"Scores of ALiBi for each class of the test rows of {runs.name}. {runs.numbers}"
    return write_table(runs, "classes", header, rows, caption)


def worst_errors(runs):
    """Return a table of the most confident errors, if there is a predictions.tsv."""
    folder = runs.out / "classifier-alibi-0"
    answers = read_predictions(folder) if (folder / FILE).exists() else []
    wrong = [answer for answer in answers if answer[1] != answer[2]]
    rows = [
        [literal(text, 150), literal(gold, 40), literal(predicted, 40), f"{share:.1%}"]
        for text, gold, predicted, share, _ in sorted(wrong, key=lambda a: -a[3])[:5]
    ]
    if not rows:
        return []
    table = tables.markdown(["text", "true", "predicted", "probability"], rows, left=3)
    link = f"[{FILE}]({folder.name}/{FILE})"
    return [
        f"{table}\n*The most confident errors on the test rows of {runs.data}: ALiBi, seed 0. All "
        f"rows are in {link}.*"
    ]


def frozen_encoder(runs):
    what = "classifiers on frozen encoders"
    table, conclusion = accuracy(runs, "frozen", "accuracy-frozen", what)
    read = " Pretraining may have read some test sentences, without labels."
    return [
        "### A frozen encoder, pretrained as a masked language model",
        "How much of this does an encoder know after only filling in masked words? It is "
        f"pretrained for {runs.settings('mlm-alibi')['steps']:,} steps on the text without labels, "
        "and then frozen. Only a classifier on its features is trained. For comparison, an "
        f"encoder with ALiBi keeps its random weights.{read if runs.split == 'full' else ''}",
        table,
        conclusion,
        picture(
            "compare-frozen/compare.png",
            f"Accuracy on {runs.data} of {what}. Lines: after each epoch of the search for the "
            f"best epoch. Stars: the final models. {runs.lines}",
        ),
    ]


def language_model(runs):
    tests, ngrams = runs.corpus.tests, runs.baselines()
    n_tokens, settings = runs.values("lm-alibi", "tokens/train")[0], runs.settings("lm-alibi")
    label = f"{read_config(runs.out / 'baselines')['flags']['order']}-gram"
    rows = [
        [
            POSITION_NAMES[pos],
            *(tables.spread(runs.values(f"lm-{pos}", f"perplexity/{t}")) for t in tests),
        ]
        for pos in COMPARED
    ]
    rows += [None, [label, *(tables.spread([ngrams[f"perplexity/{t}"]]) for t in tests)]]
    header = ["model", *tests]
    caption = f"Perplexity per token of the test sets of {runs.name}. {runs.numbers}"
    values = {POSITION_NAMES[pos]: runs.perplexities(pos) for pos in COMPARED}
    return [
        "## Part 2: causal language modelling",
        f"How well does a decoder predict the next word? It is trained on {n_tokens:,} tokens for "
        f"{settings['steps']:,} steps of {settings['batch_size']} blocks of "
        f"{settings['block_size']} tokens. Every token of a test set is predicted exactly once.",
        write_table(runs, "perplexity", header, rows, caption),
        f"{conclude(values, min, 'perplexity of the encodings (all test sets together)')} A "
        f"{label} model (modified Kneser-Ney), which counts words, has "
        f"{lengths.joint_perplexity(ngrams, tests):,.1f}.",
        picture(
            "compare-lm/compare.png",
            f"Perplexity of the training text and the test sets of {runs.data} during training. "
            f"Dashed: {label} model. {runs.lines}",
        ),
    ]


# ---------------------------------------------------------------------------- part 3


def alibi(runs):
    bias = picture(
        "maps-lm-alibi-0/positions-lm-alibi-0.png",
        "What ALiBi adds to the attention scores of the decoder, for each head. It is fixed, so it "
        "is the same with every seed.",
    )
    return [
        "## Part 3: ALiBi",
        "ALiBi adds no position vectors to the words. Each head subtracts its slope times the "
        "distance between query and key from the attention scores.",
        *([bias] if "lm" in runs.parts else []),
        *other_encodings(runs),
        *(longer_blocks(runs) if "lm" in runs.parts else []),
        *three_forms(runs),
    ]


def other_encodings(runs):
    """Compare ALiBi with each other encoding, seed by seed."""
    columns = []  # (heading, {pos: a value for each seed}, difference, 1 if higher is better)
    if "classifier" in runs.parts:
        share = runs.rows_that_count()
        values = {pos: runs.values(f"classifier-{pos}", f"accuracy/{share}") for pos in COMPARED}
        columns.append((("accuracy (points)", share), values, lambda a, b: 100 * (a - b), 1))
    if "lm" in runs.parts:
        values = {pos: runs.perplexities(pos) for pos in COMPARED}
        columns.append(("perplexity (%)", values, lambda a, b: 100 * (a / b - 1), -1))

    rows, gains = [], []
    for pos in (pos for pos in COMPARED if pos != "alibi"):
        rows.append([POSITION_NAMES[pos]])
        for _, values, subtract, sign in columns:
            differences = list(map(subtract, values["alibi"], values[pos]))
            rows[-1].append(signed(differences))
            gains.append([sign * difference for difference in differences])
    n_better = sum(statistics.fmean(gain) > 0 for gain in gains)
    conclusion = f"ALiBi is better in {n_better} of these {len(gains)} comparisons. "
    if runs.seeds == 1:
        conclusion += "With one seed, any of these differences may be due to the seed."
    else:
        always, never = sum(min(g) > 0 for g in gains), sum(max(g) < 0 for g in gains)
        conclusion += (
            f"All seeds agree that it is better in {always}, and that it is worse in {never}. By "
            f"chance, {runs.seeds} seeds agree in 1 of {2 ** (runs.seeds - 1)} comparisons."
        )
    which = "Perplexity: of all test sets together. " if "lm" in runs.parts else ""
    caption = (
        f"Difference between ALiBi and each other encoding on {runs.name}, of runs with the same "
        f"seed. {which}{runs.numbers}"
    )
    return [
        "### ALiBi and the other encodings",
        "Is ALiBi better than the other encodings, everything else being equal? Two runs with the "
        "same seed read the same batches, so they are compared seed by seed.",
        write_table(runs, "alibi", ["ALiBi minus", *(h for h, *_ in columns)], rows, caption),
        conclusion,
    ]


def longer_blocks(runs):
    """Compare perplexities in longer blocks than those of training."""
    T, longest = runs.settings("lm-alibi")["block_size"], LENGTHS[-1]
    stem, changes = f"compare-lm/{lengths.NAME}", []
    for pos in (pos for pos in COMPARED if pos != "learned"):
        pairs = zip(runs.perplexities(pos), runs.perplexities(pos, f"@{longest}"))
        change = signed([100 * (long / short - 1) for short, long in pairs])
        changes.append(f"{change}% with {POSITION_NAMES[pos]}")
    return [
        "### Train short, test long",
        f"Can a decoder read longer texts than the {T} tokens it was trained with? A longer "
        "block gives a word more context, which helps if the text continues. But words also stand "
        "at positions that training never reached.",
        f"{read_table(runs.out / f'{stem}.md').strip()} LaTeX: [{stem}.tex]({stem}.tex)",
        f"From {T} to {longest} tokens the perplexity changes by {join(changes)}. Learned "
        f"positions have no vector beyond the {T} of training.",
        picture(
            f"{stem}.png",
            f"Perplexity of each text of {runs.data} by the length of the blocks it is evaluated "
            f"in. {runs.lines}",
        ),
    ]


def three_forms(runs):
    """Compare the forms of ALiBi in small encoders, pretrained as masked language models."""
    settings, perplexities, rows = runs.settings("form-offset"), {}, []
    for form in FORMS:
        label = "no bias" if form == "nope" else form
        perplexities[label] = runs.values(f"form-{form}", "perplexity/valid")
        found = runs.values(f"form-{form}", "accuracy/valid")
        rows.append([label, tables.spread(perplexities[label]), percent(found)])
    header = ["form of ALiBi", "perplexity", "words found (%)"]
    caption = (
        "Masked words of held-out sentences, with three forms of ALiBi in an encoder and without "
        f"any bias (NoPE). Data: {runs.name}. {runs.numbers}"
    )
    return [
        "### Three forms in an encoder",
        "An encoder also sees the words after a query, and Press et al. (2022) do not say how "
        "to count the distance to them. The *symmetric* form counts both directions alike. In "
        "the *offset* form the future is half a token nearer. In the *one-sided* form half of "
        "the heads see only the past, and the others, with the same slopes, only the future. "
        f"The encoders have {settings['n_layer']} layers, {settings['n_head']} heads and "
        f"{settings['n_embd']} dimensions. They learn to fill in masked words, in "
        f"{settings['steps']:,} steps.",
        write_table(runs, "forms", header, rows, caption),
        conclude(perplexities, min, "masked-LM perplexity"),
        draw_forms(runs.out),
    ]


def draw_forms(out):
    """Draw the forms of ALiBi on eight tokens, where the differences can be seen."""
    panels = []
    for form in FORMS[:-1]:
        bias = alibi_bias(2, 8, form)[0]  # (T, T) of the first head
        panels.append((form, -bias / bias[1, 0], "query", "key"))
    save(draw_tables(panels, "ALiBi in an encoder", "bias / slope"), out / "alibi-forms.png")
    return picture(
        "alibi-forms.png",
        "What is added to the attention scores of eight tokens, in units of the head's slope. "
        "One-sided: a head that sees the past; the other half of the heads has the upper triangle.",
    )
