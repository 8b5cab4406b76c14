"""An encoder-decoder: fill gaps in a text (span corruption), or translate sentence pairs.

    python -m beyond.train_seq2seq --data speeches
        text      Thank you for inviting me to your party last week .
        source    [BOS] Thank you [S0] me to your party [S1] week .      read by the encoder
        target    [S0] for inviting [S1] last [EOS]                      written by the decoder

    python -m beyond.train_seq2seq --task translate --data pairs/
        source    [BOS] We choose hope .
        target    Nous choisissons l'espoir . [EOS]

As in T5, gaps hide 15% of the tokens, three at a time, new at every step (data/spans.py). The
perplexity is that of all tokens of the target. `perplexity_words` leaves out the markers [S0], ...
and [EOS], which are nearly certain. Compare neither with that of train_lm.py or train_mlm.py.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from data import corpus, spans
from data.batching import by_epoch, generator, length_batches, pad, send, send_all, sentences
from data.files import hash_of
from data.pairs import load_pairs
from data.tokenizer import BOS, EOS, add_sentinels, detokenize, encode, train_tokenizer
from lab import dist
from lab.figures import curves, name_positions, save
from lab.flags import CommonFlags, LoopFlags, main, model_config, require, whole_numbers
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.run import Run
from model import LanguageModel
from nets.seq2seq import EncoderDecoder, generate

DRAWS = 5  # corruptions of each text of a test set: more masked words, less noise


@dataclass
class Flags(LoopFlags, CommonFlags):
    task: Literal["infill", "translate"] = "infill"  # span corruption, or sentence pairs
    mask_rate: float = 0.15  # share of tokens to corrupt
    mean_span: float = 3.0  # mean length of a gap, in tokens
    valid: float = 0.05  # share held out to choose the best step
    block_size: int = 64  # longest source and longest target, in tokens
    n_layer: int = 2  # number of blocks
    n_head: int = 4  # attention heads per block
    n_ffn: int = 0  # width of the feed-forward layer; 0: four times --n-embd
    dropout: float = 0.1  # dropout of embeddings and sublayer outputs
    steps: int = 1000  # number of updates
    batch_size: int = 128  # sequences per update
    lr: float = 3e-3  # peak learning rate
    warmup: int = 100  # steps over which the learning rate rises
    decay: float = 0.9  # the learning rate falls to zero over this last share of the steps
    eval_every: int = 250  # steps between evaluations

    def __post_init__(self):
        super().__post_init__()
        shares = 0 < self.valid < 1 and 0 < self.mask_rate < 1
        require(shares, "--valid, --mask-rate: must be above 0 and below 1")
        n_tokens, n_spans = spans.most(self.block_size - 1, self.mask_rate, self.mean_span)
        problem = f"--mask-rate {self.mask_rate}: its gaps do not fit into --block-size"
        require(n_tokens + n_spans < self.block_size, f"{problem}; corrupt less")
        if self.task == "translate":
            remedy = 'install the extra "beyond": pip install -e ".[beyond]"'
            require(find_spec("sacrebleu"), f"--task translate: BLEU needs sacrebleu; {remedy}")


def build(config):
    """Return the untrained model of a run."""
    return LanguageModel(EncoderDecoder(config))


def read_examples(flags):
    """Return (name, tokenizer, id of [S0], {set: examples}, {set: what they were}, hash).

    An example is a text that begins with [BOS], or a pair of [BOS] source and target [EOS].
    Training pairs longer than --block-size are left out; other pairs are truncated.
    """
    infill, T, sets = flags.task == "infill", flags.block_size, {}
    if infill:
        found = corpus.load(flags.data)
        require(found.lines, f"--data {flags.data}: holds no running text; see --task translate")
        train, valid = corpus.hold_out(found.lines, flags.valid, name=flags.data)
        name, texts = found.name, found.texts(valid)
    else:
        found = load_pairs(flags.data, flags.valid)
        train, valid = found.train, found.valid
        name, texts = " to ".join(found.languages), found.texts()
    tokenizer = train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    first, given = tokenizer.get_vocab_size(), {"train": train, "valid": valid} | found.tests
    if infill:
        add_sentinels(tokenizer, spans.most(T - 1, flags.mask_rate, flags.mean_span)[1])
        sets = {n: sentences(tokenizer, part, T, split=True)[0] for n, part in given.items()}
        return name, tokenizer, first, sets, given, hash_of(given)
    for n, part in given.items():
        both = zip(*(encode(tokenizer, side) for side in zip(*part)))
        pairs = [(torch.tensor([BOS, *a]), torch.tensor([*b, EOS])) for a, b in both]
        if n == "train":
            pairs = [pair for pair in pairs if max(map(len, pair)) <= T]
        sets[n] = [(a[:T], b[:T]) for a, b in pairs]
    require(sets["train"], f"--block-size {T}: every training pair is longer; use a larger one")
    return name, tokenizer, first, sets, given, hash_of(given)


def length(example):
    """Return the tokens of a text, or of both sides of a pair."""
    return len(example) if torch.is_tensor(example) else sum(map(len, example))


def make_batch(examples, gen, *gaps):
    """Return {"idx": (B, U), what the decoder reads, "source", "source_mask": (B, S)} and labels
    (B, U), -100 on padding. gaps: first, rate and mean_span of `spans.corrupt`, for texts."""
    if torch.is_tensor(examples[0]):
        first, rate, mean_span = gaps
        found = spans.corrupt(*pad(examples), first, gen, rate, mean_span)
    else:
        found = [tensor for side in zip(*examples) for tensor in pad(side)]
    source, source_mask, target, target_mask = found
    inputs = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
    labels = target.masked_fill(~target_mask, -100)
    return {"idx": inputs, "source": source, "source_mask": source_mask}, labels


def fixed_batches(examples, *gaps):
    """Return batches whose gaps depend on neither the seed nor the step."""
    return [
        make_batch([examples[i] for i in rows], generator("gaps", draw, *rows.tolist()), *gaps)
        for draw in range(DRAWS if torch.is_tensor(examples[0]) else 1)
        for rows in length_batches(list(map(length, examples)), 64)
    ]


@torch.no_grad()
def evaluate(model, name, batches, device, flags, first):
    """Return {"perplexity/NAME": of all targets, "perplexity_words/NAME": of words alone,
    "tokens/NAME": targets}. [EOS] and the sentinels, with ids from `first` on, are not words."""
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64)
    for read, labels in dist.my_share(batches):
        with autocast(flags.dtype, device):
            losses = model.losses(targets=labels, **send_all(read, device)).cpu().double()
        targets = labels[labels != -100]
        words = (targets < first) & (targets != EOS)
        found = [losses.sum(), len(losses), losses[words].sum(), words.sum()]
        sums += torch.tensor(found, dtype=torch.float64)
    model.train()
    nats, n, nats_of_words, n_words = dist.all_sum(sums).tolist()
    of_words = {f"perplexity_words/{name}": perplexity(nats_of_words, n_words)}
    return {f"perplexity/{name}": perplexity(nats, n), f"tokens/{name}": int(n)} | of_words


@torch.no_grad()
def translate(model, examples, tokenizer, device, flags):
    """Return the greedy translation of each source as text: the likeliest word at each step."""
    model.eval()
    written = torch.zeros(len(examples), flags.block_size, dtype=torch.long)
    for rows in dist.my_share(length_batches([len(source) for source, _ in examples], 64)):
        source, mask = (send(tensor, device) for tensor in pad([examples[i][0] for i in rows]))
        with autocast(flags.dtype, device):
            ids = generate(model, source, mask, flags.block_size).cpu()
        written[rows, : ids.size(1)] = ids
    found = dist.all_sum(written).tolist()
    return [detokenize(tokenizer, ids[: ids.index(EOS)] if EOS in ids else ids) for ids in found]


def score(outputs, targets, tokenizer):
    """Return the share of exact outputs, BLEU and chrF (sacrebleu's, 0 to 100)."""
    import sacrebleu  # of the extra beyond

    spaced = [detokenize(tokenizer, ids) for ids in encode(tokenizer, targets)]  # like the outputs
    exact = sum(output == target for output, target in zip(outputs, spaced)) / len(outputs)
    bleu = sacrebleu.corpus_bleu(outputs, [targets]).score
    return {"exact": exact, "bleu": bleu, "chrf": sacrebleu.corpus_chrf(outputs, [targets]).score}


def train(flags):
    # Data: texts that get other gaps at every step, or pairs
    name, tokenizer, first, sets, given, data_hash = read_examples(flags)
    gaps, examples = (first, flags.mask_rate, flags.mean_span), sets["train"]
    fixed = {n: fixed_batches(part, *gaps) for n, part in sets.items() if n != "train"}
    lengths = list(map(length, examples))
    rows_of = by_epoch(len(lengths), flags.batch_size, flags.seed, partial(length_batches, lengths))

    # Model
    config = model_config(flags, vocab_size=tokenizer.get_vocab_size())
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    infill = flags.task == "infill"
    run_name = "" if infill else "translate"
    run = Run(__file__, flags, "seq2seq", config, tokenizer, device, data_hash, {}, run_name)
    model = build(config).to(device)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    things = "sequences" if infill else f"of {len(given['train']):,} pairs fit"
    run.say_start(f"{name}: {len(lengths):,} {things} ({sum(lengths):,} tokens)", model)

    # Loop
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = {}
            for n, part in fixed.items():
                numbers |= evaluate(model, n, part, device, flags, first)
            words = "  ".join(f"{n} {numbers[f'perplexity/{n}']:,.2f}" for n in fixed)
            words = f"step {step:>5}  perplexity  {words}"
            run.log(step, numbers, words, model, "perplexity/valid")
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        gen = generator(flags.seed, "gaps", step)
        inputs, labels = make_batch([examples[i] for i in rows_of(step)], gen, *gaps)
        count = (labels != -100).sum().item()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, wanted in dist.micro_batches(labels, flags.accumulate, flags.seed, step):
            read = send_all({name: tensor[rows] for name, tensor in inputs.items()}, device)
            with autocast(flags.dtype, device):
                loss = model.loss(targets=wanted, **read) / count
            loss.backward()
            total += loss.detach()
        dist.sum_gradients(model)
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.progress(step, flags.steps, total, int(inputs["source_mask"].sum()) + count)

    # Results: of the best step
    best = run.load_best(model)
    result = {"step": best["step"]}
    for n, part in fixed.items():
        result |= evaluate(model, n, part, device, flags, first)
        if not infill:
            outputs = translate(model, sets[n], tokenizer, device, flags)
            scores = score(outputs, [target for _, target in given[n]], tokenizer)
            result |= {f"{metric}/{n}": value for metric, value in scores.items()}
    run.finish(result, model)
    title = f"{run.folder.name}\n{flags.task}, {name}, {name_positions(config)}"
    lines = run.logged({n: f"perplexity/{n}" for n in fixed})
    panel = (title, "perplexity of targets (log scale)", lines, {}, True)
    save(curves([panel], "step"), run.folder / "curve.png")
    for n in fixed:
        found = {key: value for key, value in result.items() if key.endswith(f"/{n}")}
        run.say("  " + "  ".join(f"{key} {value:,.2f}" for key, value in found.items()))
    run.say_end(f"{name}, step {best['step']}")


if __name__ == "__main__":
    main(train, Flags)
