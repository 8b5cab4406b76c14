"""Try a trained model on your own sentences: continue, fill [MASK], classify, translate.

    python sample.py out/lm-speeches-alibi-0 --text "My fellow" --tokens 40
    python sample.py out/lm-copy-alibi-0 --text "a b c ="
    python sample.py out/mlm-speeches-alibi-0 --text "We will [MASK] the American people."
    python sample.py out/classifier-speeches-alibi-0 --file rows.tsv      a .tsv of label and text
    python sample.py out/thread-toy-learned-0 --text POST --text REPLY --text "A [MASK] comment."

--file reads one text per line ("-": from standard input), or rows: from a .tsv, a .csv or a .txt
with tabs, labelled or with a header that names the texts. It writes all answers into the run's
answers.tsv, where further columns are kept. The texts of a thread end with the comment to fill.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseAppendAction

from data import find_task
from data.corpora.speeches import SPEAKERS
from data.files import normalize_characters, read_non_empty_lines
from data.readers import first_cells
from data.tables import find_columns, parse_names, read_rows
from data.tokenizer import append_word, is_word_level
from lab import load_run
from lab.flags import File, Group, RunFolder, Texts, main, require
from lab.load import read_config
from lab.machine import set_up_device
from lab.predictions import write_predictions, write_rows


@dataclass
class Flags(Group):
    run: Positional[RunFolder]  # run folder of a training script
    text: UseAppendAction[Texts] = field(default_factory=list)  # one or more to answer
    file: File = ""  # more texts, one per line, or a table of rows; -: standard input
    tokens: int = 40  # write at most this many tokens
    samples: int = 3  # continuations or translations to draw
    temperature: float = 0.8  # below 1: more likely words; 0: the most likely
    top_k: int = 0  # words to choose from; 0: 10 for a mask, otherwise 50
    seed: int = 0  # seed of the sampling
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # where to compute
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores


@dataclass
class Inputs:
    """The texts of --text and --file."""

    texts: list
    labels: list | None = None  # index of the class of each text, if the file has labels
    columns: dict = field(default_factory=dict)  # further columns of the file, {name: cells}


def sample(flags):
    width = read_config(flags.run)["model"]["n_embd"]
    device = set_up_device(flags.device, flags.threads, flags.seed, width)
    run = load_run(flags.run, device=device)
    has_input = flags.text or flags.file or run.kind == "lm"
    require(has_input, "--text: give a text, or a --file of texts")
    inputs = read_inputs(flags, run)
    if run.kind == "classifier":
        classify_texts(run, inputs, flags)
    else:
        answer_texts(run, inputs, flags)
    if flags.file:
        print(f"table of the answers: {table_of(run)}")


def table_of(run):
    """Return the path of the table of all answers."""
    return run.folder / "answers.tsv"


def read_inputs(flags, run):
    """Return the Inputs of the flags. Raises UserError for a file that cannot be read."""
    texts = [normalize_characters(text) for text in chain(*flags.text)]
    if not flags.file:
        return Inputs(texts)
    classes = run.config.get("classes", [])
    names = {name: name for name in classes}  # label in the file: class
    for label, speaker in SPEAKERS.items():  # 0, 1 and 2: the assignment's speakers
        if speaker in classes:
            names.setdefault(label, speaker)
    columns = run.config["flags"].get("columns", "")
    if not is_table(flags.file, names, columns):
        return Inputs(texts + read_non_empty_lines(flags.file))

    rows = read_rows(flags.file, set(names) or None, wanted="", columns=columns)
    inputs = Inputs(texts + [row["text"] for row in rows])
    if names and not texts and "label" in rows[0]:
        inputs.labels = [classes.index(names[row["label"]]) for row in rows]
    for name in rows[0]["others"]:
        without = [""] * len(texts)  # the texts of --text have no such column
        inputs.columns[name] = without + [row["others"][name] for row in rows]
    return inputs


def is_table(path, labels, columns):
    """Return whether a file holds rows: a .tsv, a .csv, or one whose first line has tabs and begins
    with one of the labels, or names a column of texts. columns: see `read_rows`."""
    if Path(path).suffix.lower() in (".tsv", ".csv"):
        return True
    if path == "-":
        return False
    cells = first_cells(path)
    is_row = cells[0] in labels
    is_header = "text" in find_columns(cells, parse_names(columns, "label"))
    return len(cells) > 1 and (is_row or is_header)


def classify_texts(run, inputs, flags):
    """Print the probability of each class, or the score; with --file, write a table of them."""
    texts = inputs.texts
    classes = run.config.get("classes", [])
    answers = run.classify(*texts)  # of each text {class: probability}, likeliest first
    for text, shares in zip(texts, answers):
        for name, share in shares.items():
            number = f"{share:6.1%}" if classes else f"{share:.3f}"
            if len(texts) == 1:
                print(f"{number}  {name}")
            else:
                print(f"{number}  {name}  {text}")
                break  # of several texts, print only the likeliest class
    if inputs.labels:
        right = 0
        for shares, label in zip(answers, inputs.labels):
            right += next(iter(shares)) == classes[label]
        accuracy = right / len(texts)
        print(f"accuracy {accuracy:.1%} on {len(texts):,} rows, seen ones included")
    if flags.file:
        names = classes or ["score"]
        table = []  # (N, n_class)
        for shares in answers:
            table.append([shares[name] for name in names])
        write_predictions(
            table_of(run), texts, table, names, gold=inputs.labels, more=inputs.columns
        )


def answer_texts(run, inputs, flags):
    """Print the texts continued, filled or translated; with --file, write a table of them."""
    n = 0
    if run.kind == "thread":
        n = len(inputs.texts) - 1  # the texts before the one to fill are those that it answers
    above = inputs.texts[:n]
    texts = inputs.texts[n:] or [""]
    rows = []
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            print(f"\ntext {number}: {text}")
        if run.kind in ("lm", "seq2seq"):
            answers = write_answers(run, text, flags)
        else:
            answers = fill_masks(run, [*above, text], flags)
        rows.append([text, *answers])
    if flags.file:
        header = [*inputs.columns, "text"]
        header += [f"answer {i}" for i in range(1, len(rows[0]))]
        cells = []
        for i, row in enumerate(rows, n):
            kept = [column[i] for column in inputs.columns.values()]
            cells.append(kept + row)
        write_rows(table_of(run), header, cells)


def write_answers(run, text, flags):
    """Print the text continued, filled or translated: the likeliest way, and samples. Return these
    texts. A prompt of a task gets the likeliest answer, as long as the right one."""
    task = find_task(run.config["flags"].get("data"))
    if task:
        right = task.solve(text)  # words
        (line,) = run.sample(text, tokens=len(right), temperature=0)
        verdict = "right"
        if line.split()[-len(right) :] != right:
            verdict = f"wrong: {' '.join(right)} is right"
        print(f"--- answer, {verdict}\n{line}")
        return [line]
    options = dict(tokens=flags.tokens, top_k=flags.top_k or 50, seed=flags.seed)
    answers = {}
    if run.kind == "seq2seq" or not flags.temperature:
        (likeliest,) = run.sample(text, temperature=0, **options)
        answers["most likely words"] = likeliest
    if flags.temperature:
        drawn = run.sample(text, flags.samples, temperature=flags.temperature, **options)
        for i, sampled in enumerate(drawn, 1):
            answers[f"sample {i}"] = sampled
    for name, written in answers.items():
        print(f"--- {name}\n{written}")
    return list(answers.values())


def fill_masks(run, texts, flags):
    """Print the best words for each mask, then the last text with the best one in each. Return
    this text in a list. texts: those above it in a thread, and the text to fill."""
    masks = run.fill(*texts, n=flags.top_k or 10)  # of each [(word, probability)], best first
    for number, words in enumerate(masks, 1):
        print(f"mask {number}")
        for word, share in words:
            print(f"  {share:6.1%}  {word}")
    best = [words[0][0].replace("␣", " ") for words in masks]
    filled, *parts = re.split(r"\s*\[MASK\]", texts[-1].strip())
    for word, part in zip(best, parts):
        if not is_word_level(run.tokenizer):  # pieces bring spaces
            filled += word + part
            continue
        filled = append_word(filled, word)
        if part.startswith(" "):
            filled = append_word(filled, part.lstrip())
        else:
            filled += part
    filled = filled.strip()
    print(filled)
    return [filled]


if __name__ == "__main__":
    main(sample, Flags)
