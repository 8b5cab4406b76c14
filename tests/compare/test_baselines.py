"""n-grams and naive Bayes against values worked out by hand and against slower, plainer code."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
from helpers import call, fails, succeed

from data.tokenizer import BOS, SPECIAL
from lab.predictions import read_predictions
from nets import ngrams
from nets.ngrams import KneserNey, NaiveBayes, choose_smoothing, discounts

A, B, C = 5, 6, 7  # the first ids after the special tokens


def random_ids(n, vocab_size, seed=0):
    """A stream in which few ids are frequent, so that n-grams of all lengths repeat."""
    rng = random.Random(seed)
    return [BOS, *(min(len(SPECIAL) + int(rng.expovariate(0.7)), vocab_size - 1) for _ in range(n))]


def test_discounts_by_hand():
    # n1 = 4, n2 = 2, n3 = 1, n4 = 1: Y = 4 / (4 + 2*2) = 0.5
    # D1 = 1 - 2 * 0.5 * 2/4 = 0.5;  D2 = 2 - 3 * 0.5 * 1/2 = 1.25;  D3+ = 3 - 4 * 0.5 * 1/1 = 1
    counts = np.array([1, 1, 1, 1, 2, 2, 3, 4, 9])
    assert discounts(counts) == pytest.approx([0, 0.5, 1.25, 1])
    # n1 = 0, so Y = 0 and D2 would take everything
    assert discounts(np.array([2, 2, 2, 3])) == pytest.approx([0, 0.5, 1, 1.5])


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
        kept = (n - D[min(n, 3)]) / total if total else 0
        rest = sum(D[min(m, 3)] for m in followers.values()) / total if total else 1
        chain.append((kept, rest))
        counts, history = Counter(gram[1:] for gram in counts), history[1:]
    p = 1 / vocab_size
    for kept, rest in reversed(chain):
        p = kept + rest * p
    return p


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_n_grams_agree_with_the_plain_definition(order):
    ids, other = random_ids(150, 12), random_ids(40, 13, seed=1)
    model = KneserNey(ids, 13, order)
    plain = [plain_kneser_ney(ids, 13, order, other[i], other[:i]) for i in range(1, len(other))]
    assert model.log_probabilities(other) == pytest.approx(np.log(plain))
    for context in ids[:1], ids[:3], ids, [BOS, 12, *ids[-2:]], [BOS, *ids[-2:], 12]:  # 12: unseen
        p = np.exp([model.log_probabilities([*context, i])[-1] for i in range(13)])
        assert (p > 0).all() and p.sum() == pytest.approx(1, abs=1e-12)


def test_naive_bayes_by_hand():
    # Class 0, "a b", "a", "b": features a 2, b 2, ab 1. Class 1, "b c": b 1, c 1, bc 1.
    # With smoothing 1 and the five features P(f|0) = (n + 1)/10 and P(f|1) = (n + 1)/8.
    # "a b X", X unknown, has the known features a, b, ab:
    #   class 0: 3/4 * 3/10 * 3/10 * 2/10 = 0.0135;  class 1: 1/4 * 1/8 * 2/8 * 1/8 = 1/1024
    # "c b" has b and c, its pair is unknown:
    #   class 0: 3/4 * 3/10 * 1/10 = 0.0225;  class 1: 1/4 * 2/8 * 2/8 = 1/64
    model = NaiveBayes([[A, B], [A], [B], [B, C]], [0, 0, 0, 1], n_class=2, smoothing=1)
    scores = np.exp(model.scores([[A, B, 9], [C, B], [9, 9], []]))
    expected = [[0.0135, 1 / 1024], [0.0225, 1 / 64], [3 / 4, 1 / 4], [3 / 4, 1 / 4]]
    assert scores == pytest.approx(np.array(expected))


def test_smoothing_is_chosen_without_copies_across_folds(monkeypatch):
    """With copies in several folds, a held-out sentence would also be trained on."""
    folds = []

    class Spy(NaiveBayes):
        def __init__(self, sentences, *rest):
            super().__init__(sentences, *rest)
            folds.append([set(map(tuple, sentences))])

        def scores(self, sentences):
            folds[-1].append(set(map(tuple, sentences)))
            return super().scores(sentences)

    monkeypatch.setattr(ngrams, "NaiveBayes", Spy)
    sentences, labels = [[A + i, B, C + i] for i in range(30)] * 3, [i % 2 for i in range(30)] * 3
    assert choose_smoothing(sentences, labels, 2, grid=(0.1, 1.0)) in (0.1, 1.0)
    assert len(folds) == 20 and not any(trained & held for trained, held in folds)
    assert choose_smoothing([[A, B]] * 4, [0, 1, 0, 1], 2) > 0  # a single sentence


def result_of(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def test_the_numbers_of_a_text_fit_together(tmp_path):
    text, line = tmp_path / "tiny.txt", "the {} sat on the {} .\n".format
    others = line("dog", "mat") + line("cat", "rug")
    text.write_text((line("cat", "mat") + line("dog", "rug")) * 9 + others, encoding="utf-8")
    done = succeed(call("baselines", data=text, out=tmp_path / "out", order=3))
    result = result_of(tmp_path / "out")
    # 2 of 20 lines are held out, 7 tokens each. A newline is no token, but it is a byte.
    assert result["tokens/test"] == 14 and result["unknown/test"] == 0
    found = result["perplexity/test"]
    assert found == result["perplexity/test@3-gram"] < result["perplexity/test@1-gram"]
    n_bytes = len("the dog sat on the mat .\nthe cat sat on the rug .\n")
    assert result["bits_per_byte/test"] == pytest.approx(14 * math.log2(found) / n_bytes)
    assert f"3-gram {found:.1f} (14 tokens, 0.0% unknown)" in done.out


def test_clean_split_forgets_the_test_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "leaky").mkdir()
    shared = "".join(f"{i % 2}\tword{i} other{i}\n" for i in range(12))
    more = "0\tsomething else\n1\tanother thing\n1\ta third one\n"
    (folder / "test_CLS.tsv").write_text(shared, encoding="utf-8")
    (folder / "train_CLS.tsv").write_text(shared + more, encoding="utf-8")
    succeed(call("baselines", data=folder))
    done = succeed(call("baselines", data=folder, split="clean"))
    assert "12 of 15 training rows" in done.out
    full, clean = (tmp_path / "out" / name for name in ("baselines-leaky", "baselines-leaky-clean"))
    assert len(set(read_predictions(clean)[3])) == 1
    full, clean = result_of(full), result_of(clean)
    assert full["macro_f1/test"] == full["accuracy/seen"] == full["accuracy/test"] == 1
    assert clean["macro_f1/test"] == pytest.approx(1 / 3)
    assert clean["accuracy/test"] == full["accuracy/test@majority"] == 0.5


def test_mistakes_cost_one_line_and_lose_nothing(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    succeed(call("baselines", data=corpus, order=1, out=out))
    succeed(call("baselines", data=corpus, order=2, out=out))
    (out / "config.json").write_text('{"kind": "lm"}')
    fails(call("baselines", data=corpus, out=out), "holds another run")
    assert "perplexity/one@2-gram" in result_of(out)
    fails(call("baselines", data=corpus, order=0), "--order 0")


def test_floors_of_toy_are_below_what_counting_achieves(tmp_path):
    succeed(call("baselines", order=2, out=tmp_path / "word"))
    result = result_of(tmp_path / "word")
    assert result["accuracy/test"] < result["floor/accuracy/test"]
    assert result["perplexity/ada"] > result["floor/perplexity/ada"]


def test_speeches(speeches, tmp_path):
    succeed(call("baselines", data=speeches, out=tmp_path / "out"))
    result = result_of(tmp_path / "out")
    found = {name: round(result[f"perplexity/{name}"], 1) for name in ("hbush", "obama", "wbush")}
    assert found == {"hbush": 252.0, "obama": 240.8, "wbush": 350.5}
    assert result["accuracy/test"] > 0.90 and result["accuracy/unseen"] > 0.66
