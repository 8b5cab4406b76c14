"""Translation language modelling: masked words of a sentence and of its translation, each predicted from both.

    python -m beyond.train_tlm --data toy

This is the TLM of Lample & Conneau 2019, section 3.
A pair is one sequence, [BOS] a sentence [BOS] its translation; the positions begin anew with the second, and each word
carries a vector of its language. Afterwards the same hidden words are asked for three times: with the sentence alone,
with its translation beside it, and with that of another sentence.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from data import batching, masking
from data.corpora.pairs import load_pairs
from data.corpus import hold_out
from data.tokenizer import UNK, train_tokenizer, word_starts
from lab.checkpoint import read_checkpoint
from lab.command import main
from lab.errors import require
from lab.flags import ModelFlags, RunFlags, TokenizerFlags, flag, model_config, step_checks
from lab.machine import autocast, compile_blocks, prepare
from lab.optim import learning_rate, make_optimizer, perplexity
from lab.parameters import count_parameters
from lab.run import Run
from lab.sources import source_of
from model import LanguageModel
from nets.two_languages import make_encoder

VIEWS = {
    "alone": "alone",
    "paired": "beside its translation",
    "mispaired": "beside another's",
}  # name in result.json: in words


@dataclass
class Flags(RunFlags, ModelFlags, TokenizerFlags):
    data: str = flag(
        "toy",
        "pairs: toy (English and an invented language), a folder of train.en and train.fr, "
        "or a .tsv of source<TAB>target",
    )
    languages: str = flag(
        "", "which endings of the folder's files, like en-fr; needed where there are more than two"
    )
    init_from: str = flag(
        "",
        "run folder of train_mlm.py or of this script to continue from: its weights, architecture "
        "and vocabulary, which must know both languages",
    )
    pair_rate: float = flag(
        0.8,
        "share of the updates on pairs; in the others the same sentences stand each alone, as in MLM",
    )
    n_layer: int = flag(2, "number of blocks")
    n_head: int = flag(4, "attention heads a block")
    activation: str = flag("gelu", "of the feed-forward layer", ("relu", "gelu"))
    head: str = flag("linear", "from hidden states to words", ("roberta", "clap", "linear"))
    mask_rate: float = flag(0.3, "share of tokens to predict")
    mask_unit: str = flag(
        "token",
        "what is hidden together: tokens, whole words, or spans of about three tokens",
        masking.UNITS,
    )
    steps: int = flag(1500, "number of updates")
    batch_size: int = flag(32, "pairs an update")
    lr: float = flag(3e-3, "peak learning rate")
    warmup: int = flag(100, "steps in which the learning rate rises")
    decay: float = flag(
        0.5, "share of the steps, at the end, in which the learning rate falls to zero; 0: never"
    )
    weight_decay: float = flag(0.01, "of matrices")
    clip: float = flag(1.0, "largest gradient norm; 0: no limit")
    valid: float = flag(
        0.05,
        "share of the pairs held out to choose the best checkpoint, where the data has no val files",
    )
    eval_every: int = flag(250, "steps between evaluations")


def masked_test_set(sides, side, flags, vocab_size, starts):
    """{view: batches of (inputs, mask, labels, where)}, in which words of one side's sentences are hidden, the same in
    each view.

    alone: the sentence by itself; paired: beside its translation, of which nothing is hidden; mispaired: beside the translation
    of another sentence of about its length. The masks depend on neither the seed nor the step.
    """
    order = torch.argsort(torch.tensor([len(sequence) for sequence in sides[0]]), stable=True)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    batches = {view: [] for view in VIEWS}
    for rows in order.split(64):
        idx, mask = batching.pad([sides[side][i] for i in rows])
        gen = batching.generator("masks of side", side, *rows.tolist())
        inputs, labels = masking.mask_tokens(
            idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts
        )
        batches["alone"].append((inputs, mask, labels, {"languages": torch.full_like(idx, side)}))
        for view, others in (("paired", rows), ("mispaired", partner[rows])):
            others = [sides[1 - side][i] for i in others]

            def beside(sequences, others):
                return (
                    batching.join(sequences, others)
                    if side == 0
                    else batching.join(others, sequences)
                )

            joined, joined_mask, where = beside(
                [row[real] for row, real in zip(inputs, mask)], others
            )
            joined_labels = beside(
                [row[real] for row, real in zip(labels, mask)],
                [torch.full_like(other, -100) for other in others],
            )[0]
            batches[view].append(
                (joined, joined_mask, joined_labels.masked_fill(~joined_mask, -100), where)
            )
    return batches


@torch.no_grad()
def evaluate(model, sets, device, flags):
    """{"perplexity/LANGUAGE-VIEW": ..., "accuracy/LANGUAGE-VIEW": ...} of {language: {view: batches}}."""
    model.eval()
    numbers = {}
    for language, views in sets.items():
        for view, batches in views.items():
            nats, hits, count = 0.0, 0, 0
            for inputs, mask, labels, where in batches:
                with autocast(flags, device):
                    h = model.body(inputs.to(device), mask.to(device), **batching.to(device, where))
                    logits = model.head(h[labels.to(device) != -100]).float()  # (hidden tokens, V)
                wanted = labels[labels != -100].to(device)
                nats += F.cross_entropy(logits, wanted, reduction="sum").item()
                hits += (logits.argmax(-1) == wanted).sum().item()
                count += len(wanted)
            numbers |= {
                f"perplexity/{language}-{view}": perplexity(nats, count),
                f"accuracy/{language}-{view}": hits / count,
            }
    model.train()
    return numbers


def train(flags):
    source = source_of(flags, "mlm")
    check(flags)

    # Data: pairs of sentences, each side a list of sequences that begin with [BOS].
    pairs = load_pairs(flags.data, flags.languages)
    languages = pairs.languages
    before = "-".join(source.config.get("languages", languages) if source else languages)
    require(
        (
            before == "-".join(languages),
            f"--init-from {flags.init_from}: its languages are {before}, not {'-'.join(languages)}; "
            f"use --languages {before}",
        )
    )
    kept, held_out = (
        (pairs.train, pairs.valid)
        if pairs.valid
        else hold_out(pairs.train, flags.valid, seed=0, key=lambda pair: pair[0])
    )
    require(
        (
            kept and held_out,
            f"--data {flags.data}: {len(pairs.train)} pairs are too few to hold out --valid {flags.valid} of them; "
            "give more pairs or a larger --valid",
        )
    )
    kept = list(dict.fromkeys(kept))
    tokenizer = (
        source.tokenizer
        if source
        else train_tokenizer(
            flags.tokenizer, [sentence for pair in kept for sentence in pair], flags.vocab_size
        )
    )
    starts = word_starts(tokenizer)

    def sequences(part):
        """The two sides of the pairs, and how many sentences are cut."""
        found = [batching.sentences(tokenizer, side, flags.block_size) for side in zip(*part)]
        return [side for side, _ in found], sum(long for _, long in found)

    sides, n_long = sequences(kept)
    unknown = [
        batching.fraction_unknown(torch.cat([sequence[1:] for sequence in side]), UNK)
        for side in sides
    ]
    require(
        *(
            (
                not source or share < 0.5,
                f"--init-from {flags.init_from}: {share:.0%} of the words of {language} are unknown to its vocabulary; "
                f"pretrain it with --vocab-from {flags.data} or --tokenizer bpe",
            )
            for share, language in zip(unknown, languages)
        )
    )
    lengths = [len(first) + len(second) for first, second in zip(*sides)]
    sets = {}  # {name: {language: {view: batches}}}
    for name, part in ({"valid": held_out} | pairs.tests).items():
        require(
            (
                len(part) > 1,
                f"--data {flags.data}: {name} has a single pair, "
                "so there is no other sentence's translation to compare with; give more",
            )
        )
        held, _ = sequences(part)
        sets[name] = {
            language: masked_test_set(held, side, flags, tokenizer.get_vocab_size(), starts)
            for side, language in enumerate(languages)
        }
        require(
            *(
                (
                    any((labels != -100).any() for _, _, labels, _ in views["alone"]),
                    f"--data {flags.data}: no word of {language} in {name} is in the vocabulary; "
                    "give a larger --vocab-size or other data",
                )
                for language, views in sets[name].items()
            )
        )

    # Model
    config = (
        dataclasses.replace(source.model.body.config, n_language=2)
        if source
        else model_config(
            flags,
            vocab_size=tokenizer.get_vocab_size(),
            unit_embd=flags.head == "clap",
            n_language=2,
        )
    )
    device = prepare(flags, config.n_embd)
    run = Run("mlm", flags, config, tokenizer, device, name="tlm", languages=languages)
    model = LanguageModel(make_encoder(config)).to(device)
    if flags.compile:
        compile_blocks(model)
    if source:
        torch.nn.init.zeros_(
            model.body.languages.weight
        )  # a run without languages goes on as if both were one
        model.load_state_dict(model.state_dict() | source.model.state_dict())
    optimizer = make_optimizer(model, flags.lr, flags.weight_decay)
    run.say(
        f"{pairs.name}: {len(kept):,} training pairs ({sum(lengths):,} tokens), {len(held_out):,} for validation, "
        f"{config.vocab_size:,} entries in the vocabulary; "
        f"{count_parameters(model)['total']:,} parameters, pos={config.pos}, on {device}"
    )
    for language, share in zip(languages, unknown):
        run.say(f"  {language:<9}{100 * share:4.1f}% of the training words out of vocabulary")
    if n_long:
        run.say(
            f"  {n_long} sentences are longer than --block-size {flags.block_size} and were cut"
        )

    # Loop
    first, more = run.restore(model, optimizer)
    best, tokens = more.get("best", math.inf), more.get("tokens", 0)
    batches_an_epoch = -(-len(kept) // flags.batch_size)
    losses, batches = more.get("losses", []), None  # losses since the last evaluation
    model.train()
    for step in run.interruptible(range(first, flags.steps + 1)):
        if run.is_due(step):
            numbers = evaluate(model, sets["valid"], device, flags)
            loss_of = {
                view: sum(
                    math.log(numbers[f"perplexity/{language}-{view}"]) for language in languages
                )
                / 2
                for view in VIEWS
            }
            valid = (
                flags.pair_rate * loss_of["paired"] + (1 - flags.pair_rate) * loss_of["alone"]
            )  # as often as trained
            run.log(
                step,
                tokens=tokens,
                **{"loss/valid": valid},
                **in_set("valid", numbers),
                **({"loss/train": torch.stack(losses).mean().item()} if losses else {}),
            )
            losses = []
            run.say(
                f"step {step:>6}  masked-LM perplexity  "
                + "   ".join(
                    f"{language} {in_words(numbers, language, {view: view for view in VIEWS}, 1)}"
                    for language in languages
                )
            )
            if valid < best:
                best = valid
                run.save("best.pt", model=model.state_dict(), step=step)
            run.save_checkpoint(model, optimizer, step, best=best, tokens=tokens, losses=losses)
        run.stop_if_asked(model, optimizer, step, best=best, tokens=tokens, losses=losses)
        if step == flags.steps:
            break
        epoch, position = divmod(step, batches_an_epoch)
        if batches is None or position == 0:
            batches = batching.length_batches(
                lengths, flags.batch_size, batching.generator(flags.seed, "epoch", epoch)
            )
        gen = batching.generator(flags.seed, "masks", step)
        arrange = (
            batching.join if torch.rand((), generator=gen) < flags.pair_rate else batching.apart
        )
        idx, mask, where = arrange(*([side[i] for i in batches[position]] for side in sides))
        inputs, labels = masking.mask_tokens(
            idx, config.vocab_size, gen, flags.mask_rate, flags.mask_unit, starts
        )
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        for group in optimizer.param_groups:
            group["lr"] = lr
        with autocast(flags, device):
            read = batching.to(device, {"idx": inputs, "mask": mask, **where})
            loss = model.loss(targets=labels, **read) / max(1, (labels != -100).sum().item())
        optimizer.zero_grad()
        loss.backward()
        if flags.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), flags.clip)
        optimizer.step()
        losses.append(loss.detach())
        tokens += int(mask.sum())
        run.progress(step + 1, flags.steps, loss, lr, tokens - more.get("tokens", 0))

    # Results
    best_weights = read_checkpoint(run.folder / "best.pt", device)
    model.load_state_dict(best_weights["model"])
    result = {"step": best_weights["step"], "vocab_size": config.vocab_size}
    told = {}
    for name, part in sets.items():
        numbers = evaluate(model, part, device, flags)
        result |= in_set(name, numbers)
        told[name] = "; ".join(
            f"{language} {in_words(numbers, language, VIEWS, 2)}" for language in languages
        )
    run.finish(result, model, tokens)
    draw(run, languages)
    *others, last = told
    for name in others:
        run.say(f"  {name}: {told[name]}")
    run.say(
        f"masked-LM perplexity of {last} at step {best_weights['step']}: {told[last]}; {run.seconds():.0f} s, {run.folder}"
    )


def in_set(name, numbers):
    """perplexity/LANGUAGE-VIEW as perplexity/SET-LANGUAGE-VIEW."""
    return {key.replace("/", f"/{name}-"): value for key, value in numbers.items()}


def in_words(numbers, language, names, digits):
    """The perplexities of one language, by the names {view: name} of how its words were asked for."""
    return ", ".join(
        f"{numbers[f'perplexity/{language}-{view}']:,.{digits}f} {name}"
        for view, name in names.items()
    )


def check(flags):
    require(
        *step_checks(flags),
        (0 <= flags.pair_rate <= 1, f"--pair-rate must be from 0 to 1, got {flags.pair_rate}"),
        (
            0 < flags.mask_rate < 1,
            f"--mask-rate must be above 0 and below 1, got {flags.mask_rate}",
        ),
        (0 < flags.valid < 1, f"--valid must be above 0 and below 1, got {flags.valid}"),
        (
            flags.block_size > 1,
            f"--block-size must be at least 2 ([BOS] and a word), got {flags.block_size}",
        ),
    )


def draw(run, languages):
    """curve.png: masked-LM perplexity on the validation pairs over steps, a panel for each language."""
    from lab import figures

    metrics = run.metrics()
    steps = [m["step"] for m in metrics]
    panels = [
        (
            f"Hidden words of {language}, held-out pairs",
            "perplexity (log scale)",
            {
                words: (steps, [m[f"perplexity/valid-{language}-{view}"] for m in metrics])
                for view, words in VIEWS.items()
            },
            {},
            True,
        )
        for language in languages
    ]
    figures.curves(run.folder / "curve.png", panels, "step")


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
