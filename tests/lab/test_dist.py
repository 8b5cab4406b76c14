"""lab/dist.py: which rows a process computes."""

import pytest
import torch

from lab import dist


@pytest.mark.parametrize("n_processes, accumulate, members", [(1, 1, 2), (2, 1, 1), (3, 2, 2)])
def test_each_target_is_in_one_part(n_processes, accumulate, members, monkeypatch):
    targets = torch.arange(members * 4 * 3).view(members * 4, 3)
    seen = []
    for name in dist.VARIABLES:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", str(n_processes))
    for rank in range(n_processes):
        monkeypatch.setenv("RANK", str(rank))
        parts = list(dist.my_parts(targets, accumulate, members))
        assert len(parts) == accumulate
        for rows, part in parts:
            assert part.shape == targets[rows].shape and len(part) > 0  # to have gradients
            real = part[part >= 0]
            seen += real.tolist()
            if n_processes > 1 and len(real):  # of each member equally many rows
                assert torch.bincount(rows // 4, minlength=members).unique().numel() == 1
    assert sorted(seen) == targets.flatten().tolist()
