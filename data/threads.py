"""Posts with nested comments, and masked words of comments with the ancestors they are read with.

A .jsonl has one post per line: {"id", "title", "selftext", "comments": [{"id", "parent_id",
"body"}, ...]}. A parent_id is t3_ and the post's id, or t1_ and that of a comment of the same post;
without one, a comment answers the post. Deleted and empty comments are left out, and their replies
move up. So are quotes (lines that begin with >), which repeat an ancestor's words.

The toy threads are generated. A text is a frame around one word of each of four kinds: "No orchard,
no tide without carters and loyalty." With probability TAKEN a reply takes the word of an ancestor,
of that at distance d of n with 2^-d / (2^-1 + ... + 2^-n), and else draws one of its kind.
"""

import html
import json
import random
import re
from dataclasses import dataclass

import torch

from data.batching import generator, length_batches, pad, sentences
from data.corpora import toy
from data.corpus import hold_out, name_of
from data.files import UserError, hash_of, read_lines
from data.masking import mask_tokens
from data.tokenizer import train_tokenizer

# View -> its name in words
THREAD_VIEWS = dict(ancestors="with its ancestors", alone="alone", shuffled="with another tree's")

KINDS = dict(building="Building", event="Event", people="Person.plural", virtue="Virtue")
WORDS = {kind: tuple(map(" ".join, toy.BODIES[symbol])) for kind, symbol in KINDS.items()}
TAKEN = 0.8  # the probability that a reply takes a word from an ancestor
DEEPEST = 5  # the most ancestors a reply has
POSTS = (
    "The {people} would mend the {building} before the {event} with {virtue}.",
    "Who brings {virtue} to the {building} before the {event}: the {people}?",
)
REPLIES = (
    "The {people}: {building}, {event}, {virtue}.",
    "No {building}, no {event} without {people} and {virtue}.",
    "Give {people} some {virtue}, a {building} and another {event}.",
    "After the {event} the {people} will bring {virtue} to the {building}.",
    "What is {virtue} worth to {people} near the {building} before the {event}?",
)


@dataclass
class Tree:
    """A post, text 0, and its comments, parents before their replies."""

    texts: list[str]
    chains: list[list[int]]  # of each text its ancestors, its parent first and the post last


def load_threads(name):
    """Return the Trees called toy, or in a .jsonl of posts. Raises UserError naming the line."""
    if name == "toy":
        return generate()
    trees = []
    for number, line in enumerate(read_lines(name, as_is=True), start=1):
        try:
            trees += [read_tree(json.loads(line))] if line.strip() else []
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"not a post ({error!r:.90}); correct it, see data/threads.py"
            raise UserError(f"{name}:{number}: {problem}") from None
    return [tree for tree in trees if len(tree.texts) > 1]


def read_tree(post):
    """Return a post, parsed from JSON, as a Tree. Of comments with one id, the last one counts."""
    root, comments, replies = "t3_" + post["id"], {}, {}
    for comment in post["comments"]:
        parent, text = comment.get("parent_id") or root, clean(comment["body"] or "")
        comments["t1_" + comment["id"]] = parent, text
    for name, (parent, _) in comments.items():
        replies.setdefault(parent, []).append(name)
    order = [root]
    for name in order:  # the list grows: parents before their replies
        order += replies.get(name, [])
    for name in comments.keys() - set(order):
        raise ValueError(f"{name}, a comment on {comments[name][0]}, does not lead up to {root}")
    title = " ".join(clean(str(post.get(part) or "")) for part in ("title", "selftext")).strip()
    tree, index = Tree([title], [[]]), {root: 0}
    for name in order[1:]:
        parent, text = index[comments[name][0]], comments[name][1]
        index[name] = len(tree.texts) if text else parent
        if text:
            tree.texts.append(text)
            tree.chains.append([parent, *tree.chains[parent]])
    return tree


def clean(text):
    """Return a text on one line as the model reads it, "" if it was deleted. A link [text](address)
    becomes its text, an address the word URL."""
    lines = [line for line in html.unescape(text).splitlines() if not line.lstrip().startswith(">")]
    text = re.sub(r"\[([^\[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*\)", r"\1", "\n".join(lines))
    text = " ".join(re.sub(r"(?:https?://|www\.)\S+", "URL", text).split())
    return "" if text in ("[deleted]", "[removed]") else text.encode("utf-8", "replace").decode()


def generate(n_trees=1200, seed=0):
    """Return n_trees toy Trees: a post and 4 to 12 comments, each a reply to any text above."""
    rng, trees = random.Random(f"toy threads {seed}"), []
    for _ in range(n_trees):
        words = [{kind: rng.choice(words) for kind, words in WORDS.items()}]
        tree = Tree([rng.choice(POSTS).format(**words[0])], [[]])
        for _ in range(rng.randint(4, 12)):
            parent = rng.choice([i for i, up in enumerate(tree.chains) if len(up) < DEEPEST])
            chain, said = [parent, *tree.chains[parent]], {}
            for kind, choices in WORDS.items():
                source = rng.choices(chain, [0.5**d for d in range(len(chain))])[0]
                said[kind] = words[source][kind] if rng.random() < TAKEN else rng.choice(choices)
            words.append(said)
            tree.texts.append(rng.choice(REPLIES).format(**said))
            tree.chains.append(chain)
        trees.append(tree)
    return trees


class Forest:
    """The texts of many trees in one list. sequences, chains: of each text its ids (at most
    block_size), and the rows of its n_ancestors nearest ancestors, parent first. others: a control,
    the ancestors of a text in another tree, of the same depth if there is one. pieces: rows of
    comments that are targets together, at most max_tree_size of a tree, parents first."""

    def __init__(self, trees, tokenizer, block_size, n_ancestors, max_tree_size=64):
        self.texts = [text for tree in trees for text in tree.texts]
        self.sequences, self.n_long = sentences(tokenizer, self.texts, block_size)
        self.chains, self.others, self.pieces = [], [], []
        by_depth = [{} for _ in trees]  # for each tree, {depth: chains of its texts}
        for tree, chains_at in zip(trees, by_depth):
            root = len(self.chains)
            for chain in tree.chains:
                self.chains.append([root + a for a in chain[:n_ancestors]])
                chains_at.setdefault(len(chain), []).append(self.chains[-1])
            rows = range(root + 1, len(self.chains))
            self.pieces += [rows[i : i + max_tree_size] for i in range(0, len(rows), max_tree_size)]
        # The other tree is the next one when sorted by depth
        order = sorted(range(len(trees)), key=lambda k: max(by_depth[k]))
        other_of = dict(zip(order, order[1:] + order[:1]))
        for k, tree in enumerate(trees):
            chains_at = by_depth[other_of[k]]
            for i, chain in enumerate(tree.chains):
                chains = chains_at[min(len(chain), max(chains_at))]
                self.others.append(chains[i % len(chains)])

    def batches(self, batch_size, gen):
        """Return the targets of batch_size pieces each, in random order, as tensors of rows."""
        order = torch.randperm(len(self.pieces), generator=gen).split(batch_size)
        return [torch.tensor([row for i in some for row in self.pieces[i]]) for some in order]

    def above(self, rows, chains):
        """Return what the model reads of the ancestors `chains` of these comments: each once, as
        texts, texts_mask (N, T), and whose they are, as ancestors, ancestors_mask (B, A)."""
        used = sorted({a for row in rows for a in chains[row]})
        place = {a: i for i, a in enumerate(used)}
        texts = pad([self.sequences[a] for a in used])
        ancestors = pad([torch.tensor([place[a] for a in chains[row]]) for row in rows])
        names = "texts", "texts_mask", "ancestors", "ancestors_mask"
        return dict(zip(names, (*texts, *ancestors)))

    def mask_comments(self, vocab_size, starts, rate, unit):
        """Return {view: batches}, as `pairs.mask_pairs` does for the views of a pair."""
        batches = {view: [] for view in THREAD_VIEWS}
        rows = torch.tensor([row for piece in self.pieces for row in piece])
        for found in length_batches([len(self.sequences[row]) for row in rows], 64):
            chosen = rows[found].tolist()
            idx, mask = pad([self.sequences[row] for row in chosen])
            gen = generator("masks of comments", *chosen)
            inputs, labels = mask_tokens(idx, vocab_size, gen, rate, unit, starts)
            contexts = self.above(chosen, self.chains), {}, self.above(chosen, self.others)
            for view, more in zip(THREAD_VIEWS, contexts):
                batches[view].append((inputs, mask, labels, more))
        return batches


def read_forests(data, tokenizer, kind, vocab_size, valid, test=0.1, **how):
    """Return (name, tokenizer, {set: Forest}, sha256 of all trees), with shares of the trees held
    out. tokenizer: None makes one. how: see Forest. Raises UserError for too few trees."""
    trees = load_threads(data)
    rest, tested = hold_out(trees, test, seed=0, key=lambda tree: "\n".join(tree.texts))
    kept, held = hold_out(rest, valid, seed=1, key=lambda tree: "\n".join(tree.texts))
    if not kept or min(len(held), len(tested)) < 2:
        problem = f"{len(trees)} trees are too few for --valid {valid} and --test {test}"
        raise UserError(f"--data {data}: {problem}; give more posts with comments")
    texts = [text for tree in kept for text in tree.texts]
    tokenizer = tokenizer or train_tokenizer(kind, texts, vocab_size)
    parts = {"train": kept, "valid": held, "test": tested}
    forests = {name: Forest(part, tokenizer, **how) for name, part in parts.items()}
    return name_of(data), tokenizer, forests, hash_of(trees)
