"""Tasks that tell position encodings apart: lines `prompt = answer`, whose answer is predicted.

    python train_lm.py --data copy --pos alibi

Lines are made while training, from seed and step. Each is a row of its own, which begins with [BOS]
at position 0 and is padded at its end. Training mixes prompts of length 1 to --length; a test set
has prompts of one length, up to 4 times as long. To add a task, write a class with `answer`, and
`prompt` unless it is random symbols, add it to TASKS, and its name to readers.TASK_NAMES.
"""

import random
from contextlib import suppress
from string import ascii_letters, ascii_lowercase, digits

import torch

from data.batching import hash_ids, pad
from data.files import UserError
from data.tokenizer import BOS, encode, token_strings, train_tokenizer

N_TEST = 400  # lines of each test set


class Task:
    """The base of all tasks. Its `streams` are the lines of its test sets, {length: inputs and
    targets (n, T)}."""

    symbols = ascii_lowercase  # of the vocabulary, beside the =
    end = 1  # where the = stands, counted from the prompt's end
    restarts = ""  # symbols at which --couple begins to count again; none: it makes no sense
    length = 16  # of the longest training prompts
    tests = (1, 1.5, 2, 4)  # lengths of the test prompts, over that of the longest training ones
    flags = dict(n_layer=3, steps=1000, batch_size=32)  # defaults of train_lm.py

    # Flags of train_lm.py that only texts have a use for
    text_flags = "tokenizer vocab_size vocab_from valid split anchor eval_block eval_stride".split()
    text_flags += "eval_train eval_test drop_words swap_words rare_unknown graph".split()

    def __init__(self, length=None):
        self.name = type(self).__name__.lower()
        self.length = length or self.length
        self.tokenizer = train_tokenizer("word", [" ".join([*self.symbols, "="])])
        self.streams = {}
        for n in sorted({max(1, round(self.length * ratio)) for ratio in self.tests}):
            rng = random.Random(f"{self.name} {n}")  # the same for every run
            self.streams[str(n)] = self.lines([n] * N_TEST, rng, is_test=True)
        parts = []
        for inputs, targets in self.streams.values():
            parts += [inputs.flatten(), targets.flatten()]
        self.hash = hash_ids(parts)
        self.longest = max(inputs.size(1) for inputs, _ in self.streams.values())

    def prompt(self, n, rng):
        """Return a prompt of length n, a list of symbols. rng: a random.Random."""
        return [*rng.choices(self.symbols, k=n), "="]

    def answer(self, prompt):
        """Return the answer to a prompt, a list of symbols. Raises ValueError for no prompt."""
        raise NotImplementedError

    def line(self, n, rng, is_test=False):
        """Return a line in parts: a prompt of length n and its answer, perhaps more of both."""
        prompt = self.prompt(n, rng)
        return [prompt, self.answer(prompt)]

    def lines(self, lengths, rng, is_test=False):
        """Return lines with prompts of these lengths as inputs and targets (n, T). Each target is
        the next token, or -100 outside the answers."""
        id_of = self.tokenizer.get_vocab()
        all_ids = []
        all_answers = []
        for n in lengths:
            ids = [BOS]
            is_answer = [False]
            parts = self.line(n, rng, is_test)  # prompt, answer, prompt, answer, ...
            for i, part in enumerate(parts):
                ids += [id_of[symbol] for symbol in part]
                is_answer += [i % 2 == 1] * len(part)
            all_ids.append(torch.tensor(ids))
            all_answers.append(torch.tensor(is_answer))
        ids, _ = pad(all_ids)  # (n, T + 1)
        is_answer, _ = pad(all_answers)  # (n, T + 1), False on padding
        targets = ids.where(is_answer, -100)
        return ids[:, :-1], targets[:, 1:]

    def batch(self, block_size, n, gen):
        """Draw n training lines: inputs and targets (n, T)."""
        rng = random.Random(gen.initial_seed())
        lengths = [rng.randint(1, self.length) for _ in range(n)]
        return self.lines(lengths, rng)

    def describe(self, block_size):
        """Return in words what is trained on. Raises UserError if a line is longer than a block."""
        if self.longest > block_size:
            problem = f"a test line of {self.name} has {self.longest} tokens; use a larger block"
            raise UserError(f"--block-size {block_size}: {problem}")
        return f"{self.name}: prompts of length 1 to {self.length}"

    def defaults(self):
        """Return the values of the flags of train_lm.py that are not given."""
        data = dict(data=self.name, length=self.length, block_size=self.longest)
        model = dict(n_head=4, n_ffn=0, activation="gelu", eval_every=500)
        return data | model | self.flags

    def example(self, n=3):
        """Return a prompt and its answer as texts, to show how they look."""
        prompt, answer, *_ = self.line(n, random.Random(0))
        return [" ".join(prompt), " ".join(answer)]

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

    restarts = "="
    flags = dict(n_layer=3, steps=2000, batch_size=32)

    def answer(self, prompt):
        return prompt[:-1]


class Reverse(Task):
    """`a b c = c b a`: the distance to what is copied grows with each symbol."""

    def answer(self, prompt):
        return prompt[-2::-1]


class Recall(Task):
    """`a 3 F 0 c 7 = F 0 a 3`: the value that was shown with a key, for an induction head. Length
    counts pairs, the examples from which the model learns in context. A line asks for 8 keys.
    Training lines may ask for a key again, which helps to form an induction head; test lines do
    not, as its answer already stands in the line."""

    keys = ascii_letters[:32]
    symbols = keys + digits
    end = 2  # a key follows the =
    length = 8
    tests = (1 / 4, 1 / 2, 1, 1.5, 2, 4)
    flags = dict(n_layer=2, steps=1200, batch_size=64, init_std=0.15)  # 0.05 needs thousands more

    def line(self, n, rng, is_test=False):
        if n > len(self.keys):  # test prompts are up to 4 times as long as training prompts
            raise UserError(f"--length {self.length}: recall has 32 keys; give at most 8")
        pairs = [(key, rng.choice(digits)) for key in rng.sample(self.keys, n)]
        prompt = []
        for key, value in pairs:
            prompt += [key, value]
        prompt.append("=")
        if is_test:
            asked = rng.sample(pairs, min(8, n))
        else:
            asked = rng.choices(pairs, k=8)
        parts = []
        for key, value in asked:
            parts += [[*prompt, key], [value]]
            prompt = []  # only the first question follows the pairs
        return parts

    def answer(self, prompt):
        *shown, _, key = prompt
        place = shown.index(key)
        return [prompt[place + 1]]


class FlipFlop(Task):
    """`w 1 i 0 i 1 = 1`: the bit after the last w (write), whatever follows i (ignore); Liu et al.
    2023, with one question at the end. Length counts pairs."""

    symbols = "wi01"

    def prompt(self, n, rng):
        prompt = []
        for sign in ["w", *rng.choices("wi", (1, 4), k=n - 1)]:
            prompt += [sign, rng.choice("01")]
        return [*prompt, "="]

    def answer(self, prompt):
        from_end = prompt[::-1].index("w")  # symbols after the last w, and the = among them
        return [prompt[-from_end]]


class Count(Task):
    """`b a b c ? b = 2`: how often a symbol occurs, from 0 to 9 times."""

    symbols = ascii_lowercase[:10] + digits + "?"

    def prompt(self, n, rng):
        asked, *others = rng.sample(self.symbols[:10], 10)  # all letters in random order
        shown = [asked] * rng.randint(0, min(n, 9))
        shown += rng.choices(others, k=n - len(shown))
        return [*rng.sample(shown, n), "?", asked, "="]

    def answer(self, prompt):
        *_, asked, _ = prompt  # the = is last
        shown = prompt[: prompt.index("?")]
        return [str(shown.count(asked))]


class Sort(Task):
    """`b c a b = a b b c`: how often a symbol occurs matters, not where."""

    def answer(self, prompt):
        return sorted(prompt[:-1])


class Add(Task):
    """`2 1 + 4 3 = 6 4 0`: 12 + 34 = 046, the last digit first, as one adds by hand. Length counts
    the digits of each number; the sum has one more. Digits of the same place value belong
    together."""

    symbols = digits + "+"
    restarts = "+="
    length = 8
    flags = dict(n_layer=3, steps=2000, batch_size=64)

    def prompt(self, n, rng):
        return [*rng.choices(digits, k=n), "+", *rng.choices(digits, k=n), "="]

    def answer(self, prompt):
        plus = prompt.index("+")
        first = int("".join(prompt[:plus][::-1]))
        second = int("".join(prompt[plus + 1 : -1][::-1]))
        n = max(plus, len(prompt) - plus - 2)  # digits of the longer number
        return list(f"{first + second:0{n + 1}}"[::-1])


class Parity(Task):
    """`1 0 1 1 = 1`: 1 if the ones are an odd number. Every symbol counts, wherever it stands."""

    symbols = "01"

    def answer(self, prompt):
        return [str(prompt.count("1") % 2)]


ALL = (Copy, Reverse, Recall, FlipFlop, Count, Sort, Add, Parity)
TASKS = {task.__name__.lower(): task for task in ALL}
