"""Draw the position encoding of a model: vectors, angles of rotation, or a bias such as ALiBi's."""

import torch

from lab.inside.checks import slope
from lab.inside.heatmaps import draw_tables


@torch.no_grad()
def draw_positions(body, title):
    """Return a figure of what a body itself adds for all positions it was trained with, or None for
    NoPE."""
    config, T = body.config, body.config.block_size
    vectors, angles = body.position_vectors(T), body.angles(T)
    if config.pos == "nope":
        return None
    if vectors is not None:
        vectors = vectors.cpu()  # (T, C)
        panels = [
            (f"{config.pos} vectors", vectors, "position", "channel"),
            ("dot product of two positions", vectors @ vectors.T, "position", "position"),
        ]
        return draw_tables(panels, title)
    if angles is not None:
        angles = angles.cpu()  # (T, D/2)
        product = (angles[:, None] - angles).cos().mean(-1)  # (T, T)
        panels = [
            ("cosine of the angle", angles.cos(), "position", "pair of channels"),
            ("q · k of equal vectors, rotated", product, "query", "key"),
        ]
        return draw_tables(panels, title)
    panels = []
    for head, bias in enumerate(body.attention_bias(T)[0].cpu()):  # (T, T)
        of_alibi = f", slope 1/{1 / slope(body, head):.4g}" if config.pos == "alibi" else ""
        panels.append((f"head {head + 1}: bias{of_alibi}", bias, "query", "key"))
    return draw_tables(panels, title, "added to the score")
