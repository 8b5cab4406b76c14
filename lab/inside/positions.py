"""Draw the position encoding of a model: ALiBi's bias, vectors, or angles of rotation."""

from lab.inside.checks import slope
from lab.inside.heatmaps import draw_tables
from model import position_angles, score_bias, sinusoids


def draw_positions(body, title):
    """Return a figure of a body's position encoding for all positions it was trained with, or None
    for NoPE."""
    config, T = body.config, body.config.block_size
    if config.pos == "nope":
        return None
    if config.pos == "alibi":
        bias = score_bias(T, config, body.causal)[0]  # (H, T, T)
        names = [f"head {h + 1}: bias, slope 1/{1 / slope(body, h):.4g}" for h in range(len(bias))]
        panels = [(name, table, "query", "key") for name, table in zip(names, bias)]
        return draw_tables(panels, title, "added to the score")
    if config.pos == "rope":
        D = config.n_embd // config.n_head
        angles = position_angles(T, D)  # (T, D/2)
        product = (angles[:, None] - angles).cos().mean(-1)  # (T, T)
        panels = [
            ("cosine of the angle", angles.cos(), "position", "pair of channels"),
            ("q · k of equal vectors, rotated", product, "query", "key"),
        ]
        return draw_tables(panels, title)
    if config.pos == "learned":
        vectors = body.positions.weight.detach().cpu()
    elif config.pos == "sinusoidal":
        vectors = sinusoids(T, config.n_embd)
    else:
        raise ValueError(f"no picture of {config.pos} yet; add one here")
    panels = [
        (f"{config.pos} vectors", vectors, "position", "channel"),
        ("dot product of two positions", vectors @ vectors.T, "position", "position"),
    ]
    return draw_tables(panels, title)
