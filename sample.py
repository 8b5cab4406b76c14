"""Try a trained model on your own sentences: continue, fill [MASK], classify, translate.

    python sample.py out/lm-speeches-alibi-0 --text "My fellow" --tokens 40
    python sample.py out/lm-copy-alibi-0 --text "a b c ="
    python sample.py out/mlm-speeches-alibi-0 --text "We will [MASK] the American people."
    python sample.py out/classifier-speeches-alibi-0 --file rows.tsv      a .tsv of label and text
    python sample.py out/thread-toy-learned-0 --text POST --text REPLY --text "A [MASK] comment."

--file reads one text per line ("-": from standard input), or rows from a .tsv or .csv, labelled or
with a header that names the texts, and writes all answers into the run's answers.tsv, where further
columns are kept. The texts of a thread end with the comment to fill.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseAppendAction

from data.corpora.speeches import SPEAKERS
from data.files import clean, read_non_empty_lines
from data.labelled import read_rows
from data.text import find_task
from data.tokenizer import is_word_level
from lab import load_run
from lab.flags import Group, main, require
from lab.load import read_config
from lab.machine import set_up_device
from lab.predictions import write_predictions, write_rows


@dataclass
class Flags(Group):
    run: Positional[str]  # run folder of a training script
    text: UseAppendAction[list[str]] = field(default_factory=list)  # to answer; may be repeated
    file: str = ""  # more texts, one per line, or rows (.tsv, .csv); -: standard input
    tokens: int = 40  # write at most this many tokens
    samples: int = 3  # continuations or translations to draw
    temperature: float = 0.8  # below 1: more likely words; 0: the most likely
    top_k: int = 0  # words to choose from; 0: 10 for a mask, otherwise 50
    seed: int = 0  # seed of the sampling
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # where to compute
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores


def sample(flags):
    width = read_config(flags.run)["model"]["n_embd"]
    device = set_up_device(flags.device, flags.threads, flags.seed, width)
    run = load_run(flags.run, device=device)
    texts, labels, more = [*map(clean, flags.text)], None, {}
    classes = run.config.get("classes", [])
    require(texts or flags.file or run.kind == "lm", "--text: give a text, or a --file of texts")
    if Path(flags.file).suffix.lower() in (".tsv", ".csv"):  # 0, 1 and 2: the assignment's speakers
        names = {label: name for label, name in SPEAKERS.items() if name in classes}
        names |= {name: name for name in classes}
        rows = read_rows(flags.file, set(names) or None, "", run.config["flags"].get("columns", ""))
        if names and not texts and "label" in rows[0]:
            labels = [classes.index(names[row["label"]]) for row in rows]
        kept = [name for name in rows[0] if name not in ("label", "text")]
        more = {name: [""] * len(texts) + [row[name] for row in rows] for name in kept}
        texts += [row["text"] for row in rows]
    elif flags.file:
        texts += read_non_empty_lines(flags.file)
    table = run.folder / "answers.tsv"
    if run.kind == "classifier":
        found = run.classify(*texts)
        for text, shares in zip(texts, found):  # of several texts only the likeliest class
            for name, share in list(shares.items())[: 1 if len(texts) > 1 else None]:
                share = f"{share:6.1%}" if classes else f"{share:.3f}"
                print(f"{share}  {name}" + f"  {text}" * (len(texts) > 1))
        if labels:
            right = sum(next(iter(f)) == classes[label] for f, label in zip(found, labels))
            print(f"accuracy {right / len(texts):.1%} on {len(texts):,} rows, seen ones included")
        if flags.file:
            shares = [list(map(answer.get, classes or ["score"])) for answer in found]
            write_predictions(table, texts, shares, classes or ["score"], labels, more=more)
    else:
        n = len(texts) - 1 if run.kind == "thread" else 0  # ancestors of the text to fill
        above, texts, rows = texts[:n], texts[n:] or [""], []
        for number, text in enumerate(texts, 1):
            print(f"\ntext {number}: {text}\n" * (len(texts) > 1), end="")
            answer = write if run.kind in ("lm", "seq2seq") else fill
            rows.append([text, *answer(run, [*above, text], flags)])
        if flags.file:
            header = [*more, "text", *(f"answer {i}" for i in range(1, len(rows[0])))]
            kept = (cells[n:] for cells in more.values())
            write_rows(table, header, [[*cells, *row] for *cells, row in zip(*kept, rows)])
    if flags.file:
        print(f"table of the answers: {table}")


def write(run, texts, flags):
    """Print and return a text continued, filled or translated: the likeliest way, and samples. A
    task's prompt gets the likeliest answer, as long as the right one."""
    how, answers = dict(tokens=flags.tokens, top_k=flags.top_k or 50, seed=flags.seed), {}
    if task := find_task(run.config["flags"].get("data")):
        right = task.solve(texts[-1])
        (line,) = run.sample(*texts, tokens=len(right), temperature=0)
        is_right = line.split()[-len(right) :] == right
        verdict = "right" if is_right else f"wrong: {' '.join(right)} is right"
        print(f"--- answer, {verdict}\n{line}")
        return [line]
    if run.kind == "seq2seq" or not flags.temperature:
        answers["most likely words"] = run.sample(*texts, temperature=0, **how)[0]
    if flags.temperature:
        drawn = run.sample(*texts, flags.samples, temperature=flags.temperature, **how)
        answers |= {f"sample {i}": answer for i, answer in enumerate(drawn, 1)}
    print("\n".join(f"--- {name}\n{answer}" for name, answer in answers.items()))
    return list(answers.values())


def fill(run, texts, flags):
    """Print a table of words for each mask. Print and return the last text with the best ones."""
    found = run.fill(*texts, n=flags.top_k or 10)
    for number, words in enumerate(found, 1):
        print("\n".join([f"mask {number}", *(f"  {share:6.1%}  {word}" for word, share in words)]))
    best = iter(words[0][0].replace("␣", " ") for words in found)
    mask = r"\[MASK\]" if is_word_level(run.tokenizer) else r" *\[MASK\]"  # pieces bring spaces
    filled = re.sub(mask, lambda _: next(best), texts[-1]).strip()
    print(filled)
    return [filled]


if __name__ == "__main__":
    main(sample, Flags)
