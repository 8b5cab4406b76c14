"""Masked words of a comment given its ancestors: what is said above it in the thread, each text as one vector.

    python -m beyond.train_thread --data toy

A post and its comments form a tree. The encoder reads every text that has replies once and averages its states; an
unmasked decoder reads the comment whose words are hidden, and its cross-attention the vectors of the comment's
ancestors. Afterwards the same hidden words are asked for three times: with the ancestors, without any, and with those
of a comment in another tree.
"""

import math
from dataclasses import dataclass

import torch

from data import batching, masking
from data.corpora import toy_threads
from data.corpora.threads import load_threads
from data.corpus import hold_out
from data.forest import Forest
from data.tokenizer import UNK, train_tokenizer, word_starts
from lab import processes
from lab.checkpoint import read_checkpoint
from lab.command import main
from lab.errors import require
from lab.flags import (
    ModelFlags,
    RunFlags,
    SpreadFlags,
    TokenizerFlags,
    flag,
    model_config,
    step_checks,
)
from lab.machine import autocast, compile_blocks, prepare
from lab.optim import learning_rate, make_optimizer, perplexity
from lab.parameters import count_parameters
from lab.run import Run
from model import LanguageModel
from nets.thread_reader import ThreadReader

# name in result.json: in words
VIEWS = {
    "ancestors": "with its ancestors",
    "alone": "without any",
    "shuffled": "with another tree's",
}
DEEPEST = 6  # comments at least so deep are counted together


@dataclass
class Flags(RunFlags, ModelFlags, TokenizerFlags, SpreadFlags):
    data: str = flag(
        "toy", "threads: toy (generated), or a .jsonl of one post with its comments a line"
    )
    ancestors: int = flag(8, "how many ancestors of a comment are read at most, the nearest ones")
    ancestor_positions: str = flag(
        "learned",
        "what is added to an ancestor's vector for its distance from the comment",
        ThreadReader.POSITIONS,
    )
    alone_rate: float = flag(
        0.2,
        "share of the updates without ancestors, so that the model also knows how to do without",
    )
    max_tree_size: int = flag(
        64,
        "comments in a tree; a larger one is split into trees of a comment's subtree "
        "and the thread down to it",
    )
    n_layer: int = flag(2, "number of blocks of the encoder, and of the decoder")
    n_head: int = flag(4, "attention heads a block")
    init_std: float = flag(
        0.125,
        "standard deviation of the initial weights; smaller, the words of a kind start "
        "too alike for their average to tell them apart",
    )
    activation: str = flag("gelu", "of the feed-forward layer", ("relu", "gelu"))
    head: str = flag("linear", "from hidden states to words", ("roberta", "clap", "linear"))
    mask_rate: float = flag(0.3, "share of tokens to predict")
    mask_unit: str = flag(
        "token",
        "what is hidden together: tokens, whole words, or spans of about three tokens",
        masking.UNITS,
    )
    steps: int = flag(1500, "number of updates")
    batch_size: int = flag(8, "trees an update")
    lr: float = flag(4e-3, "peak learning rate")
    warmup: int = flag(100, "steps in which the learning rate rises")
    decay: float = flag(
        0.5, "share of the steps, at the end, in which the learning rate falls to zero; 0: never"
    )
    weight_decay: float = flag(0.01, "of matrices")
    clip: float = flag(1.0, "largest gradient norm; 0: no limit")
    valid: float = flag(0.1, "share of the trees held out to choose the best checkpoint")
    test: float = flag(0.1, "share of the trees held out to measure on")
    eval_every: int = flag(150, "steps between evaluations")


# ---------------------------------------------------------------------------- measuring


def fixed_batches(forest, flags, vocab_size, starts):
    """Batches (rows, inputs, mask, labels, {view: what is read of the ancestors}) of all comments. The masks depend on
    neither the seed nor the step: with the same tokenizer and flags of the data and the masking, all runs are measured
    on the same words."""
    batches = []
    rows = torch.tensor([row for piece in forest.pieces for row in piece])
    for found in batching.length_batches([len(forest.sequences[row]) for row in rows], 64):
        chosen = rows[found].tolist()
        idx, mask = forest.comments(chosen)
        inputs, labels = masking.mask_tokens(
            idx,
            vocab_size,
            batching.generator("masks of comments", *chosen),
            flags.mask_rate,
            flags.mask_unit,
            starts,
        )
        batches.append(
            (
                chosen,
                inputs,
                mask,
                labels,
                {
                    "ancestors": forest.above(chosen, forest.chains),
                    "alone": {},
                    "shuffled": forest.above(chosen, forest.others),
                },
            )
        )
    return batches


@torch.no_grad()
def evaluate(model, forest, batches, device, flags):
    """{view: (2, DEEPEST) nats and number of hidden words by depth 1, 2, ..., DEEPEST or deeper}."""
    model.eval()
    sums = {view: torch.zeros(2, DEEPEST, dtype=torch.float64) for view in VIEWS}
    for rows, inputs, mask, labels, views in processes.mine(batches):
        depths = (forest.depths[rows].clamp(max=DEEPEST) - 1)[:, None].expand_as(labels)[
            labels != -100
        ]  # one for each loss
        for view, read in views.items():
            with autocast(flags, device):
                losses = (
                    model.losses(
                        inputs.to(device),
                        labels.to(device),
                        mask.to(device),
                        **batching.to(device, read),
                    )
                    .cpu()
                    .double()
                )
            sums[view] += torch.stack(
                [
                    torch.zeros(DEEPEST, dtype=torch.float64).index_add(0, depths, x)
                    for x in (losses, torch.ones_like(losses))
                ]
            )
    model.train()
    return {view: processes.add(found) for view, found in sums.items()}


def toy_floor(forest, batches, tokenizer):
    """The same for the grammar that made the toy threads, which knows the probability of every word, without the control."""
    tokens, size = tokenizer.get_vocab(), tokenizer.get_vocab_size()
    sums = {view: torch.zeros(2, DEEPEST, dtype=torch.float64) for view in ("ancestors", "alone")}
    for rows, inputs, _, labels, _ in batches:
        for row, shown, hidden in zip(rows, inputs.tolist(), labels != -100):
            places = hidden.nonzero().flatten().tolist()
            for view, chain in (("ancestors", forest.chains[row]), ("alone", [])):
                nats = toy_threads.nats(
                    forest.texts[row], [forest.texts[a] for a in chain], tokens, shown, places, size
                )
                sums[view][:, forest.depths[row].clamp(max=DEEPEST) - 1] += torch.tensor(
                    [nats, len(places)], dtype=torch.float64
                )
    return sums


def perplexities(sums, name):
    """{"perplexity/NAME-VIEW": ..., "perplexity/NAME-VIEW-depth-1": ...} of what `evaluate` returns."""
    numbers = {}
    for view, (nats, counts) in sums.items():
        numbers[f"perplexity/{name}-{view}"] = perplexity(nats.sum().item(), counts.sum().item())
        numbers |= {
            f"perplexity/{name}-{view}-depth-{d + 1}": perplexity(nats[d].item(), counts[d].item())
            for d in range(DEEPEST)
            if counts[d]
        }
    return numbers


# ---------------------------------------------------------------------------- training


def train(flags):
    check(flags)

    # Data: trees, whole ones held out.
    threads = load_threads(flags.data)
    # Every run is measured on the same trees
    rest, test = hold_out(threads.trees, flags.test, seed=0, key=lambda tree: tree.text())
    kept, valid = hold_out(rest, flags.valid, seed=1, key=lambda tree: tree.text())
    require(
        (
            kept and len(valid) > 1 and len(test) > 1,
            f"--data {flags.data}: {len(threads.trees)} trees are too few to hold out --valid {flags.valid} "
            f"and --test {flags.test} of them, at least two each; give more or larger shares",
        )
    )
    tokenizer = train_tokenizer(
        flags.tokenizer, [text for tree in kept for text in tree.texts], flags.vocab_size
    )
    starts = word_starts(tokenizer)
    forests = {
        name: Forest(trees, tokenizer, flags.block_size, flags.ancestors, flags.max_tree_size)
        for name, trees in (("train", kept), ("valid", valid), ("test", test))
    }
    known = forests["train"]

    # Model
    config = model_config(
        flags, vocab_size=tokenizer.get_vocab_size(), unit_embd=flags.head == "clap"
    )
    device = prepare(flags, config.n_embd)
    reader = {"n_ancestors": flags.ancestors, "ancestor_positions": flags.ancestor_positions}
    batches_of = {
        name: fixed_batches(forests[name], flags, config.vocab_size, starts)
        for name in ("valid", "test")
    }
    for name, part in batches_of.items():
        require(
            (
                any((labels != -100).any() for _, _, _, labels, _ in part),
                f"--data {flags.data}: no word of the {name} comments is in the vocabulary; "
                "give a larger --vocab-size or other data",
            )
        )
    run = Run("thread", flags, config, tokenizer, device, reader=reader)
    model = LanguageModel(ThreadReader(config, **reader)).to(device)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_optimizer(model, flags.lr, flags.weight_decay)
    run.say(
        f"{threads.name}: {len(kept):,} training trees ({len(known.texts) - len(kept):,} comments, "
        f"{sum(map(len, known.sequences)):,} tokens), {len(valid):,} for validation, {len(test):,} for the test, "
        f"{config.vocab_size:,} entries in the vocabulary; "
        f"{count_parameters(model)['total']:,} parameters, pos={config.pos}, on {device}"
    )
    run.say(
        f"  {100 * batching.fraction_unknown(torch.cat([s[1:] for s in forests['test'].sequences]), UNK):.1f}% "
        "of the test words out of vocabulary"
    )
    for what, n in threads.left_out.items():
        run.say(f"  {n:,} {what}")
    for what, n in (
        (
            "texts are longer than --block-size {block_size} and were cut",
            sum(forest.n_long for forest in forests.values()),
        ),
        (
            "trees more by splitting at --max-tree-size {max_tree_size}",
            len(known.pieces) - len(kept),
        ),
    ):
        if n:
            run.say(f"  {n:,} " + what.format(**vars(flags)))
    floor = {}
    if (
        flags.data == "toy"
        and flags.tokenizer == "word"
        and not flags.vocab_size
        and flags.ancestors >= toy_threads.DEEPEST
    ):
        floor = {
            name: perplexities(toy_floor(forests[name], part, tokenizer), name)
            for name, part in batches_of.items()
        }

    # Loop
    loss_of = processes.spread(model, some_unused=flags.alone_rate > 0)
    first, more = run.restore(model, optimizer)
    best, tokens = more.get("best", math.inf), more.get("tokens", 0)
    batches_an_epoch = -(-len(known.pieces) // flags.batch_size)
    losses, batches = more.get("losses", []), None  # losses since the last evaluation
    model.train()
    for step in run.interruptible(range(first, flags.steps + 1)):
        if run.is_due(step):
            sums = evaluate(model, forests["valid"], batches_of["valid"], device, flags)
            nats = {view: (found[0].sum() / found[1].sum()).item() for view, found in sums.items()}
            loss_valid = (1 - flags.alone_rate) * nats["ancestors"] + flags.alone_rate * nats[
                "alone"
            ]  # as often as trained
            numbers = perplexities(sums, "valid")
            run.log(
                step,
                tokens=tokens,
                **{"loss/valid": loss_valid},
                **numbers,
                **({"loss/train": torch.stack(losses).mean().item()} if losses else {}),
            )
            losses = []
            run.say(
                f"step {step:>6}  perplexity of a comment's hidden words  "
                + ", ".join(
                    f"{numbers[f'perplexity/valid-{view}']:,.2f} {words}"
                    for view, words in VIEWS.items()
                )
            )
            if loss_valid < best:
                best = loss_valid
                run.save("best.pt", model=model.state_dict(), step=step)
            run.save_checkpoint(model, optimizer, step, best=best, tokens=tokens, losses=losses)
        run.stop_if_asked(model, optimizer, step, best=best, tokens=tokens, losses=losses)
        if step == flags.steps:
            break
        epoch, position = divmod(step, batches_an_epoch)
        if batches is None or position == 0:
            batches = torch.randperm(
                len(known.pieces), generator=batching.generator(flags.seed, "epoch", epoch)
            ).split(flags.batch_size)
        rows = [
            row for piece in batches[position] for row in known.pieces[piece]
        ]  # all comments of a batch of trees
        gen = batching.generator(flags.seed, "masks", step)
        alone = torch.rand((), generator=gen) < flags.alone_rate
        idx, mask = known.comments(rows)
        inputs, labels = masking.mask_tokens(
            idx, config.vocab_size, gen, flags.mask_rate, flags.mask_unit, starts
        )
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss, count = 0.0, max(1, (labels != -100).sum().item())
        # All of them, unless several processes share them out
        for part_rows, wanted in processes.parts(loss_of, labels, flags, step):
            read = (
                {} if alone else known.above(torch.tensor(rows)[part_rows].tolist(), known.chains)
            )
            with autocast(flags, device):
                read = batching.to(
                    device, {"idx": inputs[part_rows], "mask": mask[part_rows], **read}
                )
                part = loss_of(targets=wanted, **read) / count
            part.backward()
            loss += part.detach()
        if flags.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), flags.clip)
        optimizer.step()
        losses.append(processes.add(loss))
        read_too = set() if alone else {ancestor for row in rows for ancestor in known.chains[row]}
        tokens += int(mask.sum()) + sum(len(known.sequences[ancestor]) for ancestor in read_too)
        run.progress(step + 1, flags.steps, loss, lr, tokens - more.get("tokens", 0))

    # Results
    best_weights = processes.from_first(lambda: read_checkpoint(run.folder / "best.pt", device))
    model.load_state_dict(best_weights["model"])
    result = {"step": best_weights["step"], "vocab_size": config.vocab_size}
    for name, part in batches_of.items():
        sums = evaluate(model, forests[name], part, device, flags)
        result |= perplexities(sums, name) | {
            f"floor/{key}": value for key, value in floor.get(name, {}).items()
        }
        result[f"tokens/{name}"] = int(sums["alone"][1].sum())
        result |= {
            f"tokens/{name}-depth-{d}": int(n) for d, n in enumerate(sums["alone"][1], start=1) if n
        }
    result["gain/test"] = math.log(
        result["perplexity/test-alone"] / result["perplexity/test-ancestors"]
    )
    if floor:
        result["floor/gain/test"] = math.log(
            result["floor/perplexity/test-alone"] / result["floor/perplexity/test-ancestors"]
        )
    if processes.leave():
        return
    run.finish(result, model, tokens)
    draw(run, result)
    for depth in depths_in(result):
        run.say(
            f"  {depth_in_words(depth):<9}{result[f'tokens/test-depth-{depth}']:>7,} words  "
            + in_words(result, f"-depth-{depth}")
        )
    run.say(
        f"  the ancestors tell {result['gain/test']:.3f} nats a hidden word"
        + (f"; by the grammar {result['floor/gain/test']:.3f}" if floor else "")
    )
    run.say(
        f"perplexity of hidden words in test trees at step {best_weights['step']}: {in_words(result)}; "
        f"{run.seconds():.0f} s, {run.folder}"
    )


def in_words(result, ending=""):
    """The three perplexities of the test trees, and what the grammar makes possible."""
    floor = {view: result.get(f"floor/perplexity/test-{view}{ending}") for view in VIEWS}
    return ", ".join(
        f"{result[f'perplexity/test-{view}{ending}']:,.2f} {words}"
        + (f" (floor {floor[view]:.2f})" if floor[view] else "")
        for view, words in VIEWS.items()
    )


def depths_in(result):
    return [depth for depth in range(1, DEEPEST + 1) if f"tokens/test-depth-{depth}" in result]


def depth_in_words(depth):
    return f"depth {depth}" + "+" * (depth == DEEPEST)


def check(flags):
    require(
        *step_checks(flags),
        (
            flags.ancestors > 0,
            f"--ancestors must be at least 1, got {flags.ancestors}; without any, the decoder would have nothing to look at",
        ),
        (
            flags.max_tree_size > max(flags.ancestors, 1),
            f"--max-tree-size must be above --ancestors {flags.ancestors}, so that a comment has room beside them, "
            f"got {flags.max_tree_size}",
        ),
        (
            flags.ancestor_positions != "sinusoidal" or flags.n_embd % 2 == 0,
            f"--ancestor-positions sinusoidal pairs a sine with a cosine, so --n-embd must be even, got {flags.n_embd}",
        ),
        (0 <= flags.alone_rate <= 1, f"--alone-rate must be from 0 to 1, got {flags.alone_rate}"),
        (
            0 < flags.mask_rate < 1,
            f"--mask-rate must be above 0 and below 1, got {flags.mask_rate}",
        ),
        (0 < flags.valid < 1, f"--valid must be above 0 and below 1, got {flags.valid}"),
        (0 < flags.test < 1, f"--test must be above 0 and below 1, got {flags.test}"),
        (
            flags.block_size > 1,
            f"--block-size must be at least 2 ([BOS] and a word), got {flags.block_size}",
        ),
    )


def draw(run, result):
    """curve.png: perplexity of the validation trees over steps; depth.png: of the test trees by the depth of the comment."""
    from lab import figures

    metrics, depths, label = (
        run.metrics(),
        depths_in(result),
        "perplexity of hidden words (log scale)",
    )
    # An untrained model's perplexity is the size of the vocabulary, and would flatten all that follows
    shown = metrics[1:] or metrics
    over_steps = {
        words: ([m["step"] for m in shown], [m[f"perplexity/valid-{view}"] for m in shown])
        for view, words in VIEWS.items()
    }
    floors = {
        f"floor {words}": result[f"floor/perplexity/valid-{view}"]
        for view, words in VIEWS.items()
        if f"floor/perplexity/valid-{view}" in result
    }
    figures.curves(
        run.folder / "curve.png",
        [("Comments of held-out trees", label, over_steps, floors, True)],
        "step",
        room=0.35,
    )
    by_depth = {}
    for kind, key in (("", ""), ("floor ", "floor/")):
        for view, words in VIEWS.items():
            if f"{key}perplexity/test-{view}" in result:
                by_depth[kind + words] = (
                    depths,
                    [result[f"{key}perplexity/test-{view}-depth-{d}"] for d in depths],
                )
    xlabel = "depth: number of ancestors" + f" ({DEEPEST} or more at {DEEPEST})" * (
        DEEPEST in depths
    )
    figures.curves(
        run.folder / "depth.png",
        [("Comments of the test trees", label, by_depth, {}, True)],
        xlabel,
        room=0.25,
    )


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
