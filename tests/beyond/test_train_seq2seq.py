"""beyond.train_seq2seq: perplexities by hand, gaps that are the same for all runs, translation."""

import json
import math
import random
import sys

import pytest
import sacrebleu
import torch
from helpers import call, fails, succeed

from beyond import train_seq2seq
from data import spans
from data.files import read_lines
from data.tokenizer import BOS, EOS, PAD, encode
from lab.load import read_metrics, read_result, read_run
from nets.seq2seq import generate

COUNTS = ("one un", "two deux", "three trois", "four quatre")
COLOURS = ("red rouge", "blue bleu", "black noir")
NOUNS = ("cats chats", "dogs chiens", "birds oiseaux", "mice souris")
SIZE = "--n-layer 1 --n-head 2 --n-embd 32 --n-ffn 64 --block-size 12 --batch-size 16".split()


def pair(number):
    """One of 192 phrases and its translation, in which the adjective follows the noun."""
    count, colour, noun, other = (
        words[number // step % len(words)].split()
        for words, step in ((COUNTS, 1), (COLOURS, 4), (NOUNS, 12), (NOUNS, 48))
    )
    return (
        f"{count[0]} {colour[0]} {noun[0]} and {other[0]} .",
        f"{count[1]} {noun[1]} {colour[1]} et {other[1]} .",
    )


NUMBERS = random.Random(0).sample(range(192), 192)
PARTS = {"train": NUMBERS[40:], "val": NUMBERS[20:40], "test": NUMBERS[:20]}


def write_parts(folder, parts, more=()):
    """Write the phrases of these numbers, and more lines, in en and in fr; return the folder."""
    for name, numbers in parts.items():
        for side, ending in enumerate(("en", "fr")):
            lines = [*(pair(number)[side] for number in numbers), *more]
            (folder / f"{name}.{ending}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """The folder of a run that has learned to translate."""
    folder = write_parts(tmp_path_factory.mktemp("translator"), PARTS)
    learn = "--steps 300 --eval-every 300 --lr 0.01 --warmup 10 --dropout 0".split()
    argv = ["--task", "translate", "--data", folder, "--pos", "rope", *SIZE, *learn]
    succeed(call("beyond.train_seq2seq", *argv, out=folder / "run"))
    return folder / "run"


@torch.no_grad()
def losses_by_hand(model, source, target):
    """Minus the log probabilities of one target's ids, given one source."""
    logits = model(torch.tensor([[BOS, *target[:-1]]]), source=torch.tensor([source]))[0]
    return [-logits[t].log_softmax(-1)[i].item() for t, i in enumerate(target)]


def test_perplexity_of_infilling_is_that_by_hand(finished, corpus):
    folder = finished("beyond.train_seq2seq", "--valid", "0.2")
    loaded, result = read_run(folder), read_result(folder)
    first = loaded.tokenizer.token_to_id("[S0]")
    lines = read_lines(corpus / "test_LM_one.txt")
    pieces = [  # --block-size 12
        [BOS, *ids[i : i + 11]]
        for ids in encode(loaded.tokenizer, lines)
        for i in range(0, len(ids), 11)
    ]
    nats, words, texts = [], [], []
    sequences = [torch.tensor(ids) for ids in pieces]
    for read, labels in train_seq2seq.fixed_batches(sequences, first, 0.15, 3.0):
        inputs, wanted = read["idx"], labels[:, :-1]
        assert (inputs[:, 0] == BOS).all()
        assert torch.equal(inputs[:, 1:], wanted.where(wanted != -100, PAD))
        for source, mask, label in zip(read["source"], read["source_mask"], labels.tolist()):
            source, target = source[mask].tolist(), [i for i in label if i != -100]
            texts.append(spans.restore(source, target, first))
            found = losses_by_hand(loaded.model, source, target)
            nats += found
            words += [loss for loss, i in zip(found, target) if i < first and i != EOS]
    assert sorted(texts) == sorted(pieces * train_seq2seq.DRAWS)  # every line, whole
    assert result["tokens/one"] == len(nats) > len(words) > 0
    for metric, losses in (("perplexity", nats), ("perplexity_words", words)):
        expected = math.exp(sum(losses) / len(losses))
        assert result[f"{metric}/one"] == pytest.approx(expected, rel=1e-4)
    assert {"perplexity/valid", "perplexity/two"} <= read_metrics(folder)[-1].keys()


def test_translation_learns_and_its_numbers_are_those_by_hand(translator):
    loaded, result = read_run(translator), read_result(translator)
    heldout = [pair(number) for number in PARTS["test"]]
    nats, outputs = [], []
    for source, target in heldout:
        ids, wanted = encode(loaded.tokenizer, [source, target])
        nats += losses_by_hand(loaded.model, [BOS, *ids], [*wanted, EOS])
        written = generate(loaded.model, torch.tensor([[BOS, *ids]]), None, 12)[0].tolist()
        outputs.append(loaded.tokenizer.decode(written).replace(" .", "."))
    assert result["perplexity/test"] == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-4)
    assert result["tokens/test"] == len(nats)
    targets = [target for _, target in heldout]
    exact = [output == target.replace(" .", ".") for output, target in zip(outputs, targets)]
    assert result["exact/test"] == sum(exact) / len(exact) > 0.7
    for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
        score = metric.corpus_score(outputs, [targets]).score
        assert result[f"{name}/test"] == pytest.approx(score)
    assert "[S0]" not in loaded.tokenizer.get_vocab()


def test_pairs_longer_than_a_block(tmp_path):
    parts = {"train": range(40), "val": range(40, 50), "test_2016": range(9)}
    argv = ["--task", "translate", *SIZE, "--data", write_parts(tmp_path, parts, ["mice " * 60])]
    done = succeed(call("beyond.train_seq2seq", *argv, steps=1, out=tmp_path / "run"))
    assert "en to fr: 40 of 41 pairs" in done.out
    metrics = ("perplexity", "exact", "bleu", "chrf")
    measured = {f"{metric}/{part}" for metric in metrics for part in ("valid", "test_2016")}
    assert measured <= read_result(tmp_path / "run").keys()
    short = call("beyond.train_seq2seq", *argv, block_size=4, overwrite=True, out=tmp_path / "run")
    fails(short, "--block-size 4: every training pair is longer")


def test_what_cannot_be_trained_is_refused(pairs, tmp_path, monkeypatch):
    argv = ("beyond.train_seq2seq", "--data", pairs, "--out", tmp_path / "run")
    fails(call(*argv, mask_rate=0.9, mean_span=1), "--mask-rate 0.9", "--block-size")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    fails(call(*argv, task="translate"), "needs sacrebleu", "[beyond]")
    assert not (tmp_path / "run").exists()


COMMANDS = {
    "infill": ("beyond.train_seq2seq", "corpus", "--valid 0.2 --accumulate 2"),
    "tlm": ("beyond.train_context", "pairs", "--task tlm"),
    "threads": ("beyond.train_context", "threads", "--task threads --accumulate 2"),
    "generative": ("beyond.train_generative", "corpus", "--class-steps 4 --tune biases"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_resumed_run_ends_like_one_never_stopped(command, request, tmp_path):
    module, data, argv = COMMANDS[command]
    argv = [*argv.split(), *"--steps 4 --eval-every 2 --dropout 0.2 --n-embd 16".split()]
    argv += ["--data", request.getfixturevalue(data), "--out", tmp_path / "run"]
    succeed(call(module, *argv))
    result = read_result(tmp_path / "run")
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    (tmp_path / "run" / "previous.pt").replace(tmp_path / "run" / "checkpoint.pt")
    succeed(call(module, *argv, "--resume"))
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == log
    cost = ("seconds", "cpu_seconds", "tokens_per_second", "peak_memory_mb", "command")
    again = read_result(tmp_path / "run")
    assert json.dumps(result | dict.fromkeys(cost)) == json.dumps(again | dict.fromkeys(cost))
