"""An encoder-decoder: fill gaps in a text, write the second half of a line, or translate.

    python -m beyond.train_seq2seq --data speeches                      span corruption
    python -m beyond.train_seq2seq --data speeches --task prefix        prefix LM
    python -m beyond.train_seq2seq --task translate --data pairs/

    text      Thank you for inviting me to your party last week .
    source    [BOS] Thank you [S0] me to your party [S1] week .      read by the encoder
    target    [S0] for inviting [S1] last [EOS]                      written by the decoder

Gaps are new at every step (data/spans.py). The perplexity is that of all tokens of the target.
`perplexity_words` leaves out the markers [S0], ... and [EOS], which are nearly certain. Compare
neither with that of train_lm.py or train_mlm.py.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from tokenizers import Tokenizer

from data import load, spans
from data.batching import (
    by_epoch,
    generator,
    length_batches,
    pad,
    send,
    send_all,
    sentences,
    share_unknown,
)
from data.corpus import Corpus
from data.files import hash_of
from data.leaks import hold_out
from data.pairs import load_pairs
from data.tokenizer import BOS, EOS, add_sentinels, detokenize, encode, train_tokenizer
from lab import dist
from lab.figures import Panel, curves, name_positions, save
from lab.flags import (
    Activation,
    CommonFlags,
    Data,
    Numbers,
    Position,
    main,
    model_config,
    require,
    whole_numbers,
)
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import clip_gradients, learning_rate, make_adamw, perplexity
from lab.run import Run, RunData
from nets.build import build_model
from nets.seq2seq import generate

GAP_RATE = 0.15  # share of the tokens that gaps hide, as in T5
GAP_LENGTH = 3.0  # their mean length
DRAWS = 5  # corruptions of each text of a test set: more masked words, less noise
TOKENIZERS = dict(zh="zh", ja="char", ko="char", th="char")  # BLEU's, where words lack spaces


@dataclass
class Flags(CommonFlags):
    # Data
    data: Data = "toy"  # a named corpus, a .txt or a folder; to translate, a folder of pairs or toy
    task: Literal["infill", "prefix", "translate"] = "infill"  # gaps, second halves, or pairs
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces
    valid: float = 0.05  # share held out to choose the best step

    # Model
    pos: Position = "learned"  # position encoding; rope: rotary, nope: none
    n_layer: int = 2  # number of blocks
    n_head: int = 4  # attention heads per block
    n_embd: int = 64  # width of the hidden states
    n_ffn: int = 0  # width of the feed-forward layer; 0: four times --n-embd
    block_size: int = 64  # longest source and longest target, in tokens
    dropout: float = 0.1  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    activation: Activation = "relu"  # of the feed-forward layer
    init_std: float = 0.05  # standard deviation of the initial weights

    # Training
    steps: int = 1000  # number of updates
    batch_size: int = 128  # sequences per update
    lr: float = 3e-3  # peak learning rate
    warmup: int = 100  # steps over which the learning rate rises
    decay: float = 0.9  # the learning rate falls to zero over this last share of the steps
    weight_decay: float = 0.01  # weight decay of matrices
    clip: float = 1.0  # clip the gradient norm to this; 0: no limit

    # Evaluation
    eval_every: int = 250  # steps between evaluations
    keep: Numbers = ""  # also keep the weights of these steps, as step-N.pt: 0,100


@dataclass
class Examples:
    """What is read. An example is (text,), which begins with [BOS] and gets gaps, or a pair
    ([BOS] source, target [EOS])."""

    name: str  # of the corpus, or the languages: "en to xx"
    tokenizer: Tokenizer
    texts: list[str]  # that made the vocabulary
    lines: dict[str, list]  # set -> its texts, or pairs of texts
    sets: dict[str, list]  # set -> its examples
    first: int  # the id of [S0]; without gaps, the number of words

    def fixed_batches(self):
        """Return {set: batches} of all sets but "train"; see the function `fixed_batches`."""
        names = [name for name in self.sets if name != "train"]
        return {name: fixed_batches(self.sets[name], self.first) for name in names}


def train(flags):
    keep = whole_numbers(flags.keep, "--keep", most=flags.steps)
    require(not flags.random_positions, "--random-positions: only for train_lm.py and train_mlm.py")

    # Data: texts that get other gaps at every step, or pairs
    if flags.task == "infill":
        examples = read_texts(flags)
    elif flags.task == "prefix":
        examples = read_halves(flags)
    else:
        remedy = 'pip install -e ".[beyond]"'
        require(find_spec("sacrebleu"), f"--task translate: BLEU needs sacrebleu; {remedy}")
        examples = read_pairs(flags)
    tests = examples.fixed_batches()

    # Model
    config = model_config(flags, vocab_size=examples.tokenizer.get_vocab_size())
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    texts = Corpus(examples.name, examples.texts)
    name = "seq2seq" if flags.task == "infill" else flags.task  # of the folder
    run = Run(
        flags,
        script=__file__,
        kind="seq2seq",
        config=config,
        build={},
        data=RunData(examples.tokenizer, hash_of(examples.lines), {"data": texts}),
        device=device,
        name=name,
    )
    model = build_model("seq2seq", config, device)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    say_data(run, examples, model)

    # Loop
    fit(run, model, optimizer, examples, tests, keep)

    # Results: of the best step
    best = run.load_best(model)
    result = {"step": best["step"]}
    for test, batches in tests.items():
        result |= evaluate(model, test, batches, device, flags, examples.first)
        if flags.task == "translate":
            result |= measure_translations(model, test, examples, device, flags)
    run.finish(result, model)
    if dist.rank() > 0:
        return  # rank 0 alone draws and prints
    title = f"{run.folder.name}\n{flags.task}, {examples.name}, {name_positions(config)}"
    lines = run.logged({test: f"perplexity/{test}" for test in tests})
    panel = Panel(title, "perplexity of targets", lines, log=True)
    save(curves([panel], "step"), run.folder / "curve.png")
    for test in tests:
        keys = [key for key in result if key.endswith(f"/{test}")]
        run.say("  " + "  ".join(f"{key} {result[key]:,.2f}" for key in keys))
    run.say_end(f"{examples.name}, step {best['step']}")


def fit(run, model, optimizer, examples, tests, keep):
    """Train a model on the examples of the set "train", and evaluate it on the tests, {set:
    batches}. keep: steps whose weights are kept."""
    flags = run.flags
    device = run.device
    training = examples.sets["train"]
    make_epoch = partial(length_batches, lengths_of(training))
    rows_of = by_epoch(len(training), flags.batch_size, flags.seed, make_epoch)

    first_step = 0
    if flags.resume:
        first_step = run.resume(model, optimizer)
    dist.copy_from_rank_0(model)
    model.train()
    for step in range(first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = {}
            for name, batches in tests.items():
                numbers |= evaluate(model, name, batches, device, flags, examples.first)
            words = "  ".join(f"{name} {numbers[f'perplexity/{name}']:,.2f}" for name in tests)
            run.log(step, numbers, f"step {step:>5}  {words}")
            run.save_best(model, "perplexity/valid")
            run.save(model, optimizer, step)
        if step in keep:
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # after Ctrl-C, with a checkpoint

        # Batch: it and its gaps depend on seed and step alone
        gen = generator(flags.seed, "gaps", step)
        batch = [training[i] for i in rows_of(step)]
        inputs, labels = make_batch(batch, gen, examples.first)  # {name: (B, ...)}, (B, U)
        n_targets = int((labels != -100).sum())

        # Update
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        dist.seed_dropout(flags.seed, step)
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in dist.my_parts(labels, flags.accumulate):
            x = send_all({name: tensor[rows] for name, tensor in inputs.items()}, device)
            with autocast(flags.dtype, device):
                part = model.loss(targets=targets, **x) / n_targets  # the count of the whole batch
            part.backward()
            loss += part.detach()
        dist.sum_gradients(model)
        clip_gradients(model, flags.clip)
        optimizer.step()
        n_tokens = int(inputs["source_mask"].sum()) + n_targets
        run.progress(step, flags.steps, loss, n_tokens)


# ---------------------------------------------------------------------------------------- the data


def read_texts(flags):
    """Return a text as Examples that get gaps. Longer lines than --block-size become several."""
    text = load(flags.data)
    require(text.lines, f"--data {flags.data}: holds no running text; see --task translate")
    train, valid = hold_out(text.lines, flags.valid, name=flags.data)
    lines = {"train": train, "valid": valid} | text.tests
    texts = text.texts(valid)
    tokenizer = train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    first = tokenizer.get_vocab_size()
    _, most_gaps = spans.most(flags.block_size - 1, GAP_RATE, GAP_LENGTH)
    add_sentinels(tokenizer, most_gaps)
    sets = {}
    for name, part in lines.items():
        pieces, _ = sentences(tokenizer, part, flags.block_size, split=True)
        has_sentinel = any((ids >= first).any() for ids in pieces)
        problem = f"--data {flags.data}: contains [S0] or another name of a gap"
        require(not has_sentinel, problem)
        sets[name] = [(ids,) for ids in pieces]
    return Examples(text.name, tokenizer, texts, lines, sets, first)


def read_halves(flags):
    """Return the lines of a text as Examples of a prefix LM (Raffel et al. 2020, section 3.2): the
    encoder reads the first half of a line, the decoder writes the second. Lines of one word have
    no halves, so they are left out."""
    text = load(flags.data)
    require(text.lines, f"--data {flags.data}: holds no running text; see --task translate")
    train, valid = hold_out(text.lines, flags.valid, name=flags.data)
    lines = {"train": train, "valid": valid} | text.tests
    texts = text.texts(valid)
    tokenizer = train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    sets = {}
    for name, part in lines.items():
        pieces, _ = sentences(tokenizer, part, flags.block_size, split=True)
        sets[name] = []
        for ids in pieces:  # [BOS] and a line
            half = (len(ids) + 1) // 2
            if half > 1:
                sets[name].append((ids[:half], torch.cat([ids[half:], torch.tensor([EOS])])))
    return Examples(text.name, tokenizer, texts, lines, sets, tokenizer.get_vocab_size())


def read_pairs(flags):
    """Return sentence pairs as Examples. Training pairs longer than --block-size are left out,
    others are truncated."""
    T = flags.block_size
    pairs = load_pairs(flags.data, flags.valid)
    lines = {"train": pairs.train, "valid": pairs.valid} | pairs.tests
    texts = pairs.texts()
    tokenizer = train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    sets = {}
    for name, part in lines.items():
        sources = encode(tokenizer, [source for source, _ in part])
        targets = encode(tokenizer, [target for _, target in part])
        sets[name] = []
        for source_ids, target_ids in zip(sources, targets):
            source = torch.tensor([BOS, *source_ids])
            target = torch.tensor([*target_ids, EOS])
            fits = max(len(source), len(target)) <= T
            if fits or name != "train":
                sets[name].append((source[:T], target[:T]))
    require(sets["train"], f"--block-size {T}: every training pair is longer; use a larger one")
    languages = " to ".join(pairs.languages)
    return Examples(languages, tokenizer, texts, lines, sets, tokenizer.get_vocab_size())


def lengths_of(examples):
    """Return the number of tokens of each example, of a pair both."""
    return [sum(len(ids) for ids in example) for example in examples]


def make_batch(examples, gen, first):
    """Return {"idx": (B, U), what the decoder reads, "source", "source_mask": (B, S)} and labels
    (B, U), -100 on padding. first: the id of [S0]."""
    if len(examples[0]) == 1:
        idx, mask = pad([text for (text,) in examples])  # (B, T)
        source, source_mask, target, target_mask = spans.corrupt(
            idx, mask, first, gen, GAP_RATE, GAP_LENGTH
        )
    else:
        source, source_mask = pad([source for source, _ in examples])
        target, target_mask = pad([target for _, target in examples])
    begin = torch.full_like(target[:, :1], BOS)
    inputs = torch.cat([begin, target[:, :-1]], dim=1)  # (B, U), one token behind the target
    labels = target.masked_fill(~target_mask, -100)
    return {"idx": inputs, "source": source, "source_mask": source_mask}, labels


def fixed_batches(examples, first):
    """Return batches whose gaps depend on neither the seed nor the step."""
    has_gaps = len(examples[0]) == 1
    n_draws = DRAWS if has_gaps else 1
    batches = []
    for draw in range(n_draws):
        for rows in length_batches(lengths_of(examples), 64):
            gen = generator("gaps", draw, *rows.tolist())
            batches.append(make_batch([examples[i] for i in rows], gen, first))
    return batches


def say_data(run, examples, model):
    """Print what is trained on, and how many words of the other sets are unknown."""
    lengths = lengths_of(examples.sets["train"])
    n_lines = len(examples.lines["train"])
    sizes = f"{len(lengths):,} sequences of {n_lines:,} lines or pairs ({sum(lengths):,} tokens)"
    run.say_start(f"{examples.name}: {sizes}", model)
    for name, part in examples.sets.items():
        if name == "train":
            continue
        sequences = []
        for example in part:
            for ids in example:
                is_target = ids[0] != BOS
                # [EOS] goes first, because share_unknown leaves the first token out
                if is_target:
                    sequences.append(ids.roll(1))
                else:
                    sequences.append(ids)
        run.say_unknown(name, share_unknown(sequences))


# -------------------------------------------------------------------------------------- evaluation


@torch.no_grad()
def evaluate(model, name, batches, device, flags, first):
    """Return {"perplexity/NAME": of all targets, "perplexity_words/NAME": of words alone,
    "tokens/NAME": targets}. [EOS] and the sentinels, with ids from `first` on, are not words."""
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64)
    for inputs, labels in dist.my_share(batches):
        with autocast(flags.dtype, device):
            losses = model.losses(targets=labels, **send_all(inputs, device)).cpu().double()
        targets = labels[labels != -100]  # (N,), as losses
        is_word = (targets < first) & (targets != EOS)
        counts = len(losses), is_word.sum()
        nats = losses.sum(), losses[is_word].sum()
        sums += torch.tensor([*nats, *counts], dtype=torch.float64)
    model.train()
    nats, word_nats, n_targets, n_words = dist.all_sum(sums).tolist()
    return {
        f"perplexity/{name}": perplexity(nats, n_targets),
        f"tokens/{name}": int(n_targets),
        f"perplexity_words/{name}": perplexity(word_nats, n_words),
    }


@torch.no_grad()
def measure_translations(model, name, examples, device, flags):
    """Return {"exact/NAME": share of exact greedy translations, "bleu/NAME", "chrf/NAME":
    sacrebleu's, 0 to 100}."""
    import sacrebleu  # of the extra beyond

    tokenizer = examples.tokenizer
    targets = [target for _, target in examples.lines[name]]
    outputs = translate(model, examples.sets[name], tokenizer, device, flags)
    # With spaces like those of the outputs, and no [UNK], so that no unknown word is right
    spaced = [detokenize(tokenizer, ids) for ids in encode(tokenizer, targets)]
    spaced = [target.replace("[UNK]", "⁇") for target in spaced]
    n_exact = sum(output == target for output, target in zip(outputs, spaced))
    language = examples.name.split()[-1]
    words = TOKENIZERS.get(language[:2], "13a")
    return {
        f"exact/{name}": n_exact / len(outputs),
        f"bleu/{name}": sacrebleu.corpus_bleu(outputs, [spaced], tokenize=words).score,
        f"chrf/{name}": sacrebleu.corpus_chrf(outputs, [targets]).score,
    }


def translate(model, examples, tokenizer, device, flags):
    """Return the greedy translations of the sources of pairs, as texts."""
    model.eval()
    written = torch.zeros(len(examples), flags.block_size, dtype=torch.long)
    for rows in dist.my_share(length_batches([len(source) for source, _ in examples], 64)):
        source, mask = pad([examples[i][0] for i in rows])  # (B, S)
        with autocast(flags.dtype, device):
            ids = generate(model, send(source, device), send(mask, device), flags.block_size)
        written[rows, : ids.size(1)] = ids.cpu()
    outputs = []
    for ids in dist.all_sum(written).tolist():
        end = len(ids)
        if EOS in ids:
            end = ids.index(EOS)
        outputs.append(detokenize(tokenizer, ids[:end]))
    return outputs


if __name__ == "__main__":
    main(train, Flags)
