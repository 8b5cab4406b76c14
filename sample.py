"""Try a trained model on your own sentences: continue, fill [MASK], classify, translate.

    python sample.py out/lm-speeches-alibi-0 --text "My fellow" --tokens 40
    python sample.py out/mlm-speeches-alibi-0 --text "We will [MASK] the American people."
    python sample.py out/classifier-speeches-alibi-0 --text "Yes we can." --text "God bless."
    python sample.py out/classifier-speeches-alibi-0 --file rows.tsv      a .tsv of label and text
    python sample.py out/seq2seq-toy-rope-0 --text "We will [MASK] the people."
    python sample.py out/translate-toy-rope-0 --file sentences.txt
    python sample.py out/thread-toy-learned-0 --text POST --text REPLY --text "A [MASK] comment."

--text may be repeated. --file reads one text per line, or labelled rows from a .tsv or .csv, and
writes all answers into a table. "-" is standard input. For a run of beyond.train_thread the texts
are one thread: the post, its replies, and last the comment to fill.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from data.corpora.rows import read_rows
from data.corpora.speeches import SPEAKERS
from data.corpus import normalize
from lab import load_run
from lab.command import main
from lab.errors import require
from lab.flags import flag, typed
from lab.inside.texts import encode, read_file
from lab.machine import set_up_device
from lab.predictions import write_predictions, write_rows


@dataclass
class Flags:
    run: str = flag("", "run folder of a train_*.py script", positional=True)
    text: list[str] = flag(
        (),
        "the text to continue, fill, classify or translate; may be repeated (thread runs: "
        "the post, replies, last the comment to fill)",
    )
    file: str = flag(
        "", "file of more texts, one per line, or of labelled rows (.tsv, .csv); -: standard input"
    )
    table: str = flag(
        "", "file for all answers", shown="answers.tsv in the run folder, with --file"
    )
    tokens: int = flag(40, "decoders: write at most this many tokens", at_least=1, at_most=100_000)
    samples: int = flag(3, "continuations or translations to draw", at_least=1, at_most=10_000)
    temperature: float = flag(0.8, "below 1: more likely words; 0: the most likely", at_least=0)
    top_k: int = flag(None, "words to choose from", shown="10 for a mask, otherwise 50", at_least=1)
    seed: int = flag(0, "seed of the sampling")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def sample(flags):
    run = load_run(flags.run, device=set_up_device(flags))
    texts, labels = read_texts(flags, run)
    above = texts[:-1] if run.kind == "thread" else []  # ancestors of the text to fill
    texts = texts[len(above) :]
    for text in texts:
        encode(run, text)  # raises UserError before the first answer
    table = Path(flags.table or run.folder / "answers.tsv") if flags.file or flags.table else None
    fits = not table or table.parent.is_dir() and not table.is_dir()
    require((fits, f"--table {table}: give a file, in a folder that exists"))
    unused = [] if run.kind in ("lm", "seq2seq") else ["tokens", "samples", "temperature"]
    unused += ["top_k"] if run.kind == "classifier" else []
    asked = typed(flags, *unused)
    require((not asked, f"{asked}: {run.folder} writes no text; leave that out"))
    if run.kind == "classifier" and table:
        classify_all(run, texts, labels, table)
        return
    answers = []
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            print("\n" * (number > 1) + f"text {number}: {text}")
        if run.kind in ("lm", "seq2seq"):
            answers.append(show_written(run, text, flags))
        elif run.kind == "classifier":
            for label, share in run.classify(text)[0].items():
                print(f"{share:6.1%}  {label}")
        else:
            answers.append(show_fillings(run, [*above, text], flags.top_k or 10))
    if table:
        header = "text", *(f"answer {i + 1}" for i in range(len(answers[0])))
        rows = [map(normalize, (text, *written)) for text, written in zip(texts, answers)]
        write_rows(table, header, rows)
        print(f"table of the answers: {table}")


def read_texts(flags, run):
    """Return the texts of --text and --file, and the classes of labelled rows, else None.

    Raises DataError for labels that are not classes of the run. The assignment's labels 0, 1 and 2
    stand for the speakers.
    """
    empty = run.kind != "lm" and not flags.text and not flags.file  # a decoder needs none
    require((not empty, "--text: give a text, or a file of texts with --file"))
    if Path(flags.file).suffix.lower() not in (".tsv", ".csv"):
        return [*flags.text, *(read_file(flags.file) if flags.file else [])] or [""], None
    classes = run.config["classes"] if run.kind == "classifier" else []
    names = {label: name for label, name in SPEAKERS.items() if name in classes}
    names |= {name: name for name in classes}
    rows = read_rows(flags.file, set(names) if names else None)
    texts = [*flags.text, *(text for _, text in rows)]
    return texts, [names[label] for label, _ in rows] if names and not flags.text else None


def classify_all(run, texts, labels, table):
    """Print the likeliest class of each text and write all probabilities into a table."""
    answers, classes = run.classify(*texts), run.config["classes"]
    width = max(map(len, classes))
    for text, answer in zip(texts, answers):
        label, share = next(iter(answer.items()))
        print(f"{label:<{width}}  {share:6.1%}  {text}")
    gold = labels and [classes.index(label) for label in labels]
    write_predictions(table, texts, [[a[name] for name in classes] for a in answers], classes, gold)
    if labels:
        right = sum(next(iter(answer)) == label for answer, label in zip(answers, labels))
        share = f"accuracy {right / len(texts):.1%} on {len(texts):,} labelled rows"
        print(f"{share}, including any that the run was trained on")
    print(f"table of the answers: {table}")


def show_written(run, text, flags):
    """Print the text continued, filled or translated, and return all answers: first the likeliest
    (of a decoder only at temperature 0), then the samples."""
    how = flags.samples, flags.tokens, flags.temperature, flags.top_k or 50, flags.seed
    likeliest = run.kind == "seq2seq" or not flags.temperature
    first = run.sample(text, tokens=flags.tokens, temperature=0) if likeliest else []
    samples = run.sample(text, *how) if flags.temperature else []
    names = ["most likely words"] * len(first) + [f"sample {i + 1}" for i in range(len(samples))]
    for name, answer in zip(names, first + samples):
        print(f"--- {name}\n{answer}")
    return first + samples


def show_fillings(run, texts, n):
    """Print a table of words for each mask, then the last text with the best ones. Return it."""
    fillings = run.fill(*texts, n=n)
    for number, candidates in enumerate(fillings, 1):
        print(f"mask {number}")
        for word, share in candidates:
            print(f"  {share:6.1%}  {word}")
    best = iter(candidates[0][0].replace("␣", " ") for candidates in fillings)
    shown, _ = encode(run, texts[-1])  # without the spaces that BPE pieces bring
    filled = re.sub(r"\[MASK\]", lambda _: next(best), shown).strip()
    print(filled)
    return [filled]


if __name__ == "__main__":
    main(sample, Flags, __doc__)
