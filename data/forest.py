"""Comment trees as a model reads them: every text once, and for each which others stand above it."""

import torch

from data import batching
from data.corpora.threads import split


class Forest:
    """The texts of many trees in one list, cut to block_size tokens: their ids, and for each its depth and the rows of its
    n_ancestors nearest ancestors, parent first. pieces are the rows that are targets in one step, of trees no larger than
    max_tree_size; others are the control: for each text the ancestors of one in another tree, as deep if that has any."""

    def __init__(self, trees, tokenizer, block_size, n_ancestors, max_tree_size):
        self.texts = [text for tree in trees for text in tree.texts]
        self.sequences, self.n_long = batching.sentences(tokenizer, self.texts, block_size)
        self.depths = torch.tensor([depth for tree in trees for depth in tree.depths()])
        self.chains, self.others, self.pieces = [], [], []
        first, above = [], []  # of each tree: its first row, and the ancestors of each of its rows
        for tree in trees:
            first.append(len(self.chains))
            above.append([[first[-1] + a for a in chain] for chain in tree.ancestors(n_ancestors)])
            self.chains += above[-1]
            self.pieces += [
                [first[-1] + i for i in targets]
                for _, targets in split(tree, max_tree_size, n_ancestors)
            ]
        order = sorted(range(len(trees)), key=lambda k: max(trees[k].depths()))
        other_of = dict(zip(order, order[1:] + order[:1]))
        for k, tree in enumerate(trees):
            by_depth = {}
            for chain, depth in zip(above[other_of[k]], trees[other_of[k]].depths()):
                by_depth.setdefault(depth, []).append(chain)
            for i, depth in enumerate(tree.depths()):
                chains = by_depth[min(depth, max(by_depth))]
                self.others.append(chains[i % len(chains)])

    def comments(self, rows):
        """idx, mask (B, T) of these comments."""
        return batching.pad([self.sequences[row] for row in rows])

    def above(self, rows, chains):
        """What the model reads of the ancestors `chains` of these comments: each text once, and which are whose."""
        used = sorted({a for row in rows for a in chains[row]})
        place = {a: i for i, a in enumerate(used)}
        texts, texts_mask = batching.pad([self.sequences[a] for a in used])
        # Padding is row 0, masked.
        ancestors, ancestors_mask = batching.pad(
            [torch.tensor([place[a] for a in chains[row]]) for row in rows]
        )
        return {
            "texts": texts,
            "texts_mask": texts_mask,
            "ancestors": ancestors,
            "ancestors_mask": ancestors_mask,
        }
