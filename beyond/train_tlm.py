"""Translation language modelling: masked words of a sentence and of its translation, each predicted
from both (TLM, Lample & Conneau 2019, section 3).

    python -m beyond.train_tlm --data toy --pos rope
    python -m beyond.train_tlm --data pairs.tsv --steps 3000

A pair is one sequence, [BOS] a sentence [BOS] its translation. Positions restart with the second
sentence, and each word has a vector of its language. Afterwards the same masked words are predicted
three times: in the sentence alone, beside its translation, and beside a wrong one.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn.utils import clip_grad_norm_

from data import batching
from data.batching import by_epoch, generator, length_batches, sentences, share_unknown
from data.corpora.pairs import load_pairs
from data.masked_pairs import VIEWS, masked_test_set
from data.masking import mask_tokens
from data.tokenizer import train_tokenizer, word_starts
from lab.command import main
from lab.errors import require
from lab.evaluation import measure_masked, require_targets
from lab.figures import name_positions
from lab.flags import MaskFlags, TrainFlags, flag, model_config
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.report import Curves, draw_curve, say_start
from lab.run import Run
from lab.sources import load_init_from
from model import LanguageModel
from nets.device import send_all
from nets.two_languages import make_encoder


@dataclass
class Flags(MaskFlags, TrainFlags):
    data: str = flag("toy", "toy, a folder of sentence pairs, or a .tsv of them: see docs/data.md")
    init_from: str = flag(
        "", "run of train_mlm.py or this script to start from, with both languages' vocabulary"
    )
    languages: str = flag("", "endings of the folder's files, as in en-fr")
    pair_rate: float = flag(
        0.8, "share of the updates that read pairs, not single sentences", at_least=0, at_most=1
    )
    valid: float = flag(0.05, "share of pairs held out to choose the best step", above=0, below=1)
    n_layer: int = 2
    n_head: int = 4
    activation: str = "gelu"
    steps: int = 1500
    batch_size: int = 32
    lr: float = 3e-3
    warmup: int = 100
    eval_every: int = 250


def evaluate(model, sets, name, device, flags):
    """Return {"perplexity/NAME-LANGUAGE-VIEW": ..., "accuracy/NAME-LANGUAGE-VIEW": ...} of the set
    with this name. sets: {name: {language: {view: batches}}}."""
    numbers = {}
    for language, views in sets[name].items():
        for view, batches in views.items():
            nats, hits, count = measure_masked(model, batches, device, flags)
            numbers[f"perplexity/{name}-{language}-{view}"] = perplexity(nats, count)
            numbers[f"accuracy/{name}-{language}-{view}"] = hits / count
    return numbers


def train(flags):
    # Data: pairs of sentences, each side a list of sequences that begin with [BOS]
    source = load_init_from(flags, "mlm")
    pairs = load_pairs(flags.data, flags.languages).with_valid(flags)
    languages, where = pairs.languages, f"--data {flags.data}"
    before = "-".join(source.config.get("languages", languages) if source else languages)
    now = "-".join(languages)
    problem = f"--init-from {flags.init_from}: its languages are {before}, not {now}"
    require((before == now, f"{problem}; use --languages {before}"))
    kept, held_out = list(dict.fromkeys(pairs.train)), pairs.valid
    vocabulary = flags.tokenizer, [text for pair in kept for text in pair], flags.vocab_size
    tokenizer = source.tokenizer if source else train_tokenizer(*vocabulary)
    vocab_size, starts = tokenizer.get_vocab_size(), word_starts(tokenizer)

    def encode(part):
        found = [sentences(tokenizer, side, flags.block_size) for side in zip(*part)]
        return [side for side, _ in found], sum(long for _, long in found)

    sides, n_long = encode(kept)
    lengths = [len(a) + len(b) for a, b in zip(*sides)]
    foreign = f"--init-from {flags.init_from}: does not know most words of"
    remedy = f"pretrain it with --vocab-from {flags.data} or --tokenizer bpe"
    for language, side in zip(languages, sides):
        require((not source or share_unknown(side) < 0.5, f"{foreign} {language}; {remedy}"))
    sets = {}  # {set: {language: {view: batches}}}
    for name, part in ({"valid": held_out} | pairs.tests).items():
        require((len(part) > 1, f"{where}: {name} has a single pair; give at least two"))
        held, _ = encode(part)
        sets[name] = {}
        for side, language in enumerate(languages):
            views = masked_test_set(held, side, flags, vocab_size, starts)
            labels = (labels for _, _, labels, _ in views["alone"])
            require_targets(labels, f"{where}: no word of {language} in {name}")
            sets[name][language] = views

    # Model
    config = model_config(flags, source, vocab_size=vocab_size, unit_embd=flags.head == "clap")
    config = replace(config, n_language=2)
    device = set_up_device(flags, config)
    run = Run("mlm", flags, config, tokenizer, device, name="tlm", languages=languages)
    model = LanguageModel(make_encoder(config)).to(device)
    if flags.compile:
        compile_blocks(model)
    if source:
        torch.nn.init.zeros_(model.body.languages.weight)  # if the source has no languages
        model.load_state_dict(model.state_dict() | source.model.state_dict())
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    what = f"{pairs.name}: {len(kept):,} training pairs ({sum(lengths):,} tokens)"
    say_start(run, f"{what}, {len(held_out):,} for validation", model)
    for language, side in zip(languages, encode(held_out)[0]):
        run.say(
            f"  {language:<9}{share_unknown(side):6.1%} of the held-out words out of vocabulary"
        )
    if n_long:
        run.say(f"  sentences truncated to --block-size {flags.block_size}: {n_long}")

    # Loop
    def measure():
        numbers = evaluate(model, sets, "valid", device, flags)
        loss = {
            view: sum(math.log(numbers[f"perplexity/valid-{n}-{view}"]) for n in languages) / 2
            for view in VIEWS
        }
        # Weight both losses by how often each is trained
        valid = flags.pair_rate * loss["paired"] + (1 - flags.pair_rate) * loss["alone"]
        words = "   ".join(in_words(numbers, "valid", language) for language in languages)
        return {"loss/valid": valid} | numbers, f"masked-LM perplexity  {words}"

    rows_of = by_epoch(len(kept), flags.batch_size, flags.seed, partial(length_batches, lengths))
    for step in run.steps(model, optimizer, measure, monitor="loss/valid"):
        gen = generator(flags.seed, "masks", step)
        paired = torch.rand((), generator=gen) < flags.pair_rate
        rows = ([side[i] for i in rows_of(step)] for side in sides)
        idx, mask, more = (batching.join if paired else batching.separate)(*rows)  # (B, T)
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        with autocast(flags, device):
            read = send_all({"idx": inputs, "mask": mask, **more}, device)
            loss = model.loss(targets=labels, **read) / max(1, (labels != -100).sum().item())
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.record_step(step, loss, int(mask.sum()))

    # Results
    best, result = run.load_best(model), {}
    for name in sets:
        result |= evaluate(model, sets, name, device, flags)
    run.finish(result, model)
    panels = []
    for language in languages:
        title = f"Masked words of {language}, {pairs.name}\n{name_positions(config)}"
        keys = {words: f"perplexity/valid-{language}-{view}" for view, words in VIEWS.items()}
        panels.append(Curves(title, "perplexity (log scale)", keys, log=True))
    draw_curve(run, panels)
    for name in sets:
        run.say(f"  {name}: {'; '.join(in_words(result, name, each) for each in languages)}")
    run.say_end(f"masked-LM perplexity at step {best['step']}")


def in_words(numbers, name, language):
    """Return the perplexities of a set in one language in words."""
    key = f"perplexity/{name}-{language}"
    found = {words: numbers[f"{key}-{view}"] for view, words in VIEWS.items()}
    return f"{language} " + ", ".join(f"{value:,.2f} {words}" for words, value in found.items())


if __name__ == "__main__":
    main(train, Flags, __doc__)
