"""Posts with nested comments, and masked words of comments with the ancestors they are read with.

A .jsonl has one post per line: {"id", "title", "selftext", "comments": [{"id", "parent_id",
"body"}, ...]}. A parent_id is t3_ and the post's id, or t1_ and that of a comment of the same post;
without one, a comment answers the post. A comment may hold its replies instead: "replies" is a list
of comments, or a listing of Reddit, {"data": {"children": [{"kind": "t1", "data": comment}, ...]}}.
Deleted and empty comments are left out, and their replies move up. So are quotes (lines that begin
with >), which repeat an ancestor's words.

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
from data.corpus import name_of
from data.files import UserError, hash_of, normalize_characters, read_lines
from data.leaks import hold_out
from data.masking import mask_tokens
from data.tokenizer import train_tokenizer

# View -> its name in words
THREAD_VIEWS = dict(ancestors="with its ancestors", alone="alone", shuffled="with another tree's")

# Kind of word in the toy threads -> its symbol in the toy grammar, and its words
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
        if not line.strip():
            continue
        try:
            trees.append(make_tree(json.loads(line)))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            problem = f"not a post ({error!r:.90}); correct it, see data/threads.py"
            raise UserError(f"{name}:{number}: {problem}") from None
    return [tree for tree in trees if len(tree.texts) > 1]


def make_tree(post):
    """Return a post, parsed from JSON, as a Tree. Of comments with one id, the last one counts.
    Raises KeyError, TypeError, ValueError or AttributeError for other JSON, and ValueError for
    comments that do not lead up to the post."""
    root = "t3_" + post["id"]
    parent_of = {}
    text_of = {}
    for parent, comment in find_comments(post["comments"], root):
        name = "t1_" + comment["id"]
        parent_of[name] = comment.get("parent_id") or parent
        text_of[name] = strip_markup(comment["body"] or "")
    replies = {}
    for name, parent in parent_of.items():
        replies.setdefault(parent, []).append(name)
    order = [root]
    for name in order:  # the list grows: parents before their replies
        order += replies.get(name, [])
    for name in parent_of.keys() - set(order):
        raise ValueError(f"{name}, a comment on {parent_of[name]}, does not lead up to {root}")

    title = strip_markup(str(post.get("title") or ""))
    body = strip_markup(str(post.get("selftext") or ""))
    tree = Tree([f"{title} {body}".strip()], [[]])
    index = {root: 0}  # of each text in the tree
    for name in order[1:]:
        parent = index[parent_of[name]]
        if not text_of[name]:
            index[name] = parent  # a deleted comment's replies move up
            continue
        index[name] = len(tree.texts)
        tree.texts.append(text_of[name])
        tree.chains.append([parent, *tree.chains[parent]])
    return tree


def find_comments(comments, root):
    """Return (the name of its parent or of the post, comment) of all comments and of the replies
    nested in them, however deep."""
    queue = [(root, comment) for comment in children_of(comments)]
    parents_and_comments = []
    for parent, child in queue:  # the list grows
        if isinstance(child, str) or child.get("kind") == "more":
            continue  # the id of a comment that stands elsewhere, or was not downloaded
        comment = child.get("data", child)
        parents_and_comments.append((parent, comment))
        name = "t1_" + comment["id"]
        queue += [(name, reply) for reply in children_of(comment.get("replies"))]
    return parents_and_comments


def children_of(listing):
    """Return the comments in a list, or in a listing of Reddit, which is "" if there are none."""
    if isinstance(listing, dict):
        return listing["data"]["children"]
    return listing or []


def strip_markup(text):
    """Return the text of a post or comment on one line, without quotes; "" if it was deleted. A
    link [text](address) becomes its text, an address the word URL."""
    text = normalize_characters(html.unescape(text))  # Reddit writes &#x200B; for empty lines
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(">")]
    text = re.sub(r"\[([^\[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*\)", r"\1", "\n".join(lines))
    text = re.sub(r"(?:https?://|www\.)\S+", "URL", text)
    text = " ".join(text.split())
    if text in ("[deleted]", "[removed]"):
        return ""
    return text.encode("utf-8", "replace").decode()  # half an emoji cannot be written to a file


def generate(n_trees=1200, seed=0):
    """Return n_trees toy Trees: a post and 4 to 12 comments, each a reply to any text above."""
    rng = random.Random(f"toy threads {seed}")
    trees = []
    for _ in range(n_trees):
        words = [{kind: rng.choice(choices) for kind, choices in WORDS.items()}]  # of each text
        tree = Tree([rng.choice(POSTS).format(**words[0])], [[]])
        for _ in range(rng.randint(4, 12)):
            open_texts = [i for i, chain in enumerate(tree.chains) if len(chain) < DEEPEST]
            parent = rng.choice(open_texts)
            chain = [parent, *tree.chains[parent]]
            weights = [0.5**distance for distance in range(len(chain))]  # near ones more often
            reply = {}
            for kind, choices in WORDS.items():
                (source,) = rng.choices(chain, weights)
                if rng.random() < TAKEN:
                    reply[kind] = words[source][kind]
                else:
                    reply[kind] = rng.choice(choices)
            words.append(reply)
            tree.texts.append(rng.choice(REPLIES).format(**reply))
            tree.chains.append(chain)
        trees.append(tree)
    return trees


class Forest:
    """The texts of many trees in one list. sequences, chains: of each text its ids (at most
    block_size), and the rows of its n_ancestors nearest ancestors, parent first. others: a control,
    the ancestors of a text in another tree, of the same depth if there is one. pieces: rows of
    comments that are targets together, at most max_tree_size of a tree, parents first."""

    def __init__(self, trees, tokenizer, block_size, n_ancestors, max_tree_size=64):
        self.texts = []
        for tree in trees:
            self.texts += tree.texts
        self.sequences, self.n_long = sentences(tokenizer, self.texts, block_size)
        self.chains = []
        self.pieces = []
        by_depth = []  # of each tree, {depth: chains of its texts}
        for tree in trees:
            root = len(self.chains)  # the row of its post
            chains_at = {}
            for chain in tree.chains:
                rows = [root + ancestor for ancestor in chain[:n_ancestors]]
                self.chains.append(rows)
                chains_at.setdefault(len(chain), []).append(rows)
            by_depth.append(chains_at)
            comments = range(root + 1, len(self.chains))
            for start in range(0, len(comments), max_tree_size):
                self.pieces.append(comments[start : start + max_tree_size])

        # The other tree is the next one when sorted by depth, and after the last one the first
        self.others = []
        order = sorted(range(len(trees)), key=lambda k: max(by_depth[k]))
        next_tree = dict(zip(order, order[1:] + order[:1]))
        for k, tree in enumerate(trees):
            chains_at = by_depth[next_tree[k]]
            for i, chain in enumerate(tree.chains):
                chains = chains_at[min(len(chain), max(chains_at))]
                self.others.append(chains[i % len(chains)])

    def batches(self, batch_size, gen):
        """Return the targets of batch_size pieces each, in random order, as tensors of rows."""
        order = torch.randperm(len(self.pieces), generator=gen)
        return [self.rows_of(numbers) for numbers in order.split(batch_size)]

    def rows_of(self, numbers):
        """Return the rows of some pieces as one tensor."""
        rows = []
        for number in numbers:
            rows += self.pieces[number]
        return torch.tensor(rows)

    def above(self, rows, chains):
        """Return what the model reads of the ancestors `chains` of these comments: each once, as
        texts, texts_mask (N, T), and whose they are, as ancestors, ancestors_mask (B, A)."""
        used = set()
        for row in rows:
            used.update(chains[row])
        used = sorted(used)
        place = {ancestor: i for i, ancestor in enumerate(used)}
        texts, texts_mask = pad([self.sequences[ancestor] for ancestor in used])
        places = [torch.tensor([place[ancestor] for ancestor in chains[row]]) for row in rows]
        ancestors, ancestors_mask = pad(places)
        return {
            "texts": texts,
            "texts_mask": texts_mask,
            "ancestors": ancestors,
            "ancestors_mask": ancestors_mask,
        }

    def mask_comments(self, vocab_size, starts, rate, unit):
        """Return {view: batches}, as `pairs.mask_pairs` does for the views of a pair."""
        batches = {view: [] for view in THREAD_VIEWS}
        rows = self.rows_of(range(len(self.pieces)))
        lengths = [len(self.sequences[row]) for row in rows]
        for batch in length_batches(lengths, 64):
            comments = rows[batch].tolist()
            idx, mask = pad([self.sequences[row] for row in comments])  # (B, T)
            gen = generator("masks of comments", *comments)
            inputs, labels = mask_tokens(idx, vocab_size, gen, rate, unit, starts)
            contexts = {
                "ancestors": self.above(comments, self.chains),
                "alone": {},
                "shuffled": self.above(comments, self.others),
            }
            for view, context in contexts.items():
                batches[view].append((inputs, mask, labels, context))
        return batches


def read_forests(data, tokenizer, kind, vocab_size, valid, test=0.1, **options):
    """Return (name, tokenizer, {set: Forest}, sha256 of all trees), with shares of the trees held
    out. tokenizer: None makes one. options: see Forest. Raises UserError for too few trees."""
    trees = load_threads(data)
    rest, tested = hold_out(trees, test, seed=0, key=text_of_tree)
    kept, held_out = hold_out(rest, valid, seed=1, key=text_of_tree)
    if not kept or min(len(held_out), len(tested)) < 2:
        problem = f"{len(trees)} trees are too few for --valid {valid} and --test {test}"
        raise UserError(f"--data {data}: {problem}; give a larger share, or more posts")
    if not tokenizer:
        texts = []
        for tree in kept:
            texts += tree.texts
        tokenizer = train_tokenizer(kind, texts, vocab_size)
    parts = {"train": kept, "valid": held_out, "test": tested}
    forests = {name: Forest(part, tokenizer, **options) for name, part in parts.items()}
    return name_of(data), tokenizer, forests, hash_of(trees)


def text_of_tree(tree):
    """Return all texts of a tree as one."""
    return "\n".join(tree.texts)
