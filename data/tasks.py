"""Tasks that tell position encodings apart: lines `prompt = answer`, whose answer is predicted.

    python train_lm.py --data copy --pos alibi

Lines are made while training, from seed and step. Each is a row of its own, which begins with [BOS]
at position 0 and is padded at its end. Training mixes prompts of length 1 to --length; a test set
has prompts of one length, up to 4 times as long. To add a task, write a class with `answer`, and
`prompt` unless it is random symbols, and add it to TASKS.
"""

import random
from contextlib import suppress
from string import ascii_letters, ascii_lowercase, digits

import torch

from data.batching import pad
from data.files import UserError
from data.text import hash_ids
from data.tokenizer import BOS, encode, token_strings, train_tokenizer


class Task:
    """The base of all tasks. In train_lm.py it takes the place of `data.text.Text`, with lines of
    its test sets as streams: {length: inputs and targets (n, T)}."""

    symbols, end = ascii_lowercase, 1  # beside the =; where that is, from the prompt's end
    length, tests = 16, (1, 1.5, 2, 4)  # of the longest training prompts; test prompts over it
    flags = dict(n_layer=3, steps=1000, batch_size=32)  # defaults
    metric, note, sizes, read = "accuracy", "", {}, {}  # as in Text
    # Flags of train_lm.py that are of no use
    of_texts = "tokenizer vocab_size vocab_from valid split anchor eval_block eval_stride".split()
    of_texts += "eval_train eval_test drop_words swap_words rare_unknown graph".split()

    def __init__(self, length=None):
        self.name, self.length = type(self).__name__.lower(), length or self.length
        self.tokenizer = train_tokenizer("word", [" ".join([*self.symbols, "="])])
        lengths = sorted({max(1, round(self.length * x)) for x in self.tests})
        rngs = {n: random.Random(f"{self.name} {n}") for n in lengths}  # the same for every run
        self.streams = {str(n): self.lines([n] * 400, rng) for n, rng in rngs.items()}
        self.hash = hash_ids([x.flatten() for lines in self.streams.values() for x in lines])
        self.longest = max(inputs.size(1) for inputs, _ in self.streams.values())
        self.floor = {f"accuracy/{n}": 1.0 for n in lengths}

    def prompt(self, n, rng):
        """Return a prompt of length n, a list of symbols. rng: a random.Random."""
        return [*rng.choices(self.symbols, k=n), "="]

    def answer(self, prompt):
        """Return the answer to a prompt, a list of symbols. Raises ValueError for no prompt."""
        raise NotImplementedError

    def line(self, n, rng):
        """Return a line in parts: a prompt of length n and its answer, perhaps more of both."""
        prompt = self.prompt(n, rng)
        return [prompt, self.answer(prompt)]

    def lines(self, lengths, rng):
        """Return lines with prompts of these lengths as inputs and targets (n, T). Each target is
        the next token, or -100 outside the answers."""
        ids, answers, ids_of = [], [], self.tokenizer.get_vocab()
        for parts in [self.line(n, rng) for n in lengths]:
            symbols = [(i % 2 == 1, symbol) for i, part in enumerate(parts) for symbol in part]
            ids.append(torch.tensor([BOS, *(ids_of[symbol] for _, symbol in symbols)]))
            answers.append(torch.tensor([False, *(is_answer for is_answer, _ in symbols)]))
        (ids, _), (answers, _) = pad(ids), pad(answers)  # (n, T + 1), PAD is False
        return ids[:, :-1], ids.where(answers > 0, -100)[:, 1:]

    def batch(self, block_size, n, gen):
        """Draw n training lines: inputs and targets (n, T)."""
        rng = random.Random(gen.initial_seed())
        return self.lines([rng.randint(1, self.length) for _ in range(n)], rng)

    def blocks(self, name, *how):
        """Return a test set: inputs and targets (n, T)."""
        return self.streams[name]

    def describe(self, block_size):
        """Return in words what is trained on. Raises UserError if a line is longer than a block."""
        if self.longest > block_size:
            problem = f"a test line of {self.name} has {self.longest} tokens; use a larger block"
            raise UserError(f"--block-size {block_size}: {problem}")
        return f"{self.name}: prompts of length 1 to {self.length}"

    def defaults(self):
        """Return the values of flags that are not given."""
        own = dict(data=self.name, length=self.length, block_size=self.longest)
        own |= dict(n_head=4, n_ffn=0, activation="gelu", eval_every=500)
        return own | self.flags

    def example(self, n=3):
        """Return a prompt and its answer as texts, to show how they look."""
        return [" ".join(part) for part in self.line(n, random.Random(0))[:2]]

    def solve(self, text):
        """Return the answer to a prompt that was typed, "a b c =". Raises UserError for others."""
        prompt = token_strings(self.tokenizer, encode(self.tokenizer, [text])[0])
        if len(prompt) > self.end and prompt[-self.end] == "=" and "[UNK]" not in prompt:
            with suppress(ValueError):
                return self.answer(prompt)
        remedy = f"give one like {self.example()[0]!r}"
        raise UserError(f"text {text!r:.80}: no prompt of {self.name}; {remedy}")


class Copy(Task):
    """`a b c = a b c`: for an induction head, or one that looks back by the prompt's length."""

    flags = dict(n_layer=3, steps=2000, batch_size=32)

    def answer(self, prompt):
        return prompt[:-1]


class Reverse(Task):
    """`a b c = c b a`: the distance to what is copied grows with each symbol."""

    def answer(self, prompt):
        return prompt[-2::-1]


class Recall(Task):
    """`a 3 F 0 c 7 = F 0 a 3`: the value that was shown with a key, for an induction head. Length
    counts pairs, the examples from which the model learns in context; a line asks for 8 keys."""

    symbols, end = ascii_letters[:32] + digits, 2
    flags = dict(n_layer=2, steps=1200, batch_size=64, init_std=0.15)  # 0.05 needs thousands more
    length, tests = 8, (1 / 4, 1 / 2, 1, 1.5, 2, 4)

    def line(self, n, rng):
        if n > 32:
            raise UserError(f"--length {self.length}: recall has 32 keys; give at most 8")
        pairs = [[key, rng.choice(digits)] for key in rng.sample(ascii_letters[:32], n)]
        parts = [[symbol] for pair in rng.choices(pairs, k=8) for symbol in pair]
        return [sum(pairs, []) + ["="] + parts[0], *parts[1:]]

    def answer(self, prompt):
        return [prompt[prompt[:-2].index(prompt[-1]) + 1]]


class FlipFlop(Task):
    """`w 1 i 0 i 1 = 1`: the bit after the last w (write), whatever follows i (ignore); Liu et al.
    2023, with one question at the end. Length counts pairs."""

    symbols = "wi01"

    def prompt(self, n, rng):
        signs = ["w", *rng.choices("wi", (1, 4), k=n - 1)]
        return [*(symbol for sign in signs for symbol in (sign, rng.choice("01"))), "="]

    def answer(self, prompt):
        return [prompt[-prompt[::-1].index("w")]]


class Count(Task):
    """`b a b c ? b = 2`: how often a symbol occurs, from 0 to 9 times."""

    symbols = ascii_lowercase[:10] + digits + "?"

    def prompt(self, n, rng):
        asked, *others = rng.sample(self.symbols[:10], 10)
        shown = [asked] * rng.randint(0, min(n, 9))
        shown += rng.choices(others, k=n - len(shown))
        return [*rng.sample(shown, n), "?", asked, "="]

    def answer(self, prompt):
        return [str(prompt[: prompt.index("?")].count(prompt[-2]))]


class Sort(Task):
    """`b c a b = a b b c`: how often a symbol occurs matters, not where."""

    def answer(self, prompt):
        return sorted(prompt[:-1])


TASKS = {task.__name__.lower(): task for task in (Copy, Reverse, Recall, FlipFlop, Count, Sort)}
