"""What the attention of a run makes of some texts, and whether its weights are what attention promises.

`readings_of` lets a run read texts and gives a `Reading` for each attention it has: the weights of every layer and head,
and the checks, which compare them with the definitions and not with model.py's own tables. attention_maps.py draws them.
"""

import math
from dataclasses import dataclass

import torch

from data import batching, spans
from data.tokenizer import BOS, EOS, MASK, UNK, frame, token_strings
from lab.errors import require
from lab.load import LoadedRun
from nets.encoder_decoder import generate

KINDS = {
    "lm": "causal LM",
    "mlm": "masked LM",
    "classifier": "classifier",
    "seq2seq": "encoder-decoder",
}


@dataclass
class Reading:
    """What one attention of a run made of B texts, padded to T tokens,
    which look at S = T tokens of their own or at those of a source."""

    run: LoadedRun
    words: list  # for each text its tokens as they are shown, without padding
    mask: torch.Tensor  # (B, T) bool, True for real tokens
    weights: torch.Tensor  # (L, B, H, T, S)
    checks: list  # {"check": what must hold, "worst": value seen, "limit": largest value allowed}
    part: str = ""  # of an encoder-decoder: encoder, decoder or cross
    source: list = None  # for cross: as words and mask, of what is looked at
    source_mask: torch.Tensor = None

    def body(self):
        return (
            getattr(self.run.model.body, "decoder" if self.part == "cross" else self.part)
            if self.part
            else self.run.model.body
        )

    def seen(self):
        """words and mask of what is looked at."""
        return (self.source, self.source_mask) if self.part == "cross" else (self.words, self.mask)

    def may(self, T, S):
        """(H, T, S) bool, True where row i may look at column j."""
        return (
            torch.ones(self.weights.size(2), T, S, dtype=torch.bool)
            if self.part == "cross"
            else allowed(self.body(), T)
        )

    def heads(self):
        return summary(self.weights, self.mask, own=self.part != "cross")

    def title(self):
        attention = {
            "encoder": "the encoder's own attention",
            "decoder": "the decoder's own attention",
            "cross": "from the decoder to the source",
        }
        return describe(self.run) + (f": {attention[self.part]}" if self.part else "")

    def as_json(self):
        part = {"attention": self.part} if self.part else {}
        sources = {"sources": self.source} if self.source else {}
        return {
            "run": str(self.run.folder),
            "model": describe(self.run),
            **part,
            "texts": self.words,
            **sources,
            "checks": finite(self.checks),
            "heads": finite(self.heads()),
        }


def describe(run):
    """The run's model in a few words, for headings."""
    config = run.model.body.config
    causal = getattr(run.model.body, "causal", False)
    variant = f" ({config.alibi})" if config.pos == "alibi" and not causal else ""
    of = " on a decoder" if run.kind == "classifier" and causal else ""
    return (
        f"{KINDS[run.kind]}{of}, pos={config.pos}{variant}"
        + (f", window={config.window}" if config.window else "")
        + (f", unfinished: {run.unfinished}" if run.unfinished else "")
    )


# ---------------------------------------------------------------------------- texts


def read(run, texts):
    """Texts as the run reads them: idx (B, T), mask (B, T), and each text's tokens as they are shown.

    A word that is not in the vocabulary is shown as it was typed, with a star.
    """
    sequences, shown, block_size = [], [], run.model.body.config.block_size
    for number, text in enumerate(texts, 1):
        encoding = run.tokenizer.encode(text, add_special_tokens=False)
        require((encoding.ids, f"--text {text!r}: holds no word; give a sentence"))
        typed = [text[start:end] for start, end in encoding.offsets]
        words = [
            word + "*" if i == UNK and word != "[UNK]" else token
            for i, word, token in zip(
                encoding.ids, typed, token_strings(run.tokenizer, encoding.ids)
            )
        ]
        around = len(frame(run.tokenizer, []))  # [BOS], and for RoBERTa [EOS]
        ids = frame(run.tokenizer, encoding.ids[: block_size - around])
        words = ["[BOS]", *words[: block_size - around], *["[EOS]"] * (around - 1)]
        if len(encoding.ids) + around > block_size:
            print(
                f"  note: text {number} has {len(encoding.ids) + around} tokens "
                f"with {' and '.join(['[BOS]', '[EOS]'][:around])} and is cut to {block_size}, the trained block size"
            )
        if UNK in ids:
            unknown = [word for i, word in zip(ids, words) if i == UNK]
            print(
                f"  note: text {number}: {len(unknown)} of {len(ids) - around} tokens unknown to this run, "
                f"read as [UNK]: {' '.join(unknown)}"
            )
        sequences.append(torch.tensor(ids))
        shown.append(words)
    return *batching.pad(sequences), shown


def read_both(run, texts):
    """What an encoder-decoder reads and writes: idx, mask, words of the source as `read` gives them, and of what is
    written, from [BOS] on.

    A [MASK] is a gap, and the likeliest filling is what is written. In a text without one, gaps are drawn, the same
    each time, and what stood there is written. A run that translates writes the likeliest translation.
    """
    idx, mask, words = read(run, texts)
    first, config, device = (
        run.config.get("first_sentinel"),
        run.model.body.config,
        next(run.model.parameters()).device,
    )
    targets = []
    for b, n in enumerate(mask.sum(1).tolist()):
        source, target = idx[b, :n], None
        masks = int((source == MASK).sum())
        if first is not None and not masks:
            flags = run.config["flags"]
            source, _, target, _ = spans.corrupt(
                source[None],
                mask[b : b + 1, :n],
                first,
                batching.generator("gaps"),
                flags["mask_rate"],
                flags["mean_span"],
            )
            source, words[b] = source[0], token_strings(run.tokenizer, source[0])
        elif first is not None:
            require(
                (
                    masks <= config.vocab_size - first,
                    f"--text has {masks} [MASK]s, "
                    f"but {run.folder} was trained with at most {config.vocab_size - first} gaps",
                )
            )
            source[source == MASK] = torch.arange(first, first + masks)
            words[b] = [
                run.tokenizer.id_to_token(i) if i >= first else word
                for i, word in zip(source.tolist(), words[b])
            ]
        if target is None:
            target = generate(
                run.model, source[None].to(device), None, BOS, EOS, config.block_size - 1
            ).cpu()
        targets.append([BOS, *target[0].tolist()])
        targets[-1] = targets[-1][: targets[-1].index(EOS)] if EOS in targets[-1] else targets[-1]
        idx[b] = torch.nn.functional.pad(source, (0, idx.size(1) - len(source)))
        mask[b] = torch.arange(idx.size(1)) < len(source)
    written = [token_strings(run.tokenizer, ids) for ids in targets]
    return (idx, mask, words), (*batching.pad([torch.tensor(ids) for ids in targets]), written)


def readings_of(run, texts, device):
    """What the run made of the texts: one Reading, or of an encoder-decoder three."""
    body = run.model.body
    if run.kind != "seq2seq":
        idx, mask, words = read(run, texts)
        return [Reading(run, words, mask, *examine(body, idx.to(device), mask.to(device))[:2])]
    (source, source_mask, words), (idx, mask, written) = read_both(run, texts)
    with torch.no_grad():
        memory = body.encoder(source.to(device), source_mask.to(device))
    of_encoder = examine(body.encoder, source.to(device), source_mask.to(device))
    of_decoder = examine(
        body.decoder, idx.to(device), mask.to(device), memory, source_mask.to(device)
    )
    return [
        Reading(run, words, source_mask, *of_encoder[:2], "encoder"),
        Reading(run, written, mask, *of_decoder[:2], "decoder"),
        Reading(run, written, mask, *of_decoder[2:], "cross", words, source_mask),
    ]


# ---------------------------------------------------------------------------- weights and checks


def steps_ahead(T):
    """(T, T): how many tokens column j is ahead of row i, negative towards the past."""
    return torch.arange(T)[None, :] - torch.arange(T)[:, None]


def allowed(body, T):
    """(H, T, T) bool, True where row i may look at column j. From the definitions: model.py's tables are what is checked."""
    config, ahead = body.config, steps_ahead(T)
    may = (ahead <= 0 if body.causal else ahead <= T).repeat(config.n_head, 1, 1)
    if config.window:
        may &= ahead.abs() < config.window
    if config.pos == "alibi" and config.alibi == "one-sided" and not body.causal:
        may[: config.n_head // 2] &= ahead <= 0
        may[config.n_head // 2 :] &= ahead >= 0
    return may


def slope(body, head):
    """ALiBi's slope of a head counted from 0: 2^(-8 (head + 1) / n) for n heads, n a power of two;
    else as Press et al. fill up."""
    n = body.config.n_head
    if body.config.alibi == "one-sided" and not body.causal:
        n, head = n // 2, head % (n // 2)
    power = 2 ** (n.bit_length() - 1)
    return 2.0 ** (
        -8 * (head + 1) / power if head < power else -4 * (2 * (head - power) + 1) / power
    )


@torch.no_grad()
def examine(body, idx, mask, memory=None, memory_mask=None):
    """idx, mask (B, T) -> the explicit attention's weights (L, B, H, T, T), on the CPU, and a list of checks.

    With the memory of a decoder (B, S, C) and its mask (B, S),
    also the weights (L, B, H, T, S) of its attention to that, and their checks.
    """
    inputs = []  # of each layer's attention, (B, T, C)
    hooks = [
        block.attention.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        for block in body.blocks
    ]
    cross = {} if memory is None else dict(memory=memory, memory_mask=memory_mask)
    h, maps = body(idx, mask, need_weights=True, **cross)
    for hook in hooks:
        hook.remove()
    fused = body(idx, mask, **cross)
    alone = [
        body(
            idx[b : b + 1, :n],
            **{"memory": memory[b : b + 1, : memory_mask[b].sum()]} if cross else {},
        )[0]
        - h[b, :n]
        for b, n in enumerate(mask.sum(1).tolist())
    ]
    maps, cross_maps = map(list, zip(*maps)) if cross else (maps, None)
    weights, ahead, may = (
        torch.stack(maps),
        steps_ahead(idx.size(1)).to(idx.device),
        allowed(body, idx.size(1)).to(idx.device),
    )
    real = mask[:, None, :, None]  # rows of real tokens, (B, 1, T, 1)

    checks, cross_checks = [], []

    def check(what, values, where, limit=0.0, checks=checks):
        checks.append(
            {
                "check": what,
                "worst": torch.where(where, values, 0).abs().max().item(),
                "limit": limit,
            }
        )

    check("rows sum to 1", weights.sum(-1, keepdim=True) - 1, real, 1e-5)
    if not mask.all():
        check("no weight on padding", weights, real & ~mask[:, None, None, :])
    if body.causal:
        check("nothing above the diagonal", weights, real & (ahead > 0))
    if body.config.window:
        check(
            f"nothing {body.config.window} or more tokens away",
            weights,
            real & (ahead.abs() >= body.config.window),
        )
    if (may != may[0]).any():
        check("each half of the heads looks one way", weights, real & ~may)
    check("fused attention gives the same output", fused - h, mask[:, :, None], 1e-4)
    check(
        "each text alone gives the same output",
        torch.cat(alone),
        torch.tensor(True, device=idx.device),
        1e-4,
    )
    if body.config.pos == "alibi":
        nearer = 0.5 if body.config.alibi == "offset" and not body.causal else 0.0
        bias = torch.stack(
            [-slope(body, head) * (ahead.abs() - nearer * (ahead > 0)) for head in range(len(may))]
        )  # (H, T, T)
        added = torch.stack(
            [
                added_to_scores(block.attention, x, w)
                for block, x, w in zip(body.blocks, inputs, weights)
            ]
        )
        most = weights.argmax(-1, keepdim=True)
        wrong = added - added.gather(-1, most) - (bias - bias.expand_as(weights).gather(-1, most))
        # A smaller weight is too rough to take the logarithm of; written with ~ so that NaN counts as wrong.
        check(
            "the weights hold -slope * distance",
            wrong,
            real & mask[:, None, None, :] & may & ~(weights < 1e-30),
            1e-3,
        )
    if not cross:
        return weights.float().cpu(), checks
    cross_weights = torch.stack(cross_maps)
    check("rows sum to 1", cross_weights.sum(-1, keepdim=True) - 1, real, 1e-5, cross_checks)
    if not memory_mask.all():
        check(
            "no weight on padding",
            cross_weights,
            real & ~memory_mask[:, None, None, :],
            checks=cross_checks,
        )
    return weights.float().cpu(), checks, cross_weights.float().cpu(), cross_checks


def added_to_scores(attention, x, weights):
    """What was added to q k^T / sqrt(D), told from the input x (B, T, C) and the weights (B, H, T, T) that came of it.

    (B, H, T, T), each row up to a constant, since a softmax does not show it.
    """
    B, T, C = x.shape
    D = C // attention.n_head
    q, k, _ = (
        attention.qkv(x).view(B, T, 3, attention.n_head, D).permute(2, 0, 3, 1, 4)
    )  # 3 of (B, H, T, D)
    return weights.log() - q @ k.transpose(-2, -1) / math.sqrt(D)


def summary(weights, mask, own=True):
    """weights (L, B, H, T, S), mask (B, T) -> one dictionary a head, its means over the real tokens of all texts.

    own: the tokens look at each other, so that there is a distance between two, and each can look at itself.
    """
    values = {"distance": (weights * steps_ahead(mask.size(1)).abs()).sum(-1)} if own else {}
    values |= {"first": weights[..., 0]} | (
        {"itself": weights.diagonal(dim1=-2, dim2=-1)} if own else {}
    )
    values |= {"entropy": torch.special.entr(weights).sum(-1)}  # each (L, B, H, T)
    means = {
        name: (value * mask[:, None, :]).sum((1, 3)) / mask.sum() for name, value in values.items()
    }  # each (L, H)
    return [
        {"layer": layer + 1, "head": head + 1}
        | {name: round(mean[layer, head].item(), 4) for name, mean in means.items()}
        for layer in range(weights.size(0))
        for head in range(weights.size(2))
    ]


def holds(check):
    return check["worst"] <= check["limit"]  # false for NaN


def finite(rows):
    """Dictionaries for a JSON file, which has no word for NaN or infinity."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in rows
    ]
