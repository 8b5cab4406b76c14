"""Comments with masked words, to measure what their ancestors in the thread add."""

import torch

from data.batching import generator, length_batches
from data.corpora import toy_threads
from data.corpora.threads import load_threads
from data.corpus import hold_out
from data.files import DataError
from data.forest import Forest
from data.masking import mask_tokens
from data.tokenizer import train_tokenizer

# Name in result.json: in words
VIEWS = {"ancestors": "with its ancestors", "alone": "alone", "shuffled": "with another tree's"}
DEEPEST = 6  # comments at least this deep are counted together
# What masked words are counted by: the depth of the comment, and whether they repeat an ancestor's
GROUPS = (*(f"depth-{d}" for d in range(1, DEEPEST + 1)), "repeated")


def read_forests(flags, tokenizer):
    """Return (name, tokenizer, {set: Forest}, {what was changed in the data: how often}).

    Whole trees are held out, the same in every run. tokenizer: None makes one of the rest. Raises
    DataError if there are too few trees.
    """
    threads = load_threads(flags.data)
    rest, test = hold_out(threads.trees, flags.test, seed=0, key=lambda tree: tree.text())
    kept, valid = hold_out(rest, flags.valid, seed=1, key=lambda tree: tree.text())
    if not kept or min(len(valid), len(test)) < 2:
        raise DataError(
            f"--data {flags.data}: too few trees ({len(threads.trees)}) to hold out --valid "
            f"{flags.valid} and --test {flags.test}, at least two each; "
            "give more trees, or other shares"
        )
    texts = [text for tree in kept for text in tree.texts]
    tokenizer = tokenizer or train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    how = tokenizer, flags.block_size, flags.ancestors, flags.max_tree_size
    parts = {"train": kept, "valid": valid, "test": test}
    forests = {name: Forest(trees, *how) for name, trees in parts.items()}
    notes = dict(threads.left_out)
    n_long = sum(forest.n_long for forest in forests.values())
    notes["texts are longer than --block-size and were truncated"] = n_long
    more = len(forests["train"].pieces) - len(kept)
    notes["extra trees from splitting at --max-tree-size"] = more
    return threads.name, tokenizer, forests, {what: n for what, n in notes.items() if n}


def fixed_batches(forest, flags, vocab_size, starts):
    """Return batches (rows, inputs, mask, labels, {view: what is read of the ancestors}) of all
    comments. The masks depend on neither the seed nor the step."""
    batches = []
    rows = torch.tensor([row for piece in forest.pieces for row in piece])
    for found in length_batches([len(forest.sequences[row]) for row in rows], 64):
        chosen = rows[found].tolist()
        idx, mask = forest.comments(chosen)
        gen = generator("masks of comments", *chosen)
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        views = {
            "ancestors": forest.above(chosen, forest.chains),
            "alone": {},
            "shuffled": forest.above(chosen, forest.others),
        }
        batches.append((chosen, inputs, mask, labels, views))
    return batches


def sum_by_group(forest, rows, labels, losses, again):
    """Return (2, GROUPS): the summed losses of each group's targets, and their number.

    losses (N,): one per target. again (N,) bool: as `Forest.repeated` returns it.
    """
    depths = (forest.depths[rows].clamp(max=DEEPEST) - 1)[:, None]  # (B, 1)
    depths = depths.expand_as(labels)[labels != -100]  # (N,)
    n = len(GROUPS)
    sums = torch.stack([depths.bincount(losses, n), depths.bincount(minlength=n)])
    sums[:, -1] = torch.stack([losses[again].sum(), again.sum()])
    return sums


def all_depths(sums):
    """Return nats and number of the words of all depths together."""
    return sums[:, :DEEPEST].sum(1).tolist()


def toy_floor(flags, forest, batches, tokenizer):
    """Return {view: (2, GROUPS) nats and counts} of the grammar that generated the toy threads,
    which knows the probability of every word; {} for other data and other tokens. Repeated words
    are not counted."""
    own_words = flags.data == "toy" and flags.tokenizer == "word" and not flags.vocab_size
    if flags.init_from or not own_words or flags.ancestors < toy_threads.DEEPEST:
        return {}
    tokens, size = tokenizer.get_vocab(), tokenizer.get_vocab_size()
    if not all(word in tokens for words in toy_threads.WORDS.values() for word in words):
        return {}  # too few training trees
    sums = {v: torch.zeros(2, len(GROUPS), dtype=torch.float64) for v in ("ancestors", "alone")}
    for rows, inputs, _, labels, _ in batches:
        for row, shown, masked in zip(rows, inputs.tolist(), labels != -100):
            places = masked.nonzero().flatten().tolist()
            depth = forest.depths[row] - 1  # toy_threads.DEEPEST is below DEEPEST
            for view, chain in (("ancestors", forest.chains[row]), ("alone", [])):
                above = [forest.texts[a] for a in chain]
                nats = toy_threads.nats(forest.texts[row], above, tokens, shown, places, size)
                sums[view][0, depth] += nats
                sums[view][1, depth] += len(places)
    return sums
