"""Sentence pairs: Lami can be translated back, and files are read or refused."""

import itertools
import re

import pytest
import torch

import data
from data.corpora import toy_pairs
from data.files import UserError
from data.pairs import join, load_pairs, mask_pairs, separate
from data.tokenizer import BOS, encode, train_tokenizer


def translate_back(sentence):
    """Translate Lami into English by undoing the four rules in reverse order."""
    english = {word[:3]: ours for ours, word in toy_pairs.lexicon().items()}
    words, text = re.findall(r"\w+|[^\w\s]", sentence.lower()), []
    for _, clause in itertools.groupby(words, str.isalpha):
        clause = [english[w[:3]] if w.isalpha() and w != "ke" else w for w in clause]
        if "ke" in clause:
            *clause, last = clause
            clause[clause.index("ke")] = last
        i = len(clause) - 1
        while i > 0:
            if clause[i] in toy_pairs.ADJECTIVES:
                clause[i - 1 : i + 1] = clause[i], clause[i - 1]
                i -= 1
            i -= 1
        text += clause
    text = re.sub(r" (?=[^\w\s])", "", " ".join(text))
    return text[0].upper() + text[1:]


def test_a_translation_determines_its_sentence():
    toy = load_pairs("toy")
    example = "We will repair the old mill before the first spring."
    assert toy_pairs.translate(example) in " ".join(toy_pairs.__doc__.split())
    pairs = toy.train + toy.tests["test"]
    assert [translate_back(second) for _, second in pairs] == [first for first, _ in pairs]
    assert (len(toy.train), len(toy.tests["test"])) == (4401, 600)
    assert data.load("toy-pairs") == toy.corpus()


def write(folder, **texts):
    """Write train.en and train.fr for train=("one\\n", "un\\n"), and so on; return the folder."""
    folder.mkdir(exist_ok=True)
    for name, sides in texts.items():
        for language, text in zip(("en", "fr"), sides):
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


def test_a_folder_of_parallel_files(tmp_path):
    texts = dict(train=("one\n\ntwo \n", "un\n \ndeux\n"), test=("four\n", "quatre\n"))
    folder = write(tmp_path / "mine", **texts, notes=("x\n",))
    assert len(load_pairs(folder, valid=0.5).valid) == 1
    write(folder, val=("three\n", "trois\n"))
    pairs = load_pairs(folder, valid=0.5)  # there are pairs for validation, so none are held out
    assert (pairs.name, pairs.languages) == ("mine", ("en", "fr"))
    assert pairs.valid == [("three", "trois")] and pairs.tests == {"test": [("four", "quatre")]}
    assert data.load(folder).lines == pairs.texts() == ["one", "un", "two", "deux"]
    assert data.load(folder).tests == {"test-en": ["four"], "test-fr": ["quatre"]}
    write(folder, **{"a@b": ("six\n", "six\n")})
    with pytest.raises(UserError, match="mine: no test set may be a@b-en .*; rename its file"):
        data.load(folder)


@pytest.mark.parametrize("train, message", [
    (("one\ntwo\n", "un\n"), "train.fr: 1 lines, but .*train.en has 2"),
    (("one\rtwo\n", "un\n"), "train.en has 2; .* a carriage return inside a line ends it"),
    (("one\ntwo\nthree\n", "un\n \ntrois\n"), "train.fr:2: empty, but"),
    (("one\n",), "mine: holds train.en; give toy, or train.en and train.fr"),
])  # fmt: skip
def test_a_wrong_folder_of_parallel_files_is_refused(train, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load_pairs(write(tmp_path / "mine", train=train))


def test_a_pair_is_one_sequence_with_restarted_positions():
    a, b, c, d = (torch.tensor([BOS, *range(10, 10 + n)]) for n in (3, 1, 2, 4))
    idx, mask, more = join([a, b], [c, d])
    assert idx.shape == (2, 7) and mask.sum(1).tolist() == [7, 7]
    assert more["languages"].tolist() == [[0] * 4 + [1] * 3, [0] * 2 + [1] * 5]
    assert more["at"].tolist() == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4]]
    idx, mask, more = separate([a, b], [c, d])
    assert all(row[real].equal(x) for row, real, x in zip(idx, mask, (a, b, c, d)))
    assert more["languages"][:, 0].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("side", [0, 1])
def test_the_same_words_are_masked_in_each_view_of_a_pair(side):
    texts = [[f"{w}{i} " * (1 + i % n) for i in range(90)] for w, n in (("w", 7), ("m", 5))]
    tokenizer = train_tokenizer("word", sum(texts, []))
    sides = [[torch.tensor([BOS, *ids]) for ids in encode(tokenizer, each)] for each in texts]
    views = mask_pairs(sides, side, tokenizer.get_vocab_size(), None, 0.3, "token")
    found = {"paired": 0, "mispaired": 0}
    for alone, *both in zip(*(views[view] for view in ("alone", *found))):
        for view, batch in zip(found, both):
            assert batch[2][batch[2] != -100].equal(alone[2][alone[2] != -100])
            for inputs, real, labels, where in zip(*batch[:3], batch[3]["languages"]):
                whole = torch.where(labels == -100, inputs, labels)[real]
                mine, other = (whole[where[real] == n] for n in (side, 1 - side))
                assert (labels[real][where[real] != side] == -100).all()  # the other is whole
                pairs = zip(sides[side], sides[1 - side])
                found[view] += any(mine.equal(x) and other.equal(y) for x, y in pairs)
    assert found == {"paired": 90, "mispaired": 0}
