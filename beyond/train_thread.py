"""Predict masked words of a comment from the comment and from its ancestors in the thread.

    python -m beyond.train_thread --data toy
    python -m beyond.train_thread --data threads.jsonl --max-tree-size 32
    python -m beyond.train_thread --init-from out/mlm-... --data threads.jsonl

A post and its comments form a tree. The encoder reads every text that has replies once and averages
its states. A decoder without a causal mask reads the comment with masked words, and its
cross-attention reads the vectors of the comment's ancestors. Afterwards the same masked words are
predicted three times: with the ancestors, without any, and with those of a comment in another tree.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grad_norm_

from data.batching import by_epoch, generator, share_unknown
from data.masked_comments import (
    DEEPEST,
    GROUPS,
    VIEWS,
    all_depths,
    fixed_batches,
    read_forests,
    sum_by_group,
    toy_floor,
)
from data.masking import mask_tokens
from data.tokenizer import word_starts
from lab import figures, processes
from lab.command import main
from lab.errors import require
from lab.evaluation import require_targets
from lab.flags import MaskFlags, ProcessFlags, TrainFlags, flag, model_config
from lab.limits import LARGEST
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.report import Curves, draw_curve, heading, say_start
from lab.run import Run
from lab.sources import load_init_from
from model import LanguageModel
from nets.device import send_all
from nets.thread_reader import ThreadReader


@dataclass
class Flags(MaskFlags, TrainFlags, ProcessFlags):
    data: str = flag("toy", "toy, or a .jsonl with a post and its comments per line")
    init_from: str = flag("", "run folder of train_mlm.py to start both encoders from")
    ancestors: int = flag(8, "read at most this many nearest ancestors of a comment", at_least=1)
    ancestor_positions: str = flag("learned", "their positions", ThreadReader.ANCESTOR_POSITIONS)
    alone_rate: float = flag(0.2, "share of the updates without ancestors", at_least=0, at_most=1)
    max_tree_size: int = flag(64, "comments in a tree; larger trees are split")
    valid: float = flag(0.1, "share of trees held out to choose the best step", above=0, below=1)
    test: float = flag(0.1, "share of trees held out to measure on", above=0, below=1)
    n_layer: int = 2
    n_head: int = 4
    init_std: float = 0.125  # smaller, the words of a kind start too alike to be told apart
    activation: str = "gelu"
    steps: int = 1500
    batch_size: int = flag(8, "trees per update", at_least=1, at_most=LARGEST)
    lr: float = 4e-3
    warmup: int = 100
    eval_every: int = 150


@torch.no_grad()
def evaluate(model, forest, batches, device, flags):
    """Return {view: (2, GROUPS) nats and number of masked words}."""
    model.eval()
    sums = {view: torch.zeros(2, len(GROUPS), dtype=torch.float64) for view in VIEWS}
    for rows, inputs, mask, labels, views in processes.my_share(batches):
        words = send_all({"idx": inputs, "mask": mask}, device)
        again = forest.repeated(rows, labels)
        for view, read in views.items():
            with autocast(flags, device):
                losses = model.losses(targets=labels, **words, **send_all(read, device))
            sums[view] += sum_by_group(forest, rows, labels, losses.cpu().double(), again)
    model.train()
    return {view: processes.all_sum(found) for view, found in sums.items()}


def perplexities(sums, name):
    """Return {"perplexity/NAME-VIEW": ..., "perplexity/NAME-VIEW-GROUP": ...} of the sums."""
    numbers = {}
    for view, found in sums.items():
        key = f"perplexity/{name}-{view}"
        numbers[key] = perplexity(*all_depths(found))
        groups = zip(GROUPS, *found.tolist())
        numbers |= {f"{key}-{group}": perplexity(nats, n) for group, nats, n in groups if n}
    return numbers


def train(flags):
    # Data: trees, whole ones held out, the same in every run
    source = load_init_from(flags, "mlm")
    check(flags, source)
    name, tokenizer, forests, notes = read_forests(flags, source and source.tokenizer)
    vocab_size, starts = tokenizer.get_vocab_size(), word_starts(tokenizer)
    forest = forests["train"]
    fixed = {n: fixed_batches(forests[n], flags, vocab_size, starts) for n in ("valid", "test")}
    floor = {}
    for n, part in fixed.items():
        what = f"--data {flags.data}: no word of the {n} comments"
        require_targets((labels for _, _, _, labels, _ in part), what)
        floor |= perplexities(toy_floor(flags, forests[n], part, tokenizer), n)

    # Model
    config = model_config(flags, source, vocab_size=vocab_size, unit_embd=flags.head == "clap")
    device = set_up_device(flags, config)
    reader = {"n_ancestors": flags.ancestors, "ancestor_positions": flags.ancestor_positions}
    run = Run("thread", flags, config, tokenizer, device, reader=reader)
    model = LanguageModel(ThreadReader(config, **reader)).to(device)
    if source:
        model.body.start_from(source.model.body)
        model.head.load_state_dict(source.model.head.state_dict())
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    trees = {n: int((each.depths == 0).sum()) for n, each in forests.items()}
    n_tokens = sum(map(len, forest.sequences))
    what = f"{len(forest.texts) - trees['train']:,} comments, {n_tokens:,} tokens"
    sizes = f"{trees['valid']:,} for validation, {trees['test']:,} for the test"
    say_start(run, f"{name}: {trees['train']:,} training trees ({what}), {sizes}", model)
    unknown = share_unknown(forests["test"].sequences)
    run.say(f"  {unknown:.1%} of the test words out of vocabulary")
    for what, n in notes.items():
        run.say(f"  {n:,} {what}")

    # Loop
    def measure():
        sums = evaluate(model, forests["valid"], fixed["valid"], device, flags)
        numbers = perplexities(sums, "valid")
        loss = {view: math.log(numbers[f"perplexity/valid-{view}"]) for view in VIEWS}
        # Weight both losses by how often each is trained
        valid = (1 - flags.alone_rate) * loss["ancestors"] + flags.alone_rate * loss["alone"]
        return {"loss/valid": valid} | numbers, f"perplexity  {in_words(numbers, 'valid')}"

    rows_of = by_epoch(len(forest.pieces), flags.batch_size, flags.seed, forest.batches)
    for step in run.steps(model, optimizer, measure, monitor="loss/valid"):
        comments = rows_of(step)
        gen = generator(flags.seed, "masks", step)
        alone = torch.rand((), generator=gen) < flags.alone_rate
        idx, mask = forest.comments(comments.tolist())  # (B, T)
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        count = max(1, (labels != -100).sum().item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in processes.micro_batches(flags, step, labels):
            read = {} if alone else forest.above(comments[rows].tolist(), forest.chains)
            read = send_all({"idx": inputs[rows], "mask": mask[rows], **read}, device)
            with autocast(flags, device):
                loss = model.loss(targets=targets, **read) / count
            loss.backward()
            total += loss.detach()
        processes.sum_gradients(model)
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        above = set() if alone else {a for row in comments.tolist() for a in forest.chains[row]}
        run.record_step(step, total, int(mask.sum()) + sum(len(forest.sequences[a]) for a in above))

    # Results
    best, result = run.load_best(model), {}
    for n, part in fixed.items():
        sums = evaluate(model, forests[n], part, device, flags)
        result |= perplexities(sums, n) | {f"tokens/{n}": int(all_depths(sums["alone"])[1])}
        groups = zip(GROUPS, map(int, sums["alone"][1]))
        result |= {f"tokens/{n}-{group}": count for group, count in groups if count}
    result |= {f"floor/{key}": value for key, value in floor.items()}
    result["gain/test"] = gain(result, "")
    if floor:
        result["floor/gain/test"] = gain(result, "floor/")
    run.finish(result, model)
    draw(run, name, result)
    for group in GROUPS:
        if n := result.get(f"tokens/test-{group}"):
            words = f"  {group.replace('-', ' '):<9}{n:>7,} words"
            run.say(f"{words}  {in_words(result, 'test', f'-{group}')}")
    of = f", of {result['floor/gain/test']:.3f} possible" if floor else ""
    run.say(f"  knowing the ancestors saves {result['gain/test']:.3f} nats per masked word{of}")
    run.say_end(f"perplexity of test trees at step {best['step']}: {in_words(result, 'test')}")


def gain(result, prefix):
    """Return how many nats per masked word the ancestors save."""
    alone, above = (result[f"{prefix}perplexity/test-{view}"] for view in ("alone", "ancestors"))
    return math.log(alone / above)


def in_words(numbers, name, ending=""):
    """Return the perplexities of a set in each view, with the best possible if it is known."""
    found = []
    for view, words in VIEWS.items():
        key = f"perplexity/{name}-{view}{ending}"
        floor = numbers.get(f"floor/{key}")
        best = f" (best possible: {floor:.2f})" if floor else ""
        found.append(f"{numbers[key]:,.2f} {words}{best}")
    return ", ".join(found)


def check(flags, source):
    """Raise UserError for flags that contradict each other, or the run to start from."""
    sinusoidal = flags.ancestor_positions == "sinusoidal"
    pairs = "pairs a sine with a cosine, so --n-embd must be even"
    size, room = f"--max-tree-size {flags.max_tree_size}", flags.max_tree_size > flags.ancestors
    two = source and source.model.body.config.n_language
    require(
        (not two, f"--init-from {flags.init_from}: reads two languages; give a run of one"),
        (room, f"{size}: must be above --ancestors {flags.ancestors}, to have room for a comment"),
        (not (sinusoidal and flags.n_embd % 2), f"--ancestor-positions sinusoidal {pairs}"),
    )


def draw(run, name, result):
    """Draw curve.png, the validation trees over steps, and depth.png, the test trees by depth,
    without depths that have fewer than a twentieth of the words."""
    label, pos = "perplexity of masked words (log scale)", figures.name_positions(run.flags)
    keys = {words: f"perplexity/valid-{view}" for view, words in VIEWS.items()}
    known = {w: result[f"floor/{k}"] for w, k in keys.items() if f"floor/{k}" in result}
    best = {figures.BEST + words: perplexity for words, perplexity in known.items()}
    draw_curve(run, [Curves(f"Held-out trees, {name}, {pos}", label, keys, best, log=True)])
    words = {d: result.get(f"tokens/test-depth-{d}", 0) for d in range(1, DEEPEST + 1)}
    depths = [d for d in words if words[d] >= result["tokens/test"] / 20]
    lines = {}
    for kind, start in {"": "", "floor/": figures.BEST}.items():
        for view, words in VIEWS.items():
            found = [result.get(f"{kind}perplexity/test-{view}-depth-{d}") for d in depths]
            if None not in found:
                lines[start + words] = depths, found
    panel = (heading(run, f"Test trees, {name}, {pos}"), label, lines, {}, True)
    figures.save(figures.curves([panel], "number of ancestors"), run.folder / "depth.png")


if __name__ == "__main__":
    main(train, Flags, __doc__)
