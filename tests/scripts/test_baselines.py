"""n-grams and naive Bayes against values worked out by hand and against slower, plainer code."""

import json
import math
import random
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_complains, call, result_of, succeed, unchanged

from data.tokenizer import BOS, SPECIAL, UNK
from lab.predictions import read_predictions
from nets import naive_bayes
from nets.naive_bayes import NaiveBayes, choose_smoothing
from nets.ngrams import KneserNey, discounts

A, B, C = 5, 6, 7  # the first ids after the special tokens


def random_ids(n, vocab_size, seed=0):
    """A stream in which few ids are frequent, so that n-grams of all lengths repeat."""
    rng = random.Random(seed)
    return [BOS, *(min(len(SPECIAL) + int(rng.expovariate(0.7)), vocab_size - 1) for _ in range(n))]


# ---------------------------------------------------------------------------- n-grams


def test_discounts_by_hand():
    # n1 = 4, n2 = 2, n3 = 1, n4 = 1: Y = 4 / (4 + 2*2) = 0.5
    # D1 = 1 - 2 * 0.5 * 2/4 = 0.5;  D2 = 2 - 3 * 0.5 * 1/2 = 1.25;  D3+ = 3 - 4 * 0.5 * 1/1 = 1
    counts = np.array([1, 1, 1, 1, 2, 2, 3, 4, 9])
    assert discounts(counts) == pytest.approx([0, 0.5, 1.25, 1])
    # n1 = 0, so Y = 0 and D2 would take everything
    assert discounts(np.array([2, 2, 2, 3])) == pytest.approx([0, 0.5, 1, 1.5])


def distribution(model, context):
    """(V,): the probability of every id after the ids of `context`, which begin a text."""
    texts = ([BOS, *context, i] for i in range(model.vocab_size))
    return np.exp([model.log_probabilities(text)[-1] for text in texts])


def plain_kneser_ney(ids, vocab_size, order, word, history):
    """The same probability by the definition, with tuples and dictionaries and nothing shared."""
    padded = (BOS,) * (order - 2) + tuple(ids)
    first = len(padded) - (len(ids) - 1)
    counts = Counter(padded[i - order + 1 : i + 1] for i in range(first, len(padded)))
    history = ((BOS,) * order + tuple(history))[-(order - 1) :] if order > 1 else ()
    chain = []
    for _ in range(order):
        D = discounts(np.array(list(counts.values())))
        followers = {gram: n for gram, n in counts.items() if gram[:-1] == history}
        total = sum(followers.values())
        n = followers.get((*history, word), 0)
        chain.append(
            ((n - D[min(n, 3)]) / total, sum(D[min(m, 3)] for m in followers.values()) / total)
            if total
            else (0, 1)
        )
        counts, history = Counter(gram[1:] for gram in counts), history[1:]
    p = 1 / vocab_size
    for kept, rest in reversed(chain):
        p = kept + rest * p
    return p


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_agrees_with_the_plain_definition(order):
    ids, other = random_ids(150, 12), random_ids(40, 13, seed=1)
    logs = KneserNey(ids, 13, order).log_probabilities(other)
    expected = [
        math.log(plain_kneser_ney(ids, 13, order, other[i], other[:i]))
        for i in range(1, len(other))
    ]
    assert logs == pytest.approx(expected)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 3, 20, 500])
def test_every_distribution_sums_to_one(order, n):
    ids, V = random_ids(n, 12), 14
    model = KneserNey(ids, V, order)
    half_seen = [13, *ids[-2:]]  # an id the text does not hold, then two it ends with
    contexts = [ids[:1], ids[:3], ids[:-1], ids, half_seen, [13] * 4, [UNK], [], [BOS]]
    for context in (*contexts, [*ids[-2:], 13]):
        p = distribution(model, context)
        assert p.shape == (V,) and (p > 0).all()
        assert p.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_a_text_of_unknown_words_alone(order):
    p = distribution(KneserNey([BOS, UNK, UNK], vocab_size=8, order=order), [])
    assert p.sum() == pytest.approx(1) and p.argmax() == UNK


# ---------------------------------------------------------------------------- naive Bayes


def test_naive_bayes_by_hand():
    # Class 0: "a b", "a", "b": features a 2, b 2, ab 1, together 5.
    # Class 1: "b c": b 1, c 1, bc 1, together 3.
    # There are five different features: a, b, c, ab, bc.
    # With smoothing 1, P(f|0) = (n + 1)/10 and P(f|1) = (n + 1)/8.
    # "a b X", X unknown, has the known features a, b, ab:
    #   class 0: 3/4 * 3/10 * 3/10 * 2/10 = 0.0135;  class 1: 1/4 * 1/8 * 2/8 * 1/8 = 1/1024
    # "c b" has b and c, its pair is unknown:
    #   class 0: 3/4 * 3/10 * 1/10 = 0.0225;  class 1: 1/4 * 2/8 * 2/8 = 1/64
    model = NaiveBayes([[A, B], [A], [B], [B, C]], [0, 0, 0, 1], n_class=2, smoothing=1)
    scores = np.exp(model.scores([[A, B, 9], [C, B], [9, 9], []]))
    assert scores == pytest.approx(
        np.array([[0.0135, 1 / 1024], [0.0225, 1 / 64], [3 / 4, 1 / 4], [3 / 4, 1 / 4]])
    )
    # bc: 0.75*0.3*0.1*0.1 < 0.25*(2/8)^3
    assert model.predict([[A, B, 9], [B, C]]).tolist() == [0, 1]
    assert model.predict([[]]).tolist() == [0]


def test_naive_bayes_without_rows_of_a_class_never_answers_it():
    model = NaiveBayes([[A], [B]], [0, 2], n_class=3, smoothing=0.1)
    assert set(model.predict([[A], [B], [C], []])) <= {0, 2}


def test_smoothing_is_chosen_without_copies_across_folds(monkeypatch):
    # Every sentence occurs three times. With copies in several folds, a held-out sentence would
    # also be trained on.
    seen = []

    class Spy(NaiveBayes):
        def __init__(self, sentences, *rest):
            self.trained = set(map(tuple, sentences))
            super().__init__(sentences, *rest)

        def predict(self, sentences):
            seen.append(self.trained & set(map(tuple, sentences)))
            return super().predict(sentences)

    monkeypatch.setattr(naive_bayes, "NaiveBayes", Spy)
    rng = random.Random(0)
    sentences = [[A + rng.randrange(6) for _ in range(4)] for _ in range(30)] * 3
    labels = [sentence[0] % 2 for sentence in sentences]
    assert choose_smoothing(sentences, labels, 2, grid=(0.1, 1.0)) in (0.1, 1.0)
    assert seen and not any(seen)


def test_the_smoothing_chosen_is_right_most_often_over_all_folds():
    rng, grid = random.Random(6), (0.03, 0.3, 3.0)  # with this seed the last fold misleads
    labels = [rng.randrange(2) for _ in range(60)]
    sentences = [[A + rng.randrange(20) + 3 * y for _ in range(5)] for y in labels]
    assert len(set(map(tuple, sentences))) == 60  # no copies: row i is in fold i % 10
    right = dict.fromkeys(grid, 0)
    for i, smoothing in product(range(60), grid):
        kept = [j for j in range(60) if j % 10 != i % 10]
        rows = [sentences[j] for j in kept], [labels[j] for j in kept]
        found = NaiveBayes(*rows, 2, smoothing).predict([sentences[i]])
        right[smoothing] += found[0] == labels[i]
    assert choose_smoothing(sentences, labels, 2, grid) == max(grid, key=right.get) == 3.0


def test_smoothing_of_a_single_sentence_does_not_fail():
    assert choose_smoothing([[A, B]] * 4, [0, 1, 0, 1], 2) > 0


# ---------------------------------------------------------------------------- the script


@pytest.fixture
def text(tmp_path):
    path, line = tmp_path / "tiny.txt", "the {} sat on the {} .\n".format
    others = line("dog", "mat") + line("cat", "rug")
    path.write_text((line("cat", "mat") + line("dog", "rug")) * 9 + others, encoding="utf-8")
    return path


def test_the_numbers_of_a_text_fit_together(text, shell, tmp_path):
    out = tmp_path / "out"
    done = succeed(shell("baselines", data=text, out=out, order=3))
    result = result_of(out)
    # 2 of 20 lines are held out, 7 tokens each. A newline is no token, but it is a byte.
    assert result["tokens/test"] == 14 and result["unknown/test"] == 0
    found = result["perplexity/test"]
    assert found == result["perplexity/test@3-gram"] < result["perplexity/test@1-gram"]
    n_bytes = len("the dog sat on the mat .\nthe cat sat on the rug .\n")
    assert result["bits_per_byte/test"] == pytest.approx(14 * math.log2(found) / n_bytes)
    assert not any(name.startswith("accuracy") for name in result)
    assert result["seconds"] >= 0 and result["command"].startswith("python baselines.py --data ")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["kind"] == "baselines" and config["flags"]["order"] == 3
    assert config["script"] == "baselines.py"
    assert done.out.splitlines()[-1].startswith(f"3-gram perplexity test {found:.1f}; ")


def test_rows_alone_give_accuracies_and_no_perplexity(own_corpus, tmp_path):
    for path in own_corpus.glob("*_LM*"):
        path.unlink()
    done = succeed(call("baselines", data=own_corpus, out=tmp_path / "out"))
    assert not any(name.startswith("perplexity") for name in result_of(tmp_path / "out"))
    assert done.out.splitlines()[-1].startswith("naive Bayes accuracy ")


def test_clean_split_forgets_the_test_rows(tmp_path):
    folder = tmp_path / "leaky"
    folder.mkdir()
    shared = "".join(f"{i % 2}\tword{i} other{i}\n" for i in range(12))
    (folder / "test_CLS.tsv").write_text(shared, encoding="utf-8")
    (folder / "train_CLS.tsv").write_text(
        shared + "0\tsomething else\n1\tanother thing\n1\ta third one\n", encoding="utf-8"
    )
    succeed(call("baselines", data=folder, out=tmp_path / "full"))
    done = succeed(call("baselines", data=folder, split="clean", out=tmp_path / "clean"))
    full, clean = result_of(tmp_path / "full"), result_of(tmp_path / "clean")
    answers = {how: read_predictions(tmp_path / how) for how in ("full", "clean")}
    assert [text for text, *_ in answers["full"]] == [f"word{i} other{i}" for i in range(12)]
    assert all(gold == predicted for _, gold, predicted, *_ in answers["full"])
    assert len({predicted for _, _, predicted, *_ in answers["clean"]}) == 1
    assert full["macro_f1/test"] == 1 and clean["macro_f1/test"] == pytest.approx(1 / 3)
    assert full["accuracy/seen"] == full["accuracy/test"] == 1
    # nothing is known but the more frequent class
    assert clean["accuracy/seen"] == clean["accuracy/test"] == 0.5
    assert "12 of 15 training rows" in done.out


def test_the_majority_class_is_that_of_the_training_rows(tmp_path):
    folder = tmp_path / "unequal"
    folder.mkdir()
    rows = "".join(f"{int(i > 2)}\tword{i} other{i}\n" for i in range(8))  # 3 of 0, 5 of 1
    (folder / "train_CLS.tsv").write_text(rows, encoding="utf-8")
    (folder / "test_CLS.tsv").write_text("0\tnew\n0\tnewer\n0\tother\n1\tword5 other5\n")
    printed = succeed(call("baselines", data=folder, out=tmp_path / "out")).out
    result = result_of(tmp_path / "out")
    shares = {part: result[f"accuracy/{part}@majority"] for part in ("test", "seen", "unseen")}
    assert shares == {"test": 0.25, "seen": 1, "unseen": 0}
    assert ["all", "4", "25.0%"] in [line.split()[:3] for line in printed.splitlines()]


def test_toy_shows_floors(tmp_path):
    printed = succeed(call("baselines", order=2, out=tmp_path / "out")).out
    result = result_of(tmp_path / "out")
    assert result["accuracy/test"] < result["floor/accuracy/test"]
    for name in ("perplexity/ada", "perplexity/bruno", "perplexity/clio"):
        assert result[name] > result[f"floor/{name}"]
    assert printed.count("best possible") == 2 and "out of vocabulary" in printed


@pytest.mark.parametrize("kind, size", [("bpe", 300), ("word", 100)])
def test_floor_of_words_is_not_held_against_other_tokens(kind, size, tmp_path):
    flags = dict(order=1, tokenizer=kind, vocab_size=size)
    succeed(call("baselines", **flags, out=tmp_path / "out"))
    assert not any(name.startswith("floor/perplexity") for name in result_of(tmp_path / "out"))


def test_default_folder_is_named_after_data_and_split(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeed(call("baselines", data=corpus, order=1, split="clean"))
    assert result_of(tmp_path / "out" / "baselines-tiny-clean")


BAD = {
    "--split dirty": "--split",
    "--vocab-size 3": "--vocab-size",
    "--data latin.txt": "latin.txt:2",
    "--data two.tsv": "two.tsv",
    "--data same --split clean": "--split clean",
    "--out latin.txt": "latin.txt",
    "--out same --overwrite": "no run",
    "--text nowhere": "--text nowhere: no such corpus",
    "--data few.txt --text toy": "has too few lines to hold some out",
    "--data rows.tsv --rare-unknown 0.3": "--rare-unknown 0.3: for n-grams, but",
}


@pytest.mark.parametrize("argv, part", BAD.items())
def test_bad_input_costs_one_line(argv, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    Path("two.tsv").write_text("0\tone\n1\ttwo\n", encoding="utf-8")  # too few rows to hold one out
    Path("few.txt").write_text("one\ntwo\nthree\nfour\n", encoding="utf-8")
    lines = (f"{i % 2}\tword {i}\n" for i in range(9))
    Path("rows.tsv").write_text("".join(lines), encoding="utf-8")
    Path("same").mkdir()
    for name in ("train_CLS.tsv", "test_CLS.tsv"):
        Path("same", name).write_text("0\tone thing\n1\tanother thing\n", encoding="utf-8")
    Path("same", "config.json").write_text('{"model_type": "roberta"}')
    with unchanged(tmp_path):
        assert_complains(call("baselines", *argv.split()), part)


def test_speeches(speeches, tmp_path):
    succeed(call("baselines", data=speeches, out=tmp_path / "out"))
    result = result_of(tmp_path / "out")
    assert result["perplexity/obama"] < 245
    assert result["perplexity/hbush"] < 262
    assert result["perplexity/wbush"] < 365
    assert result["accuracy/test"] > 0.90 and result["accuracy/unseen"] > 0.66


def test_rare_words_read_as_unknown_make_unknown_words_likelier(corpus, tmp_path):
    for share in (0, 0.5):
        out = tmp_path / str(share)
        succeed(call("baselines", data=corpus, rare_unknown=share, out=out))
    plain, rare = result_of(tmp_path / "0"), result_of(tmp_path / "0.5")
    assert rare["perplexity/obama"] < plain["perplexity/obama"]
    assert rare["accuracy/test"] == plain["accuracy/test"]


def test_mixing_weight_follows_the_fit_of_the_larger_text(corpus, tmp_path):
    # the held-out lines are among them
    lines = (corpus / "train_LM.txt").read_text(encoding="utf-8").splitlines()
    helpful, foreign = tmp_path / "helpful.txt", tmp_path / "foreign.txt"
    helpful.write_text("\n".join([*lines * 3, "and a last line"]) + "\n", encoding="utf-8")
    other = (f"Quite another text , the {number}th of many\n" for number in range(40))
    foreign.write_text("".join(other), encoding="utf-8")
    results = []
    for path in (helpful, foreign):
        succeed(call("baselines", data=corpus, text=path, out=tmp_path / path.stem))
        results.append(result_of(tmp_path / path.stem))
    helped, other = results
    assert 0 < helped["weight"] < other["weight"] < 1
    assert helped["perplexity/obama"] == other["perplexity/obama"]
    # a useless text costs little
    assert other["perplexity/obama@mixed"] < 1.1 * other["perplexity/obama"]


@pytest.mark.parametrize(
    "left", [["config.json"], ["config.json.partial"], ["config.json", "result.json.partial"]]
)
def test_a_killed_call_is_repeated(left, text, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in left:
        (out / name).write_text('{"kind": "baselines", "flags": {}}', encoding="utf-8")
    succeed(call("baselines", data=text, out=out, order=1))
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "result.json"]
