"""An encoder-decoder: fill gaps of a text (span corruption), or translate sentence pairs.

    python -m beyond.train_seq2seq --data speeches
        text      Thank you for inviting me to your party last week .
        source    [BOS] Thank you [S0] me to your party [S1] week .      what the encoder reads
        target    [S0] for inviting [S1] last [EOS]                      what the decoder writes, after [BOS]

    python -m beyond.train_seq2seq --task translate --data pairs.tsv
        source    [BOS] We choose hope .
        target    Nous choisissons l'espoir . [EOS]

Gaps are drawn as in T5 (data/spans.py): 15% of the tokens, three at a time, anew at every step. Its perplexity is that of
a target's tokens: of hidden words with the text around the gap visible, but also of the nearly certain sentinels and
[EOS]. Compare it with neither a causal nor a masked language model's; `perplexity_words` leaves the sentinels and [EOS] out.
"""

import importlib.util
import math
from dataclasses import dataclass

import torch

import data
from data import batching, spans
from data.corpora.pairs import load_pairs
from data.corpus import hold_out, normal
from data.tokenizer import BOS, EOS, UNK, add_sentinels, detokenize, encode, train_tokenizer
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
from lab.run import Run
from model import EncoderDecoder, LanguageModel, count_parameters, generate

DRAWS = 5  # times each text of a test set is corrupted: more hidden words, and less chance in the perplexity


@dataclass
class Flags(RunFlags, ModelFlags, TokenizerFlags, SpreadFlags):
    task: str = flag(
        "infill",
        "infill: span corruption of a corpus; translate: sentence pairs",
        ("infill", "translate"),
    )
    data: str = flag(
        "toy",
        f"a corpus as train_lm.py reads it ({', '.join(data.NAMES)}, a folder, a .txt); "
        "for translation toy, a folder of train.en and train.fr, or a .tsv of source<TAB>target",
    )
    languages: str = flag(
        "",
        "source and target of a folder of pairs, as in fr-en; "
        "needed only to turn them round or where there are more",
    )
    mask_rate: float = flag(0.15, "share of tokens to hide")
    mean_span: float = flag(3.0, "mean length of a gap, in tokens")
    n_layer: int = flag(2, "number of blocks in the encoder, and in the decoder")
    n_head: int = flag(4, "attention heads a block")
    n_embd: int = flag(64, "width")
    n_ffn: int = flag(0, "width of the feed-forward layer; 0: four times the width")
    block_size: int = flag(64, "longest source and longest target, in tokens")
    dropout: float = flag(0.1, "of embeddings and sublayer outputs")
    steps: int = flag(1000, "number of updates")
    batch_size: int = flag(128, "texts or pairs an update")
    lr: float = flag(3e-3, "peak learning rate")
    warmup: int = flag(100, "steps in which the learning rate rises")
    decay: float = flag(
        0.9, "share of the steps, at the end, in which the learning rate falls to zero; 0: never"
    )
    weight_decay: float = flag(0.01, "of matrices")
    clip: float = flag(1.0, "largest gradient norm; 0: no limit")
    valid: float = flag(
        0.05,
        "share of the training texts held out to choose the best checkpoint; "
        "pairs that come with a val set use that",
    )
    eval_every: int = flag(250, "steps between evaluations")


# ---------------------------------------------------------------------------- examples


def to_sequences(tokenizer, pairs, block_size):
    """Pairs of texts as ([BOS] source, target [EOS]) tensors of at most block_size tokens, and for each whether it was cut."""
    both = [
        ([BOS, *source], [*target, EOS])
        for source, target in zip(*(encode(tokenizer, side) for side in zip(*pairs)))
    ]
    return (
        [
            (torch.tensor(source[:block_size]), torch.tensor(target[:block_size]))
            for source, target in both
        ],
        [max(len(source), len(target)) > block_size for source, target in both],
    )


def make_batch(examples, gen, flags, first):
    """Examples, texts or pairs, as source, source_mask (B, S) and inputs, labels (B, U).

    inputs are what the decoder reads, [BOS] and the target without its end; labels what it is to write, -100 on padding.
    """
    if flags.task == "infill":
        source, source_mask, target, target_mask = spans.corrupt(
            *batching.pad(examples), first, gen, flags.mask_rate, flags.mean_span
        )
    else:
        (source, source_mask), (target, target_mask) = (
            batching.pad(side) for side in zip(*examples)
        )
    inputs = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
    return source, source_mask, inputs, target.masked_fill(~target_mask, -100)


def length(example):
    return len(example) if torch.is_tensor(example) else sum(map(len, example))


def fixed_batches(examples, flags, first, draws):
    """Batches whose gaps depend on neither the seed nor the step: with the same tokenizer and flags of the task, all runs
    are measured on the same."""
    return [
        make_batch(
            [examples[i] for i in rows],
            batching.generator("gaps", draw, *rows.tolist()),
            flags,
            first,
        )
        for draw in range(draws)
        for rows in batching.length_batches([length(example) for example in examples], 64)
    ]


# ---------------------------------------------------------------------------- measuring


@torch.no_grad()
def evaluate(model, batches, device, flags, first):
    """(nats, tokens, nats of words, words) over all targets; words are what is neither sentinel nor [EOS]."""
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64)
    for source, source_mask, inputs, labels in processes.mine(batches):
        with autocast(flags, device):
            losses = (
                model.losses(
                    inputs.to(device),
                    labels.to(device),
                    source=source.to(device),
                    source_mask=source_mask.to(device),
                )
                .cpu()
                .double()
            )
        wanted = labels[labels != -100]
        words = (wanted < first) & (wanted != EOS)
        sums += torch.tensor(
            [losses.sum(), len(losses), losses[words].sum(), words.sum()], dtype=torch.float64
        )
    model.train()
    return processes.add(sums).tolist()


def translate(model, examples, tokenizer, device, flags):
    """The likeliest translation of each pair's source, word after word (no search), as text."""
    model.eval()
    # Zeros of the other processes' rows, and [PAD] behind a translation
    written = torch.zeros(len(examples), flags.block_size, dtype=torch.long)
    for rows in processes.mine(
        batching.length_batches([len(source) for source, _ in examples], 64)
    ):
        source, mask = batching.pad([examples[i][0] for i in rows])
        with autocast(flags, device):
            ids = generate(
                model, source.to(device), mask.to(device), BOS, EOS, flags.block_size
            ).cpu()
        written[rows, : ids.size(1)] = ids
    return [
        detokenize(tokenizer, ids[: ids.index(EOS)] if EOS in ids else ids)
        for ids in processes.add(written).tolist()
    ]


def score(outputs, targets, tokenizer):
    """Share of outputs that are exactly the target, BLEU and chrF (sacrebleu's, 0 to 100, against the targets as they
    stand in the file)."""
    import sacrebleu

    read = [
        detokenize(tokenizer, ids) for ids in encode(tokenizer, targets)
    ]  # spaced as the outputs are
    return {
        "exact": sum(output == target for output, target in zip(outputs, read)) / len(outputs),
        "bleu": sacrebleu.corpus_bleu(outputs, [targets]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [targets]).score,
    }


# ---------------------------------------------------------------------------- training


def train(flags):
    check(flags)

    # Data: for each set its examples, texts with [BOS] in front or pairs.
    infill = flags.task == "infill"
    if infill:
        corpus = data.load(flags.data)
        require(
            (
                corpus.lines,
                f"--data {flags.data}: holds no running text; "
                "give a corpus with train_LM.txt or a .txt, or pairs with --task translate",
            )
        )
        lines, held_out = hold_out(
            corpus.lines, flags.valid, seed=0
        )  # every run of this corpus is measured on the same lines
        sets = {"train": lines, "valid": held_out} | corpus.tests
    else:
        corpus = load_pairs(flags.data, flags.languages)
        lines, held_out = (
            (corpus.train, corpus.valid)
            if corpus.valid
            else hold_out(corpus.train, flags.valid, seed=0, key=lambda pair: pair[0])
        )
        sets = {"train": lines, "valid": held_out} | corpus.tests
    require(
        (
            lines and held_out,
            f"--data {flags.data}: {len(lines) + len(held_out)} examples are too few to hold out "
            f"--valid {flags.valid} of them; give more or a larger --valid",
        )
    )
    held = {normal(text if infill else text[0]) for text in held_out}
    texts = (
        [text for text in corpus.texts() if normal(text) not in held]
        if infill
        else [text for pair in lines for text in pair]
    )
    tokenizer = train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    first = tokenizer.get_vocab_size()
    if infill:
        add_sentinels(
            tokenizer, spans.most(flags.block_size - 1, flags.mask_rate, flags.mean_span)[1]
        )
        examples = {
            name: batching.sentences(tokenizer, part, flags.block_size, split=True)[0]
            for name, part in sets.items()
        }
        n_long = {}
    else:
        encoded = {
            name: to_sequences(tokenizer, part, flags.block_size) for name, part in sets.items()
        }
        n_long = {name: sum(cut) for name, (_, cut) in encoded.items()}
        examples = {name: part for name, (part, _) in encoded.items()}
        examples["train"] = [pair for pair, cut in zip(*encoded["train"]) if not cut]
    lengths = [length(example) for example in examples["train"]]
    require(
        (
            lengths,
            f"--block-size {flags.block_size}: every training pair is longer; use a larger block",
        )
    )

    # Model
    config = model_config(flags, vocab_size=tokenizer.get_vocab_size())
    device = prepare(flags, config.n_embd)
    run = Run(
        "seq2seq",
        flags,
        config,
        tokenizer,
        device,
        name="" if infill else "translate",
        **({"first_sentinel": first} if infill else {}),
    )
    model = LanguageModel(EncoderDecoder(config)).to(device)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_optimizer(model, flags.lr, flags.weight_decay)
    batches_of = {
        name: fixed_batches(part, flags, first, DRAWS if infill else 1)
        for name, part in examples.items()
        if name != "train"
    }
    run.say(
        f"{corpus.name}: {len(lengths):,} training {'sequences' if infill else 'pairs'} ({sum(lengths):,} tokens), "
        f"{config.vocab_size:,} entries in the vocabulary; "
        f"{count_parameters(model)['total']:,} parameters, pos={config.pos}, on {device}"
    )
    for name, batches in batches_of.items():
        targets = torch.cat([labels[labels != -100] for *_, labels in batches])
        run.say(
            f"  {name:<18}{len(examples[name]):>7,} {'texts' if infill else 'pairs'}{len(targets):>9,} tokens to predict, "
            f"{100 * batching.fraction_unknown(targets, UNK):4.1f}% unknown"
        )
    for name, n in n_long.items():
        if n:
            run.say(
                f"  {n} pairs of {name} are longer than --block-size {flags.block_size} and were "
                f"{'left out' if name == 'train' else 'cut'}"
            )

    # Loop
    loss_of = processes.spread(model)
    start, more = run.restore(model, optimizer)
    best, tokens = more.get("best", math.inf), more.get("tokens", 0)
    batches_an_epoch = -(-len(lengths) // flags.batch_size)
    losses, batches = more.get("losses", []), None  # losses since the last evaluation
    model.train()
    for step in run.interruptible(range(start, flags.steps + 1)):
        if run.is_due(step):
            found = {
                name: evaluate(model, part, device, flags, first)
                for name, part in batches_of.items()
            }
            numbers = {f"perplexity/{name}": perplexity(*sums[:2]) for name, sums in found.items()}
            run.log(
                step,
                tokens=tokens,
                **numbers,
                **({"loss/train": torch.stack(losses).mean().item()} if losses else {}),
            )
            losses = []
            run.say(
                f"step {step:>6}  perplexity  "
                + "  ".join(f"{name} {numbers[f'perplexity/{name}']:,.2f}" for name in found)
            )
            if found["valid"][0] < best:
                best = found["valid"][0]
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
        chosen = [examples["train"][i] for i in batches[position]]
        source, source_mask, inputs, labels = make_batch(
            chosen, batching.generator(flags.seed, "gaps", step), flags, first
        )
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss, count = 0.0, (labels != -100).sum().item()
        # All of them, unless several processes share them out
        for rows, wanted in processes.parts(loss_of, labels, flags, step):
            with autocast(flags, device):
                part = (
                    loss_of(
                        targets=wanted,
                        **batching.to(
                            device,
                            {
                                "idx": inputs[rows],
                                "source": source[rows],
                                "source_mask": source_mask[rows],
                            },
                        ),
                    )
                    / count
                )
            part.backward()
            loss += part.detach()
        if flags.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), flags.clip)
        optimizer.step()
        losses.append(processes.add(loss))
        tokens += int(source_mask.sum() + (labels != -100).sum())
        run.progress(step + 1, flags.steps, loss, lr, tokens - more.get("tokens", 0))

    # Results
    best_weights = processes.from_first(lambda: read_checkpoint(run.folder / "best.pt", device))
    model.load_state_dict(best_weights["model"])
    result = {"step": best_weights["step"], "vocab_size": config.vocab_size}
    for name, part in batches_of.items():
        nats, n, word_nats, n_words = evaluate(model, part, device, flags, first)
        result |= {
            f"perplexity/{name}": perplexity(nats, n),
            f"perplexity_words/{name}": perplexity(word_nats, n_words),
            f"tokens/{name}": int(n),
        }
        if not infill:
            outputs = translate(model, examples[name], tokenizer, device, flags)
            result |= {
                f"{metric}/{name}": value
                for metric, value in score(
                    outputs, [target for _, target in sets[name]], tokenizer
                ).items()
            }
    if processes.leave():
        return
    run.finish(result, model, tokens)
    draw(run, batches_of)
    for name in batches_of:
        run.say(
            f"  {name:<18}perplexity {result[f'perplexity/{name}']:>8,.2f}, "
            f"of the words alone {result[f'perplexity_words/{name}']:>8,.2f}"
            + (
                ""
                if infill
                else f";  exact {result[f'exact/{name}']:.1%}, BLEU {result[f'bleu/{name}']:.1f}, "
                f"chrF {result[f'chrf/{name}']:.1f}"
            )
        )
    run.say(
        f"{'infilling' if infill else ' to '.join(corpus.languages)}, step {best_weights['step']}; "
        f"{run.seconds():.0f} s, {run.folder}"
    )


def check(flags):
    require(
        *step_checks(flags),
        (
            flags.task != "translate" or importlib.util.find_spec("sacrebleu"),
            "--task translate: BLEU needs sacrebleu, not installed; pip install sacrebleu",
        ),
        (
            0 < flags.mask_rate < 1,
            f"--mask-rate must be above 0 and below 1, got {flags.mask_rate}",
        ),
        (flags.mean_span >= 1, f"--mean-span must be at least 1, got {flags.mean_span:g}"),
        (0 < flags.valid < 1, f"--valid must be above 0 and below 1, got {flags.valid}"),
        (
            flags.block_size > 1,
            f"--block-size must be at least 2 ([BOS] and a word), got {flags.block_size}",
        ),
        (
            flags.task == "translate" or not flags.languages,
            f"--languages {flags.languages}: is for --task translate",
        ),
    )
    if flags.task == "infill":
        n_hidden, n_spans = spans.most(flags.block_size - 1, flags.mask_rate, flags.mean_span)
        require(
            (
                n_hidden + n_spans < flags.block_size,
                f"--mask-rate {flags.mask_rate}: {n_hidden} hidden tokens and {n_spans} sentinels make a target "
                f"longer than --block-size {flags.block_size}; hide less, or in longer spans (--mean-span)",
            )
        )


def draw(run, names):
    """curve.png: perplexity over steps."""
    from lab import figures

    metrics = run.metrics()
    lines = {
        name: ([m["step"] for m in metrics], [m[f"perplexity/{name}"] for m in metrics])
        for name in names
    }
    title = "Span corruption" if run.flags.task == "infill" else "Translation"
    figures.curves(
        run.folder / "curve.png",
        [(f"{title}, pos={run.flags.pos}", "perplexity of targets (log scale)", lines, {}, True)],
        "step",
    )


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
