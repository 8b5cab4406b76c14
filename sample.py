"""Try a trained model on your own sentences: continue, fill [MASK], classify, translate.

    python sample.py out/lm-speeches-alibi-0 --text "My fellow" --tokens 40
    python sample.py out/mlm-speeches-alibi-0 --text "We will [MASK] the American people."
    python sample.py out/classifier-speeches-alibi-0 --text "Yes we can." --text "God bless."
    python sample.py out/seq2seq-toy-rope-0 --text "We will [MASK] the people."
    python sample.py out/translate-toy-rope-0 --file sentences.txt
    python sample.py out/thread-toy-learned-0 --text POST --text REPLY --text "A [MASK] comment."

--text may be repeated, and --file reads one text per line; "-" is standard input. For a run of
train_thread.py the texts are one thread: the post, its replies, and last the comment to fill.
"""

import re
from dataclasses import dataclass

from lab import load_run
from lab.command import main
from lab.flags import flag
from lab.inside.texts import encode, read_file
from lab.machine import set_up_device


@dataclass
class Flags:
    run: str = flag("", "run folder of a train_*.py script", positional=True)
    text: list[str] = flag(
        (),
        "the text to continue, fill, classify or translate; may be repeated (thread runs: "
        "the post, replies, last the comment to fill)",
    )
    file: str = flag("", "file of more texts, one per line; -: standard input")
    tokens: int = flag(40, "most tokens to write", at_least=1, at_most=100_000)
    samples: int = flag(3, "texts to write", at_least=1, at_most=10_000)
    temperature: float = flag(0.8, "below 1: more likely words; 0: the most likely", at_least=0)
    top_k: int = flag(0, "words to choose from", shown="10 for a mask, 50 else", at_least=0)
    seed: int = flag(0, "seed of the sampling")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def sample(flags):
    run = load_run(flags.run, device=set_up_device(flags))
    texts = [*flags.text, *(read_file(flags.file) if flags.file else [])] or [""]
    above = texts[:-1] if run.kind == "thread" else []  # ancestors of the text to fill
    texts = texts[len(above) :]
    for text in texts:
        encode(run, text)  # raises UserError before the first answer
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            print("\n" * (number > 1) + f"text {number}: {text}")
        if run.kind == "lm":
            show_continuations(run, text, flags)
        elif run.kind == "seq2seq":
            show_rewritings(run, text, flags)
        elif run.kind == "classifier":
            show_classes(run, text)
        else:
            show_fillings(run, [*above, text], flags.top_k or 10)


def show_continuations(run, text, flags):
    """Print the text with its continuations."""
    how = flags.samples, flags.tokens, flags.temperature, flags.top_k or 50, flags.seed
    for number, written in enumerate(run.sample(text, *how), 1):
        print(f"--- sample {number}" if flags.temperature else "--- most likely words")
        print(written)


def show_rewritings(run, text, flags):
    """Print the text with its gaps filled, or its translation: the most likely, then samples."""
    print("--- most likely words")
    print(*run.sample(text, tokens=flags.tokens, temperature=0))
    how = flags.samples, flags.tokens, flags.temperature, flags.top_k or 50, flags.seed
    for number, written in enumerate(run.sample(text, *how) if flags.temperature else (), 1):
        print(f"--- sample {number}")
        print(written)


def show_classes(run, text):
    """Print the probability of each class, the most likely first."""
    for label, share in run.classify(text)[0].items():
        print(f"{share:6.1%}  {label}")


def show_fillings(run, texts, n):
    """Print a table of words for each mask, then the last text with the best ones."""
    fillings = run.fill(*texts, n=n)
    for number, candidates in enumerate(fillings, 1):
        print(f"mask {number}")
        for word, share in candidates:
            print(f"  {share:6.1%}  {word}")
    best = iter(candidates[0][0] for candidates in fillings)
    print(re.sub(r"\[MASK\]", lambda _: next(best), texts[-1]).strip())


if __name__ == "__main__":
    main(sample, Flags, __doc__)
