"""An encoder-decoder: fill gaps in a text (span corruption), or translate sentence pairs.

    python -m beyond.train_seq2seq --data speeches
        text      Thank you for inviting me to your party last week .
        source    [BOS] Thank you [S0] me to your party [S1] week .      read by the encoder
        target    [S0] for inviting [S1] last [EOS]                      written by the decoder

    python -m beyond.train_seq2seq --task translate --data pairs.tsv
        source    [BOS] We choose hope .
        target    Nous choisissons l'espoir . [EOS]

As in T5, gaps hide 15% of the tokens, three at a time, new at every step (data/spans.py). The
perplexity is that of all tokens of the target. `perplexity_words` leaves out the markers [S0], ...
and [EOS], which are nearly certain. Compare neither with that of train_lm.py or train_mlm.py.
"""

import math
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch
from torch.nn.utils import clip_grad_norm_

from data import spans
from data.batching import by_epoch, fraction_unknown, generator, length_batches, pad
from data.source_target import fixed_batches, length, make_batch, read_examples
from data.tokenizer import EOS, detokenize, encode
from lab import processes
from lab.command import main
from lab.errors import require
from lab.figures import name_positions
from lab.flags import ProcessFlags, TrainFlags, flag, model_config, typed
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.report import Curves, draw_curve, say_start
from lab.run import Run
from model import LanguageModel
from nets.device import send, send_all
from nets.encoder_decoder import EncoderDecoder, generate


@dataclass
class Flags(TrainFlags, ProcessFlags):
    task: str = flag("infill", "span corruption, or sentence pairs", ("infill", "translate"))
    languages: str = flag("", "source and target of a folder of pairs, as in fr-en")
    mask_rate: float = flag(0.15, "share of tokens to corrupt", above=0, below=1)
    mean_span: float = flag(3.0, "mean length of a gap, in tokens", at_least=1)
    valid: float = flag(0.05, "share held out to choose the best step", above=0, below=1)
    block_size: int = flag(64, "longest source and longest target, in tokens", at_least=2)
    n_layer: int = 2
    n_head: int = 4
    n_ffn: int = 0
    dropout: float = 0.1
    steps: int = 1000
    batch_size: int = 128
    lr: float = 3e-3
    warmup: int = 100
    decay: float = 0.9
    eval_every: int = 250


@torch.no_grad()
def evaluate(model, batches, device, flags, first):
    """Return (nats, tokens, nats of words, words). [EOS] and the sentinels, which have the ids from
    `first` on, are not words."""
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64)
    for source, mask, inputs, labels in processes.my_share(batches):
        read = send_all({"idx": inputs, "source": source, "source_mask": mask}, device)
        with autocast(flags, device):
            losses = model.losses(targets=labels, **read).cpu().double()
        targets = labels[labels != -100]
        words = (targets < first) & (targets != EOS)
        found = [losses.sum(), len(losses), losses[words].sum(), words.sum()]
        sums += torch.tensor(found, dtype=torch.float64)
    model.train()
    return processes.all_sum(sums).tolist()


def translate(model, examples, tokenizer, device, flags):
    """Return the greedy translation of each source as text: the likeliest word at each step."""
    model.eval()
    written = torch.zeros(len(examples), flags.block_size, dtype=torch.long)
    batches = length_batches([len(source) for source, _ in examples], 64)
    for rows in processes.my_share(batches):
        source, mask = (send(tensor, device) for tensor in pad([examples[i][0] for i in rows]))
        with autocast(flags, device):
            ids = generate(model, source, mask, flags.block_size).cpu()
        written[rows, : ids.size(1)] = ids
    found = processes.all_sum(written).tolist()
    return [detokenize(tokenizer, ids[: ids.index(EOS)] if EOS in ids else ids) for ids in found]


def score(outputs, targets, tokenizer):
    """Return the share of exact outputs, BLEU and chrF (sacrebleu's, 0 to 100)."""
    import sacrebleu  # an extra, see check

    spaced = [detokenize(tokenizer, ids) for ids in encode(tokenizer, targets)]  # like the outputs
    exact = sum(output == target for output, target in zip(outputs, spaced)) / len(outputs)
    bleu = sacrebleu.corpus_bleu(outputs, [targets]).score
    return {"exact": exact, "bleu": bleu, "chrf": sacrebleu.corpus_chrf(outputs, [targets]).score}


def train(flags):
    # Data
    infill = flags.task == "infill"
    check(flags)
    name, tokenizer, first, sets, targets, n_long = read_examples(flags)
    fixed = {n: fixed_batches(part, flags, first) for n, part in sets.items() if n != "train"}
    lengths = [length(example) for example in sets["train"]]

    # Model
    config = model_config(flags, vocab_size=tokenizer.get_vocab_size())
    device = set_up_device(flags, config)
    described = {"first_sentinel": first} if infill else {"name": "translate"}
    run = Run("seq2seq", flags, config, tokenizer, device, **described)
    model = LanguageModel(EncoderDecoder(config)).to(device)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    things = "sequences" if infill else "pairs"
    say_start(run, f"{name}: {len(lengths):,} training {things} ({sum(lengths):,} tokens)", model)
    for n, batches in fixed.items():
        tokens = torch.cat([labels[labels != -100] for *_, labels in batches])
        unknown = f"{fraction_unknown(tokens):6.1%} unknown"
        run.say(f"  {n:<18}{len(sets[n]):>7,} {things}{len(tokens):>9,} target tokens, {unknown}")
    for n, long in n_long.items():
        if long:
            what = "left out" if n == "train" else "truncated"
            run.say(f"  pairs of {n} longer than --block-size {flags.block_size}, {what}: {long}")

    # Loop
    def measure():
        found = {n: evaluate(model, part, device, flags, first) for n, part in fixed.items()}
        numbers = {f"perplexity/{n}": perplexity(*sums[:2]) for n, sums in found.items()}
        words = "  ".join(f"{n} {numbers[f'perplexity/{n}']:,.2f}" for n in found)
        return numbers, f"perplexity  {words}"

    rows_of = by_epoch(len(lengths), flags.batch_size, flags.seed, partial(length_batches, lengths))
    for step in run.steps(model, optimizer, measure, monitor="perplexity/valid"):
        examples = [sets["train"][i] for i in rows_of(step)]
        gen = generator(flags.seed, "gaps", step)
        source, source_mask, inputs, labels = make_batch(examples, gen, flags, first)
        count = (labels != -100).sum().item()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, wanted in processes.micro_batches(flags, step, labels):
            read = {"idx": inputs, "source": source, "source_mask": source_mask}
            read = send_all({name: tensor[rows] for name, tensor in read.items()}, device)
            with autocast(flags, device):
                loss = model.loss(targets=wanted, **read) / count
            loss.backward()
            total += loss.detach()
        processes.sum_gradients(model)
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.record_step(step, total, int(source_mask.sum()) + count)

    # Results
    best, result = run.load_best(model), {}
    for n, part in fixed.items():
        nats, tokens, word_nats, words = evaluate(model, part, device, flags, first)
        result |= {f"perplexity/{n}": perplexity(nats, tokens), f"tokens/{n}": int(tokens)}
        result[f"perplexity_words/{n}"] = perplexity(word_nats, words)
        if not infill:
            outputs = translate(model, sets[n], tokenizer, device, flags)
            scores = score(outputs, targets[n], tokenizer)
            result |= {f"{metric}/{n}": value for metric, value in scores.items()}
    run.finish(result, model)
    title = f"{'Gaps' if infill else 'Translation'}, {name}, {name_positions(config)}"
    keys = {n: f"perplexity/{n}" for n in fixed}
    draw_curve(run, [Curves(title, "perplexity of targets (log scale)", keys, log=True)])
    width = max(map(len, fixed)) + 2
    for n in fixed:
        found = f"perplexity {result[f'perplexity/{n}']:>8,.2f}"
        found += f", of words alone {result[f'perplexity_words/{n}']:>8,.2f}"
        if not infill:
            exact, bleu, chrf = (result[f"{metric}/{n}"] for metric in ("exact", "bleu", "chrf"))
            found += f"; exact {exact:.1%}, BLEU {bleu:.1f}, chrF {chrf:.1f}"
        run.say(f"  {n:<{width}}{found}")
    run.say_end(f"{name}, step {best['step']}")


def check(flags):
    """Raise UserError for flags that contradict each other."""
    if flags.task == "translate":
        gaps = typed(flags, "mask_rate", "mean_span")
        problem = "--task translate: BLEU needs sacrebleu"
        require(
            (not gaps, f"--task translate has no gaps; leave {gaps} out"),
            (find_spec("sacrebleu"), f"{problem}; install it with: pip install sacrebleu"),
        )
        return
    T, rate = flags.block_size, f"--mask-rate {flags.mask_rate}"
    n_corrupted, n_spans = spans.most(T - 1, flags.mask_rate, flags.mean_span)
    target = (
        f"{n_corrupted} corrupted tokens and {n_spans} sentinels do not fit into --block-size {T}"
    )
    require(
        (not flags.languages, f"--languages {flags.languages}: needs --task translate"),
        (n_corrupted + n_spans < T, f"{rate}: {target}; corrupt less, or use a larger --mean-span"),
    )


if __name__ == "__main__":
    main(train, Flags, __doc__)
