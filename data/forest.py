"""Comment trees as a model reads them: every text once, and the ancestors of each text."""

import torch

from data import batching
from data.tokenizer import UNK


class Forest:
    """The texts of many trees in one list, each cut to block_size tokens.

    sequences, depths, chains: of each text its ids, its depth, and the rows of its n_ancestors
    nearest ancestors, parent first. others: a control, the ancestors of a text in another tree, of
    the same depth if there is one. pieces: rows that are targets together, see `split_tree`.
    """

    def __init__(self, trees, tokenizer, block_size, n_ancestors, max_tree_size):
        self.texts = [text for tree in trees for text in tree.texts]
        self.sequences, self.n_long = batching.sentences(tokenizer, self.texts, block_size)
        self.depths = torch.tensor([depth for tree in trees for depth in tree.depths()])
        self.chains, self.others, self.pieces = [], [], []
        by_depth = [{} for _ in trees]  # for each tree, {depth: chains of its texts}
        for tree, chains_at in zip(trees, by_depth):
            root = len(self.chains)
            for chain, depth in zip(tree.ancestors(n_ancestors), tree.depths()):
                self.chains.append([root + a for a in chain])
                chains_at.setdefault(depth, []).append(self.chains[-1])
            pieces = split_tree(tree, max_tree_size, n_ancestors)
            self.pieces += [[root + i for i in piece] for piece in pieces]
        # The other tree is the next one when sorted by depth.
        order = sorted(range(len(trees)), key=lambda k: max(by_depth[k]))
        other_of = dict(zip(order, order[1:] + order[:1]))
        for k, tree in enumerate(trees):
            chains_at = by_depth[other_of[k]]
            for i, depth in enumerate(tree.depths()):
                chains = chains_at[min(depth, max(chains_at))]
                self.others.append(chains[i % len(chains)])

    def batches(self, batch_size, gen):
        """Return the targets of batch_size pieces each, in random order, as tensors of rows."""
        order = torch.randperm(len(self.pieces), generator=gen).split(batch_size)
        return [torch.tensor([row for i in some for row in self.pieces[i]]) for some in order]

    def comments(self, rows):
        """Return idx, mask (B, T) of these comments."""
        return batching.pad([self.sequences[row] for row in rows])

    def repeated(self, rows, labels):
        """Return (N,) bool: whether each target, labels (B, T), also appears in an ancestor that is
        read. Labels of -100 are skipped; [UNK] always counts as not appearing."""
        found = []
        for row, words in zip(rows, labels.tolist()):
            above = {i for a in self.chains[row] for i in self.sequences[a].tolist()} - {UNK}
            found += [word in above for word in words if word != -100]
        return torch.tensor(found, dtype=torch.bool)

    def above(self, rows, chains):
        """Return what the model reads of the ancestors `chains` of these comments.

        texts, texts_mask (N, T): each ancestor once. ancestors, ancestors_mask (B, A): which of
        them each comment has; padding is row 0.
        """
        used = sorted({a for row in rows for a in chains[row]})
        place = {a: i for i, a in enumerate(used)}
        texts, texts_mask = batching.pad([self.sequences[a] for a in used])
        ancestors, ancestors_mask = batching.pad(
            [torch.tensor([place[a] for a in chains[row]]) for row in rows]
        )
        return {
            "texts": texts,
            "texts_mask": texts_mask,
            "ancestors": ancestors,
            "ancestors_mask": ancestors_mask,
        }


def split_tree(tree, max_size, n_ancestors):
    """Split a tree into pieces: lists of indices, which hold each comment once and not the post.

    A piece is one thread down to a comment, then that comment's whole subtree. With the nearest
    n_ancestors of all its comments, it has at most max_size comments. A comment whose own subtree
    is too large is in the first piece below it. A tree that is small enough is one piece. The sizes
    of pieces vary as widely as those of subtrees.

        0 ── 1 ── 2 ── 3    max_size=3, n_ancestors=2:  [1, 2, 3], [4], [5]
                  └── 4
        └── 5

    max_size must be above n_ancestors, so that there is room for a comment.
    """
    children, size = [[] for _ in tree.parents], [1] * len(tree.parents)
    for i in range(len(tree.parents) - 1, 0, -1):
        size[tree.parents[i]] += size[i]
        children[tree.parents[i]].append(i)
    if size[0] - 1 <= max_size:
        yield list(range(1, len(tree.parents)))
        return

    above = tree.ancestors(n_ancestors)
    waiting = list(children[0])
    begun = []  # the comments right above the next one that are targets of no piece yet
    while waiting:
        i = waiting.pop()
        first_target = begun[0] if begun else i
        used = len(begun) + sum(a > 0 for a in above[first_target])  # without the post
        is_whole = used + size[i] <= max_size
        if not is_whole and used + 1 < max_size:
            begun.append(i)
            waiting += children[i]
            continue
        subtree = [i]
        if is_whole:
            for j in subtree:  # the list grows
                subtree += reversed(children[j])
        else:
            waiting += children[i]
        yield begun + subtree
        begun = []
