"""The loop of train_lm.py --data copy: a task (data/tasks.py) in place of a text.

It is that of train_lm.py with other batches, lines instead of blocks, and another evaluation of the
answers, by length of the prompts: the accuracy of single symbols, each after the right ones, and
the share of lines whose answers are right as a whole.
"""

import torch

import lab.dist as dist
from data import find_task
from data.batching import generator, send
from lab.figures import Panel, curves, name_positions, save
from lab.flags import model_config, whole_numbers
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import clip_gradients, learning_rate, make_adamw, perplexity
from lab.run import Run, RunData, load_weights
from nets.build import build_model


def train_task(flags, script):
    """Train as the Flags of train_lm.py say. script: its path."""
    keep = whole_numbers(flags.keep, "--keep", most=flags.steps)

    # Data: lines that the task makes
    source = None
    if flags.init_from:
        from lab.load import open_source  # only to start from another run

        source = open_source(flags, "init_from", ["lm"])
    task = find_task(flags.data, flags.length)
    described = task.describe(flags.block_size)
    vocab_size = task.tokenizer.get_vocab_size()

    # Model
    restart_ids = []
    if flags.couple:
        restart_ids = [task.tokenizer.token_to_id(symbol) for symbol in task.restarts]
    sizes = dict(vocab_size=vocab_size, restart_ids=restart_ids)
    config = model_config(flags, source, causal=True, **sizes)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    run = Run(
        flags,
        script=script,
        kind="lm",
        config=config,
        build={"members": flags.members},
        data=RunData(task.tokenizer, task.hash, corpora={}),
        device=device,
    )
    model = build_model("lm", config, device, members=flags.members)
    if source:
        load_weights(model, source.model.state_dict(), f"--init-from {flags.init_from}")
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    run.say_start(described, model)
    sizes = say_lengths(run, task)

    # Loop
    fit(run, model, optimizer, task, keep)

    # Results: of the last step
    best = run.load_best(model)
    numbers = evaluate_lengths(model, task, device, flags.dtype)
    result = {"step": best["step"]} | numbers | sizes
    for length in task.streams:
        result[f"floor/accuracy/{length}"] = 1.0  # the best possible
        accuracy = numbers[f"accuracy/{length}"]
        exact = numbers[f"exact/{length}"]
        ppl = numbers[f"perplexity/{length}"]
        line = f"  {length:<14} perplexity {ppl:>9,.1f}  accuracy {accuracy:6.1%}"
        run.say(f"{line}  exact {exact:6.1%}")
    run.finish(result, model)
    if dist.rank() > 0:
        return  # rank 0 alone draws and prints
    title = f"{run.folder.name}\nCausal LM on {task.name}, {name_positions(config)}"
    lines = run.logged({n: f"accuracy/{n}" for n in task.streams})
    panel = Panel(title, "accuracy", lines, {"best possible": 1.0})
    save(curves([panel], "step"), run.folder / "curve.png")
    symbols = ", ".join(f"{n}: {numbers[f'accuracy/{n}']:.1%}" for n in task.streams)
    wholes = ", ".join(f"{n}: {numbers[f'exact/{n}']:.1%}" for n in task.streams)
    run.say(f"symbols, each after the right ones: {symbols}")
    run.say_end(f"whole answers, written by the model: {wholes}")


def fit(run, model, optimizer, task, keep):
    """Train a model on a task, and evaluate it on its test sets. keep: steps whose weights are
    kept."""
    flags = run.flags
    device = run.device
    first_step = 0
    if flags.resume:
        first_step = run.resume(model, optimizer)
    dist.copy_from_rank_0(model)
    model.train()
    for step in range(first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = evaluate_lengths(model, task, device, flags.dtype)
            words = "  ".join(f"{n} {numbers[f'accuracy/{n}']:.1%}" for n in task.streams)
            run.log(step, numbers, f"step {step:>5}  accuracy  {words}")
            run.save_best(model)
            run.save(model, optimizer, step)
        if step in keep:
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # after Ctrl-C, with a checkpoint

        # Batch: it depends on seed and step alone, so that a resumed run reads the same
        gen = generator(flags.seed, step)
        x, y = task.batch(flags.block_size, flags.members * flags.batch_size, gen)  # (M * B, T)
        n_tokens = int((y >= 0).sum()) // flags.members  # of answers

        # Update
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        dist.seed_dropout(flags.seed, step)
        loss = torch.zeros((), device=device)
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in dist.my_parts(y, flags.accumulate, flags.members):
            idx = send(x[rows], device)
            with autocast(flags.dtype, device):
                nats = model.loss(idx, targets, smoothing=flags.label_smoothing)
                part = nats / n_tokens  # a sum over the count of the whole batch
            part.backward()
            loss += part.detach()
        dist.sum_gradients(model)
        clip_gradients(model, flags.clip)
        optimizer.step()
        run.progress(step, flags.steps, loss / flags.members, n_tokens)


@torch.no_grad()
def evaluate(model, inputs, targets, device, dtype):
    """Return the perplexity and the accuracy of the targets that are not negative, and the share of
    exact lines, whose targets are all right. inputs, targets (n, T).

    Targets are predicted after the right symbols. Yet a line is exact if and only if the model by
    itself writes all its answers right: until its first error it reads the right symbols too."""
    model.eval()
    total = torch.zeros(3, dtype=torch.float64)  # nats, right symbols, exact lines
    batches = list(zip(inputs.split(64), targets.split(64)))
    for x, y in dist.my_share(batches):
        idx = send(x, device)
        right = send(y, device)
        with autocast(dtype, device):
            nats = model.loss(idx, right)
            is_right = model(idx).argmax(-1) == right  # (n, T), False outside the answers
        is_exact = (is_right | (right < 0)).all(dim=1)  # (n,)
        total += torch.stack([nats, is_right.sum(), is_exact.sum()]).cpu()
    model.train()
    nats, n_right, n_exact = dist.all_sum(total).tolist()
    n_targets = int((targets >= 0).sum())
    return {
        "perplexity": perplexity(nats, n_targets),
        "accuracy": n_right / n_targets,
        "exact": n_exact / len(targets),
    }


def evaluate_lengths(model, task, device, dtype):
    """Return {"perplexity/LENGTH": ..., "accuracy/LENGTH": ..., "exact/LENGTH": ...} of all test
    sets."""
    numbers = {}
    for length, (inputs, targets) in task.streams.items():
        for metric, value in evaluate(model, inputs, targets, device, dtype).items():
            numbers[f"{metric}/{length}"] = value
    return numbers


def say_lengths(run, task):
    """Print how many tokens of answers the test sets have. Return {"tokens/LENGTH": number,
    "unknown/LENGTH": share}."""
    sizes = {}
    for length, (_, targets) in task.streams.items():
        n_tokens = int((targets >= 0).sum())
        run.say(f"  {length:<9}{n_tokens:>8,} tokens   0.0% out of vocabulary")
        sizes[f"tokens/{length}"] = n_tokens
        sizes[f"unknown/{length}"] = 0.0
    return sizes
