"""beyond.train_seq2seq: perplexities by hand, gaps that are the same for all runs, translation."""

import json
import math
import shutil
import sys

import pytest
import sacrebleu
import torch
from helpers import call, fails, stopped_at, succeed

from beyond import train_seq2seq
from data import spans
from data.batching import pad
from data.files import read_lines
from data.pairs import load_pairs
from data.tokenizer import BOS, EOS, PAD, encode, load_tokenizer
from lab.load import read_metrics, read_result, read_run
from nets.seq2seq import generate

SIZE = "--n-layer 1 --n-head 2 --n-embd 32 --n-ffn 64 --block-size 12 --batch-size 16".split()


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
    sequences = [(torch.tensor(ids),) for ids in pieces]
    for read, labels in train_seq2seq.fixed_batches(sequences, first):
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


def test_perplexity_of_a_prefix_model_is_that_of_second_halves(corpus, tmp_path):
    flags = dict(task="prefix", data=corpus, steps=4, valid=0.2, out=tmp_path / "run")
    succeed(call("beyond.train_seq2seq", *SIZE, **flags))
    loaded, result = read_run(tmp_path / "run"), read_result(tmp_path / "run")
    nats = []
    for ids in encode(loaded.tokenizer, read_lines(corpus / "test_LM_one.txt")):
        half = len(ids) // 2  # of 8 words, which fit in a block
        source, target = [BOS, *ids[:half]], [*ids[half:], EOS]
        nats += losses_by_hand(loaded.model, source, target)
    assert result["tokens/one"] == len(nats) > 50
    expected = math.exp(sum(nats) / len(nats))
    assert result["perplexity/one"] == pytest.approx(expected, rel=1e-4)
    succeed(call("sample", tmp_path / "run", text="we want peace", tokens=4))


@pytest.mark.slow
def test_translation_learns_and_its_numbers_are_those_by_hand(pairs, tmp_path):
    learn = "--steps 300 --eval-every 300 --lr 0.01 --warmup 10 --dropout 0".split()
    argv = ["--task", "translate", "--data", pairs, "--pos", "rope", *SIZE, *learn]
    succeed(call("beyond.train_seq2seq", *argv, out=tmp_path / "run"))
    loaded, result = read_run(tmp_path / "run"), read_result(tmp_path / "run")
    heldout = load_pairs(pairs).tests["test"]
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


def test_first_words_of_targets_count_among_the_unknown(pairs, tmp_path):
    data = shutil.copytree(pairs, tmp_path / "data")
    (data / "test.en").write_text("we want peace\n" * 9)
    (data / "test.xx").write_text("".join(f"new{i} ew tnaw ecaep\n" for i in range(9)))
    argv = "--task", "translate", *SIZE, "--data", data, "--out", tmp_path / "run"
    done = succeed(call("beyond.train_seq2seq", *argv, steps=1))
    assert "note: 14% of the test words are unknown" in done.out  # 9 of 9 * 3 + 9 * 4


def translated(folder, language, train, test, answers, monkeypatch, *argv):
    """Return the result of a run on English sources "0 1", "1 2", ... that gives these answers."""
    sources = [f"{i} {i + 1}" for i in range(len(train))]
    for part, targets in ("train", train), ("val", train), ("test", test):
        for ending, lines in ("en", sources), (language, targets):
            text = "".join(f"{line}\n" for _, line in zip(targets, lines))
            (folder / f"{part}.{ending}").write_text(text, "utf-8")

    def write(model, source, mask, most):
        tokenizer = load_tokenizer(folder / "run" / "tokenizer.json")
        found = map(tuple, encode(tokenizer, sources)), encode(tokenizer, answers)
        written = dict(zip(*found))
        read = (tuple(row[row > EOS].tolist()) for row in source)  # without [BOS] and padding
        return pad([torch.tensor([*written[ids], EOS]) for ids in read])[0]

    monkeypatch.setattr("nets.seq2seq.generate", write)
    argv = ("--task", "translate", *SIZE, "--block-size", 40, "--data", folder, *argv)
    succeed(call("beyond.train_seq2seq", *argv, steps=1, out=folder / "run"))
    return read_result(folder / "run")


def test_bleu_finds_the_words_of_chinese(tmp_path, monkeypatch):
    """13a takes a Chinese sentence for one word, and a short one has no 4-grams of words."""
    lines = [f"{a}要{b}和{c}。" for a in "我你他" for b in "水火土" for c in "日月山"]
    same = [lines[0]] * len(lines)
    result = translated(tmp_path, "zh", lines, lines, same, monkeypatch, "--tokenizer", "bpe")
    expected = sacrebleu.corpus_bleu(same, [lines], tokenize="zh").score
    assert result["bleu/test"] == pytest.approx(expected) != 0


def test_spaces_that_words_lose_cost_no_bleu_but_unknown_words_do(tmp_path, monkeypatch):
    train = ["L'homme n'a pas d'argent.", "« Ja », dit l'enfant ce soir ."]
    result = translated(tmp_path, "fr", train, train, train, monkeypatch)
    assert result["exact/test"] == 1 and result["bleu/test"] == pytest.approx(100)
    test = [train[0], "« Ja », dit l'oncle ce soir ."]
    (tmp_path / "other").mkdir()
    result = translated(tmp_path / "other", "fr", train, test, test, monkeypatch)
    assert result["exact/test"] == 0.5 and 50 < result["bleu/test"] < 95


def test_pairs_longer_than_a_block(pairs, tmp_path, monkeypatch):
    shutil.copytree(pairs, tmp_path / "long")
    for ending in ("en", "xx"):
        with open(tmp_path / "long" / f"train.{ending}", "a") as file:
            file.write("mice " * 60 + "\n")
    argv = ["--task", "translate", *SIZE, "--data", tmp_path / "long", "--out", tmp_path / "run"]
    done = succeed(call("beyond.train_seq2seq", *argv, steps=1))
    assert "en to xx: 60 sequences of 61" in done.out
    measured = {f"{metric}/valid" for metric in ("perplexity", "exact", "bleu", "chrf")}
    assert measured <= read_result(tmp_path / "run").keys()
    fails(call("beyond.train_seq2seq", block_size=2), "--block-size 2: must be at least 3")
    short = call("beyond.train_seq2seq", *argv, block_size=4, overwrite=True)
    fails(short, "--block-size 4: every training pair is longer")
    fails(call("beyond.train_seq2seq", *argv, random_positions=40), "--random-positions: only")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    fails(call("beyond.train_seq2seq", *argv), "needs sacrebleu", "[beyond]")


COMMANDS = {
    "infill": ("beyond.train_seq2seq", "corpus", "--valid 0.2 --accumulate 2"),
    "tlm": ("beyond.train_context", "pairs", "--task tlm"),
    "threads": ("beyond.train_context", "threads", "--task threads --accumulate 2"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_resumed_run_ends_like_one_never_stopped(command, request, tmp_path, monkeypatch):
    module, data, argv = COMMANDS[command]
    argv = [*argv.split(), *"--steps 4 --eval-every 2 --dropout 0.2 --n-embd 16".split()]
    argv += ["--data", request.getfixturevalue(data)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    succeed(call(module, *argv, out=whole))
    stopped_at(3, monkeypatch, module, *argv, out=parts)
    succeed(call(module, *argv, "--resume", out=parts))
    assert (parts / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    cost = ("seconds", "cpu_seconds", "tokens_per_second", "peak_memory_mb", "command")
    result, again = read_result(whole), read_result(parts)
    assert json.dumps(result | dict.fromkeys(cost)) == json.dumps(again | dict.fromkeys(cost))
