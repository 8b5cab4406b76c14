"""An encoder-decoder: fill gaps in a text (span corruption), or translate sentence pairs.

    python -m beyond.train_seq2seq --data speeches
    python -m beyond.train_seq2seq --task translate --data pairs/

    text      Thank you for inviting me to your party last week .
    source    [BOS] Thank you [S0] me to your party [S1] week .      read by the encoder
    target    [S0] for inviting [S1] last [EOS]                      written by the decoder

Gaps are new at every step (data/spans.py). The perplexity is that of all tokens of the target.
`perplexity_words` leaves out the markers [S0], ... and [EOS], which are nearly certain. Compare
neither with that of train_lm.py or train_mlm.py.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from data import batching, corpus, spans
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
from lab.sources import say_unknown
from model import LanguageModel
from nets.seq2seq import EncoderDecoder, generate

GAPS = 0.15, 3.0  # share of the tokens that they hide, and their mean length, as in T5
DRAWS = 5  # corruptions of each text of a test set: more masked words, less noise
TOKENIZERS = dict(zh="zh", ja="char", ko="char", th="char")  # BLEU's, where words lack spaces


@dataclass
class Flags(LoopFlags, CommonFlags):
    task: Literal["infill", "translate"] = "infill"  # span corruption, or sentence pairs
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


def build(config):
    """Return the untrained model of a run."""
    return LanguageModel(EncoderDecoder(config))


def read_examples(flags):
    """Return (Corpus of what is read, tokenizer, id of [S0], {set: examples}, {set: its texts}).

    An example is (text,), which begins with [BOS], or a pair ([BOS] source, target [EOS]). Training
    pairs longer than --block-size are left out; other pairs are truncated.
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
        add_sentinels(tokenizer, spans.most(T - 1, *GAPS)[1])
        for n, part in given.items():
            sets[n] = [(text,) for text in sentences(tokenizer, part, T, split=True)[0]]
            taken = any((text >= first).any() for (text,) in sets[n])
            require(not taken, f"--data {flags.data}: contains [S0] or another name of a gap")
    for n, part in ({} if infill else given).items():
        both = zip(*(encode(tokenizer, side) for side in zip(*part)))
        pairs = [(torch.tensor([BOS, *a]), torch.tensor([*b, EOS])) for a, b in both]
        if n == "train":
            pairs = [pair for pair in pairs if max(map(len, pair)) <= T]
        sets[n] = [(a[:T], b[:T]) for a, b in pairs]
    require(sets["train"], f"--block-size {T}: every training pair is longer; use a larger one")
    return corpus.Corpus(name, texts), tokenizer, first, sets, given


def make_batch(examples, gen, first):
    """Return {"idx": (B, U), what the decoder reads, "source", "source_mask": (B, S)} and labels
    (B, U), -100 on padding. first: the id of [S0]."""
    found = [tensor for side in zip(*examples) for tensor in pad(side)]
    if len(found) == 2:  # texts and their mask
        found = spans.corrupt(*found, first, gen, *GAPS)
    source, source_mask, target, target_mask = found
    inputs = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
    labels = target.masked_fill(~target_mask, -100)
    return {"idx": inputs, "source": source, "source_mask": source_mask}, labels


def fixed_batches(examples, first):
    """Return batches whose gaps depend on neither the seed nor the step."""
    return [
        make_batch([examples[i] for i in rows], generator("gaps", draw, *rows.tolist()), first)
        for draw in range(DRAWS if len(examples[0]) == 1 else 1)
        for rows in length_batches([sum(map(len, example)) for example in examples], 64)
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
        found = losses.sum(), len(losses), losses[words].sum(), words.sum()
        sums += torch.tensor(found, dtype=torch.float64)
    model.train()
    nats, n, *of_words = dist.all_sum(sums).tolist()
    numbers = {f"perplexity/{name}": perplexity(nats, n), f"tokens/{name}": int(n)}
    return numbers | {f"perplexity_words/{name}": perplexity(*of_words)}


@torch.no_grad()
def measure_translations(model, examples, targets, tokenizer, device, flags, language):
    """Return the share of exact greedy translations into a language, BLEU and chrF (sacrebleu's, 0
    to 100)."""
    import sacrebleu  # of the extra beyond

    model.eval()
    written = torch.zeros(len(examples), flags.block_size, dtype=torch.long)
    for rows in dist.my_share(length_batches([len(source) for source, _ in examples], 64)):
        source, mask = (send(tensor, device) for tensor in pad([examples[i][0] for i in rows]))
        with autocast(flags.dtype, device):
            ids = generate(model, source, mask, flags.block_size).cpu()
        written[rows, : ids.size(1)] = ids
    found = (ids[: ids.index(EOS)] if EOS in ids else ids for ids in dist.all_sum(written).tolist())
    outputs = [detokenize(tokenizer, ids) for ids in found]
    spaced = (detokenize(tokenizer, ids) for ids in encode(tokenizer, targets))  # like the outputs
    spaced = [target.replace("[UNK]", "⁇") for target in spaced]  # so that none is right
    exact = sum(output == target for output, target in zip(outputs, spaced)) / len(outputs)
    how = dict(tokenize=TOKENIZERS.get(language[:2], "13a"))
    bleu = sacrebleu.corpus_bleu(outputs, [spaced], **how).score
    return {"exact": exact, "bleu": bleu, "chrf": sacrebleu.corpus_chrf(outputs, [targets]).score}


def train(flags):
    # Data: texts that get other gaps at every step, or pairs
    require(not flags.random_positions, "--random-positions: only for train_lm.py and train_mlm.py")
    infill, remedy = flags.task == "infill", 'pip install -e ".[beyond]"'
    require(infill or find_spec("sacrebleu"), f"--task translate: BLEU needs sacrebleu; {remedy}")
    read, tokenizer, first, sets, given = read_examples(flags)
    name, examples = read.name, sets["train"]
    fixed = {n: fixed_batches(part, first) for n, part in sets.items() if n != "train"}
    lengths = [sum(map(len, example)) for example in examples]
    rows_of = by_epoch(len(lengths), flags.batch_size, flags.seed, partial(length_batches, lengths))

    # Model
    config = model_config(flags, vocab_size=tokenizer.get_vocab_size())
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    about = {"read": {"data": read}, "name": "" if infill else "translate"}
    run = Run(__file__, flags, "seq2seq", config, tokenizer, device, hash_of(given), {}, **about)
    model = build(config).to(device)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    found = f"{name}: {len(lengths):,} sequences of {len(given['train']):,} lines or pairs"
    run.say_start(f"{found} ({sum(lengths):,} tokens)", model)
    for n in fixed:
        words = [ids if ids[0] == BOS else ids.roll(1) for example in sets[n] for ids in example]
        say_unknown(run, n, batching.share_unknown(words), source=None)  # the first id is none

    # Loop
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = {}
            for n, part in fixed.items():
                numbers |= evaluate(model, n, part, device, flags, first)
            words = "  ".join(f"{n} {numbers[f'perplexity/{n}']:,.2f}" for n in fixed)
            run.log(step, numbers, f"step {step:>5}  {words}", model, "perplexity/valid")
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        gen = generator(flags.seed, "gaps", step)
        inputs, labels = make_batch([examples[i] for i in rows_of(step)], gen, first)
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
            targets = [target for _, target in given[n]]
            how = tokenizer, device, flags, name.split()[-1]
            scores = measure_translations(model, sets[n], targets, *how)
            result |= {f"{metric}/{n}": value for metric, value in scores.items()}
    run.finish(result, model)
    title = f"{run.folder.name}\n{flags.task}, {name}, {name_positions(config)}"
    lines = run.logged({n: f"perplexity/{n}" for n in fixed})
    panel = (title, "perplexity of targets (log scale)", lines, {}, True)
    save(curves([panel], "step"), run.folder / "curve.png")
    for n in fixed:
        found = (f"{key} {value:,.2f}" for key, value in result.items() if key.endswith(f"/{n}"))
        run.say("  " + "  ".join(found))
    run.say_end(f"{name}, step {best['step']}")


if __name__ == "__main__":
    main(train, Flags)
