"""Random shapes for the cases of an exercise."""

import torch


def sizes(gen, n):
    """Return n different sizes from 3 to 8, so that no two dimensions can be confused."""
    return (torch.randperm(6, generator=gen)[:n] + 3).tolist()
