"""n-grams and naive Bayes against values worked out by hand and against slower, plainer code."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
from helpers import call, fails, succeed

from data.tokenizer import BOS, SPECIAL, UNK
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
    logs = KneserNey(ids, 13, order).log_probabilities(other)
    plain = [plain_kneser_ney(ids, 13, order, other[i], other[:i]) for i in range(1, len(other))]
    assert logs == pytest.approx(np.log(plain))


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 3, 20, 500])
def test_every_distribution_sums_to_one(order, n):
    ids, V = random_ids(n, 12), 14
    model = KneserNey(ids, V, order)
    half_seen = [13, *ids[-2:]]  # an id the text does not hold, then two it ends with
    contexts = [ids[:1], ids[:3], ids[:-1], ids, half_seen, [13] * 4, [UNK], [], [*ids[-2:], 13]]
    for context in contexts:
        texts = ([BOS, *context, i] for i in range(V))
        p = np.exp([model.log_probabilities(text)[-1] for text in texts])
        assert (p > 0).all() and p.sum() == pytest.approx(1, abs=1e-12)


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
    expected = [[0.0135, 1 / 1024], [0.0225, 1 / 64], [3 / 4, 1 / 4], [3 / 4, 1 / 4]]
    assert scores == pytest.approx(np.array(expected))


def test_smoothing_is_chosen_without_copies_across_folds(monkeypatch):
    """With copies in several folds, a held-out sentence would also be trained on."""
    shared = []

    class Spy(NaiveBayes):
        def __init__(self, sentences, *rest):
            self.trained = set(map(tuple, sentences))
            super().__init__(sentences, *rest)

        def scores(self, sentences):
            shared.append(self.trained & set(map(tuple, sentences)))
            return super().scores(sentences)

    monkeypatch.setattr(ngrams, "NaiveBayes", Spy)
    sentences = [[A + i, B, C + i] for i in range(30)] * 3
    labels = [sentence[0] % 2 for sentence in sentences]
    assert choose_smoothing(sentences, labels, 2, grid=(0.1, 1.0)) in (0.1, 1.0)
    assert len(shared) == 20 and not any(shared)
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
    assert not any(name.startswith("accuracy") for name in result)
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["kind"] == "baselines" and config["flags"]["order"] == 3
    assert f"3-gram perplexity test {found:.1f}; " in done.out


def test_clean_split_forgets_the_test_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "leaky").mkdir()
    shared = "".join(f"{i % 2}\tword{i} other{i}\n" for i in range(12))
    more = "0\tsomething else\n1\tanother thing\n1\ta third one\n"
    (folder / "test_CLS.tsv").write_text(shared, encoding="utf-8")
    (folder / "train_CLS.tsv").write_text(shared + more, encoding="utf-8")
    succeed(call("baselines", data=folder))
    done = succeed(call("baselines", data=folder, split="clean"))
    full, clean = (tmp_path / "out" / name for name in ("baselines-leaky", "baselines-leaky-clean"))
    assert all(gold == predicted for _, gold, predicted, *_ in read_predictions(full))
    assert len({predicted for _, _, predicted, *_ in read_predictions(clean)}) == 1
    assert "12 of 15 training rows" in done.out
    full, clean = result_of(full), result_of(clean)
    assert full["accuracy/test@majority"] == 0.5
    assert full["macro_f1/test"] == 1 and clean["macro_f1/test"] == pytest.approx(1 / 3)
    assert full["accuracy/seen"] == full["accuracy/test"] == 1
    assert clean["accuracy/seen"] == clean["accuracy/test"] == 0.5  # the more frequent class
    assert not any(name.startswith("perplexity") for name in full)


def test_toy_shows_floors_of_words_alone(tmp_path):
    succeed(call("baselines", order=2, out=tmp_path / "word"))
    result = result_of(tmp_path / "word")
    assert result["accuracy/test"] < result["floor/accuracy/test"]
    for name in ("perplexity/ada", "perplexity/bruno", "perplexity/clio"):
        assert result[name] > result[f"floor/{name}"]
    succeed(call("baselines", order=1, tokenizer="bpe", vocab_size=300, out=tmp_path / "bpe"))
    assert not any(name.startswith("floor/perplexity") for name in result_of(tmp_path / "bpe"))


def test_mistakes_cost_one_line_and_lose_nothing(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    succeed(call("baselines", data=corpus, order=1, out=out))
    fails(call("baselines", data=corpus, out=out), "not empty", "--overwrite")
    succeed(call("baselines", data=corpus, order=2, out=out, overwrite=True))
    (out / "config.json").write_text('{"kind": "lm"}')
    fails(call("baselines", data=corpus, out=out, overwrite=True), "not empty")
    assert "perplexity/one@2-gram" in result_of(out)
    (tmp_path / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    fails(call("baselines", data="latin.txt"), "latin.txt:2")
    fails(call("baselines", data=corpus, split="dirty"), "--split dirty")
    fails(call("baselines", data=corpus, order=0), "--order 0")
    fails(call("baselines", data=corpus, vocab_size=3), "--vocab-size")


def test_speeches(speeches, tmp_path):
    succeed(call("baselines", data=speeches, out=tmp_path / "out"))
    result = result_of(tmp_path / "out")
    found = {name: round(result[f"perplexity/{name}"], 1) for name in ("hbush", "obama", "wbush")}
    assert found == {"hbush": 252.0, "obama": 240.8, "wbush": 350.5}
    assert result["accuracy/test"] > 0.90 and result["accuracy/unseen"] > 0.66
