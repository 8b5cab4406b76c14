"""Positions that the task gives: tokens that belong together have the same one."""

import torch


class Coupled:
    """Replaces Transformer.number: positions begin again at 0 at each of the tokens restart_ids, as
    at the = of `a b c = a b c`. A symbol and its copy then have the same position, and the distance
    to look back is the same for every length (position coupling, Cho et al. 2024; digits of the
    same place value in Abacus, McLeish et al. 2024).

    Learned positions begin at a random number in training, as in these papers: otherwise those that
    only longer texts have would never be trained."""

    def number(self, idx, mask):
        at = count_from(idx, self.config.restart_ids)  # (B, T)
        if self.training and self.positions.ends:
            room = self.config.block_size - int(at.max())
            at = at + torch.randint(room, (len(idx), 1), device=idx.device)
        return at


def count_from(idx, restart_ids):
    """Return for each token of idx (B, T) how many tokens it stands after the last one of the
    restart_ids, or after the first token of its text, (B, T)."""
    t = torch.arange(idx.size(1), device=idx.device)
    is_start = torch.isin(idx, torch.tensor(restart_ids, device=idx.device))
    start = torch.where(is_start, t, 0).cummax(dim=1).values  # (B, T)
    return t - start
