"""Two languages in one encoder: restarted positions, language vectors and train_tlm.py."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from helpers import SHORT, assert_complains, call, result_of, succeed, tiny_model, train

from beyond import train_tlm
from data import batching
from data.corpora.pairs import load_pairs
from data.corpus import hold_out
from data.masked_pairs import VIEWS, masked_test_set
from data.tokenizer import BOS, MASK, encode, train_tokenizer
from lab.load import read_run
from lab.parameters import count_parameters
from lab.records import read_metrics
from model import POSITIONS
from nets.two_languages import make_encoder

WORDS = 8


def bilingual(pos="learned", n_language=2, **more):
    sizes = dict(vocab_size=40, block_size=9, init_std=0.4)
    return tiny_model(make_encoder, pos=pos, n_language=n_language, **sizes, **more)


def sequences(*lengths):
    return [torch.cat([torch.tensor([BOS]), torch.randint(5, 40, (n - 1,))]) for n in lengths]


# ------------------------------------------------------------------------------------------ batches


def test_a_pair_is_one_sequence_with_restarted_positions():
    firsts = [torch.tensor([3, 7, 8]), torch.tensor([3, 9])]
    seconds = [torch.tensor([3, 5]), torch.tensor([3, 6, 7, 8])]
    idx, mask, where = batching.join(firsts, seconds)
    assert idx.tolist() == [[3, 7, 8, 3, 5, 0], [3, 9, 3, 6, 7, 8]]
    assert mask.tolist() == [[True] * 5 + [False], [True] * 6]
    assert where["languages"][mask].tolist() == [0, 0, 0, 1, 1] + [0, 0, 1, 1, 1, 1]
    assert where["positions"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]]
    idx, mask, where = batching.separate(firsts, seconds)
    assert idx[mask].tolist() == [3, 7, 8, 3, 9, 3, 5, 3, 6, 7, 8]
    assert where["languages"].tolist() == [[0] * 4] * 2 + [[1] * 4] * 2
    assert "positions" not in where


# ---------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize(
    "pos, alibi",
    [*((pos, "offset") for pos in POSITIONS), ("alibi", "symmetric"), ("alibi", "one-sided")],
)
def test_the_order_of_the_two_sentences_does_not_matter(pos, window, alibi):
    # Vectors, angles, distances and the window must all follow the restarted positions.
    model, (a, b) = bilingual(pos, window=window, alibi=alibi).body, sequences(4, 5)
    idx, mask, where = batching.join([a], [b])
    h = model(idx, mask, **where)
    turned, _, _ = batching.join([b], [a])
    moved = {name: torch.cat([value[:, 4:], value[:, :4]], dim=1) for name, value in where.items()}
    expected = torch.cat([h[:, 4:], h[:, :4]], dim=1)
    torch.testing.assert_close(model(turned, mask, **moved), expected, atol=1e-5, rtol=1e-4)
    if pos != "nope" or window:  # restarted positions differ from the plain ones
        assert not torch.allclose(model(idx, mask, languages=where["languages"]), h, atol=1e-3)


@pytest.mark.parametrize("pos", POSITIONS)
def test_explicit_default_positions_and_languages_change_nothing(pos):
    model, idx = bilingual(pos).body, torch.stack(sequences(9, 9))
    plain, where = model(idx), {"positions": torch.arange(9).expand(2, 9)}
    explicit = model(idx, languages=torch.zeros_like(idx), **where)
    torch.testing.assert_close(explicit, plain, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(idx, languages=torch.ones_like(idx)), plain, atol=1e-2)


def test_the_embedding_is_the_sum_of_its_parts():
    model = bilingual("learned").body
    idx, _, where = batching.join(sequences(3), sequences(4))
    words, places = model.embedding.weight[idx[0]], model.positions.weight[[0, 1, 2, 0, 1, 2, 3]]
    expected = words + places + model.languages.weight[[0, 0, 0, 1, 1, 1, 1]]
    _, states = model(idx, need_states=True, **where)
    torch.testing.assert_close(states[0][0], expected)


@pytest.mark.parametrize("pos", POSITIONS)
def test_the_padding_of_a_pair_is_invisible(pos):
    # A pair may be longer than the learned table of 9, since each half starts at 0.
    model, firsts, seconds = bilingual(pos).body, sequences(5, 9, 2), sequences(3, 9, 6)
    idx, mask, where = batching.join(firsts, seconds)
    h = model(idx, mask, **where)
    for row, pair in enumerate(zip(firsts, seconds)):
        idx, _, where = batching.join(*([side] for side in pair))
        alone = model(idx, **where)[0]
        torch.testing.assert_close(h[row, mask[row]], alone, atol=1e-5, rtol=1e-4)


def test_padding_far_from_every_word_is_invisible():
    # With this window it sees no word. If it did not see itself, its weights would be NaN.
    model, (a, b) = bilingual("nope", window=2).body, sequences(3, 3)
    idx, mask, where = batching.join([a, sequences(9)[0]], [b, sequences(1)[0]])
    where["positions"][0, 6:] = 8
    alone, _, own = batching.join([a], [b])
    h, _ = model(idx, mask, need_weights=True, **where)
    torch.testing.assert_close(h[0, :6], model(alone, **own)[0])


def test_a_model_without_languages_has_no_weights_for_them():
    one, two = bilingual(n_language=0), bilingual()
    # optimizer states in checkpoints have this order
    order = ["embedding.weight", "positions.weight", "languages.weight"]
    assert list(two.body.state_dict())[:3] == order
    assert two.state_dict().keys() - one.state_dict().keys() == {"body.languages.weight"}
    assert count_parameters(two)["embedding"] - count_parameters(one)["embedding"] == 2 * 16


# ------------------------------------------------------------------------------------- train_tlm.py


@pytest.fixture(scope="module")
def ciphers(tmp_path_factory):
    """Random words and the same words in cipher.

    One language alone gives a perplexity of WORDS at best, and with the other one of 1.
    """
    folder, rng = tmp_path_factory.mktemp("pairs") / "ciphers", random.Random(0)
    folder.mkdir()
    for name, count in (("train", 600), ("val", 40), ("test", 40)):
        rows = [[rng.randrange(WORDS) for _ in range(rng.randint(4, 6))] for _ in range(count)]
        for ending, letter in (("en", "e"), ("xx", "x")):
            lines = (" ".join(f"{letter}{word}" for word in row) + "\n" for row in rows)
            (folder / f"{name}.{ending}").write_text("".join(lines), encoding="utf-8")
    return folder


def test_a_translation_tells_the_word_and_another_does_not(ciphers, tmp_path):
    size = "--pos rope --n-layer 1 --n-embd 32 --n-head 2 --n-ffn 64 --pair-rate 0.7".split()
    learn = "--steps 150 --eval-every 150 --lr 0.01 --warmup 20".split()
    succeed(call("train_tlm", *size, *learn, data=ciphers, out=tmp_path / "run"))
    result = result_of(tmp_path / "run")
    for language in ("en", "xx"):
        alone, paired, mispaired = (result[f"perplexity/test-{language}-{view}"] for view in VIEWS)
        assert paired < 1.5 and 0.8 * WORDS < alone < 1.3 * WORDS and mispaired > alone, result


def rows_without_padding(batches, side):
    """Yield the words of this side, their labels, and the words of the other side of each row."""
    for inputs, mask, labels, where in batches:
        for row, real, label, language in zip(inputs, mask, labels, where["languages"]):
            own, other = real & (language == side), real & (language != side)
            assert (label[~own] == -100).all()
            yield row[own].tolist(), label[own].tolist(), row[other].tolist()


@pytest.mark.parametrize("side", [0, 1])
def test_the_three_views_ask_for_the_same_words(side, ciphers):
    texts, flags = load_pairs(ciphers).tests["test"], train_tlm.Flags()
    tokenizer = train_tokenizer("word", [sentence for pair in texts for sentence in pair])
    sides = [batching.sentences(tokenizer, each, 12)[0] for each in zip(*texts)]
    views = masked_test_set(sides, side, flags, tokenizer.get_vocab_size(), None)
    assert list(views) == ["alone", "paired", "mispaired"]
    alone, paired, mispaired = (
        list(rows_without_padding(batches, side)) for batches in views.values()
    )
    assert len(alone) == len(paired) == len(mispaired) == 40
    translation = {tuple(a.tolist()): b.tolist() for a, b in zip(sides[side], sides[1 - side])}
    for (words, labels, nothing), (*same, beside), (*again, other) in zip(alone, paired, mispaired):
        assert [words, labels] == same == again and nothing == []
        whole = tuple(word if label == -100 else label for word, label in zip(words, labels))
        assert beside == translation[whole] != other
        assert MASK not in other
    assert any(MASK in words for words, *_ in alone)


def test_perplexities_and_accuracies_are_those_by_hand(ciphers, tmp_path):
    train("train_tlm", *"--pos sinusoidal --lr 0.02".split(), data=ciphers, out=tmp_path / "run")
    loaded, flags = read_run(tmp_path / "run"), train_tlm.Flags()
    sides = [
        [torch.tensor([BOS, *ids]) for ids in encode(loaded.tokenizer, side)]
        for side in zip(*load_pairs(ciphers).tests["test"])
    ]
    V = loaded.tokenizer.get_vocab_size()
    for side, language in enumerate(("en", "xx")):
        for view, batches in masked_test_set(sides, side, flags, V, None).items():
            nats = right = count = 0
            for inputs, mask, labels, where in batches:
                for row, (tokens, real, label) in enumerate(zip(inputs, mask, labels)):
                    own = {name: value[row][real][None] for name, value in where.items()}
                    logits = loaded.model(tokens[real][None], **own)[0].detach()
                    nats += F.cross_entropy(logits, label[real], reduction="sum").item()
                    right += (logits.argmax(-1) == label[real]).sum().item()
                    count += (label != -100).sum().item()
            result, name = result_of(tmp_path / "run"), f"test-{language}-{view}"
            assert result[f"perplexity/{name}"] == pytest.approx(math.exp(nats / count), rel=1e-4)
            assert result[f"accuracy/{name}"] == pytest.approx(right / count)
    last = read_metrics(tmp_path / "run")[-1]
    alone, paired = (
        sum(math.log(last[f"perplexity/valid-{language}-{view}"]) / 2 for language in ("en", "xx"))
        for view in ("alone", "paired")
    )
    expected = 0.8 * paired + 0.2 * alone  # as often as each is trained
    assert last["loss/valid"] == pytest.approx(expected, rel=1e-9)


def test_without_val_files_some_pairs_are_held_out(tmp_path):
    lines = [f"word {n}\tmot {n}\n" for n in range(60)]  # each twice, and trained once
    (tmp_path / "mine.tsv").write_text("".join(lines * 2), encoding="utf-8")
    given = dict(data=tmp_path / "mine.tsv", out=tmp_path / "run")
    done = train("train_tlm", valid=0.2, pair_rate=0, **given)
    assert "43 training pairs" in done.out
    assert "22 for validation" in done.out
    assert "perplexity/test-target-paired" in result_of(tmp_path / "run")
    kept, held = hold_out(load_pairs(tmp_path / "mine.tsv").train, 0.2, 0, key=lambda pair: pair[0])
    assert (len(set(kept)), len(held)) == (43, 22)


def test_a_run_starts_with_the_weights_of_an_mlm_run(ciphers, tmp_path):
    # train_mlm.py reads both languages as one text
    train("train_mlm", lr=0.01, data=ciphers, out=tmp_path / "mlm")
    for source, out in (("mlm", "tlm"), ("tlm", "again")):
        given = dict(init_from=tmp_path / source, data=ciphers, out=tmp_path / out)
        succeed(call("train_tlm", **given, steps=0))
    mlm, tlm, again = (read_run(tmp_path / name).model for name in ("mlm", "tlm", "again"))
    idx = torch.tensor([[BOS, 5, 6, 7]])
    assert torch.equal(tlm(idx, languages=torch.ones_like(idx)), mlm(idx))
    assert torch.equal(again(idx), mlm(idx))
    assert not tlm.body.languages.weight.any()
    given = dict(init_from=tmp_path / "tlm", data=ciphers, languages="xx-en")
    turned = call("train_tlm", **given, out=tmp_path / "run")
    told = "its languages are en-xx, not xx-en"
    assert_complains(turned, "--init-from", told, "--languages en-xx")


def test_an_mlm_run_without_the_words_of_a_language(finished, ciphers, tmp_path):
    mlm = finished("train_mlm")
    outcome = call("train_tlm", init_from=mlm, data=ciphers, out=tmp_path / "run")
    told = (f"--init-from {mlm}", "does not know most words of en", f"--vocab-from {ciphers}")
    assert_complains(outcome, *told)
    assert not (tmp_path / "run").exists()


def test_a_run_in_two_languages_is_an_encoder_to_classify_with(corpus, ciphers, tmp_path):
    tlm, argv = tmp_path / "tlm", (*SHORT["train_tlm"], *"--tokenizer bpe --vocab-size 300".split())
    succeed(call("train_tlm", *argv, data=ciphers, out=tlm))
    succeed(call("train_classifier", encoder=tlm, data=corpus, epochs=1, out=tmp_path / "run"))


@pytest.mark.parametrize(
    "test, argv, parts",
    [
        (("four\n", "quatre\n"), (), ["test has a single pair", "give at least two"]),
        (("a b\nc\n", "x\ny\n"), ("--vocab-size", 15), ["no word of en in test", "--vocab-size"]),
    ],
)
def test_a_test_set_that_cannot_be_measured(test, argv, parts, ciphers, tmp_path):
    for name in ("train.en", "train.xx", "val.en", "val.xx"):
        (tmp_path / name).write_text((ciphers / name).read_text())
    (tmp_path / "test.en").write_text(test[0]), (tmp_path / "test.xx").write_text(test[1])
    outcome = call("train_tlm", *SHORT["train_tlm"], *argv, data=tmp_path, out=tmp_path / "run")
    assert_complains(outcome, *parts)
    assert not (tmp_path / "run").exists()
