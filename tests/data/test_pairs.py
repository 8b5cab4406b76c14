"""Sentence pairs: Lami can be translated back, and files are read or refused."""

import itertools
import re
from types import SimpleNamespace

import pytest

import data
from data.corpora import lami
from data.corpora.pairs import load_pairs
from data.files import DataError

TOY = load_pairs("toy")


# ---------------------------------------------------------------------------- the invented language


def translate_back(sentence):
    """Translate Lami into English by undoing the four rules in reverse order."""
    english = {word[:3]: word_in_english for word_in_english, word in lami.lexicon().items()}
    words = re.findall(r"\w+|[^\w\s]", sentence.lower())
    text = []
    for _, clause in itertools.groupby(words, str.isalpha):
        clause = [
            word if word == "ke" or not word.isalpha() else english[word[:3]] for word in clause
        ]
        if "ke" in clause:
            *clause, last = clause
            clause[clause.index("ke")] = last
        i = len(clause) - 1
        while i > 0:
            if clause[i] in lami.ADJECTIVES:
                clause[i - 1 : i + 1] = clause[i], clause[i - 1]
                i -= 1
            i -= 1
        text += clause
    text = re.sub(r" (?=[^\w\s])", "", " ".join(text))
    return text[0].upper() + text[1:]


def test_a_translation_determines_its_sentence():
    pairs = TOY.train + TOY.tests["test"]
    assert [translate_back(second) for _, second in pairs] == [first for first, _ in pairs]


def test_the_rules_on_a_sentence_taken_apart():
    we, repair, the, mill, old, before, first, spring, will = (
        lami.lexicon()[word] for word in "we repair the mill old before first spring will".split()
    )
    ke = "ke"  # in the place of `will`
    # `the` and `old` end as `mill` does, the second `the` as `first`.
    expected = (
        f"{we} {ke} {repair} {the[:3] + mill[-1]} {mill} {old[:3] + mill[-1]} "
        f"{before} {the[:3] + first[-1]} {first} {spring} {will}."
    )
    got = lami.translate("We will repair the old mill before the first spring.")
    assert got == expected[0].upper() + expected[1:]
    assert got in " ".join(lami.__doc__.split())


def test_languages_share_no_word_and_words_share_no_stem():
    stems = [word[:3] for word in lami.lexicon().values()]
    assert len(set(stems)) == len(stems) == 493
    english, other = (
        {word.lower() for pair in TOY.train for word in re.findall(r"\w+", pair[side])}
        for side in (0, 1)
    )
    assert not english & other


# ---------------------------------------------------------------------------- readers


def write(folder, languages=("en", "fr"), **texts):
    """Write train.en and train.fr for train=("one\\n", "un\\n"), and so on; return the folder."""
    folder.mkdir(exist_ok=True)
    for name, sides in texts.items():
        for language, text in zip(languages, sides):
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


def test_a_folder_of_parallel_files(tmp_path):
    texts = dict(train=("one\n\ntwo \n", "un\n \ndeux\n"), val=("three\n", "trois\n"))
    folder = write(tmp_path / "mine", **texts, test=("four\n", "quatre\n"), notes=("x\n",))
    # the training text in another version is no test set
    write(folder, ("tok.en", "tok.fr"), train=("one\ntwo\n", "one\ntwo\n"))
    pairs = load_pairs(folder)
    given = SimpleNamespace(data=folder, valid=0.3, given={"valid"})
    with pytest.raises(DataError, match="--valid 0.3: .* has pairs for validation; leave"):
        pairs.with_valid(given)
    assert pairs.name == "mine"
    assert pairs.languages == ("en", "fr")
    assert pairs.train == [("one", "un"), ("two", "deux")]
    assert pairs.valid == [("three", "trois")]
    assert pairs.tests == {"test": [("four", "quatre")]}
    assert pairs.texts() == ["one", "un", "two", "deux"]
    turned = load_pairs(folder, "fr-en")
    assert turned.languages == ("fr", "en") and turned.train == [("un", "one"), ("deux", "two")]
    with pytest.raises(DataError, match="train.de: no such file"):
        load_pairs(folder, "en-de")
    write(folder, dev=("five\n", "cinq\n"))
    assert load_pairs(folder).valid == [("three", "trois"), ("five", "cinq")]
    write(folder, **{"a@b": ("six\n", "six\n")})
    with pytest.raises(DataError, match="a@b.en: the name of a set must not contain @"):
        load_pairs(folder)
    write(folder, ("de",), train=("eins\n\nzwei\n",))
    assert load_pairs(folder, "de-en").train == [("eins", "one"), ("zwei", "two")]
    told = "train in de, en, fr; choose two, for example --languages de-en"
    with pytest.raises(DataError, match=told):
        load_pairs(folder)


def test_a_table_of_pairs_holds_out_a_tenth_of_its_sources(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("".join(f"word {n % 50}\tmot {n}\n" for n in range(100)), encoding="utf-8")
    pairs = load_pairs(path, "english-french")
    assert pairs.languages == ("english", "french")
    assert len(pairs.train) == 90
    assert len(pairs.tests["test"]) == 10
    assert not {first for first, _ in pairs.train} & {first for first, _ in pairs.tests["test"]}
    assert load_pairs(path).languages == ("source", "target")


def test_toy_can_be_reversed():
    turned = load_pairs("toy", "lami-english")
    assert turned.languages == ("lami", "english")
    assert turned.train[5] == TOY.train[5][::-1]
    assert len(TOY.train) == 4401
    assert len(TOY.tests["test"]) == 600


def test_pairs_as_plain_text_in_both_languages(tmp_path):
    assert data.load("toy-pairs").texts() == TOY.texts()
    assert data.load("toy-pairs").tests.keys() == {"test-english", "test-lami"}
    texts = dict(train=("one\n", "un\n"), test=("four\n", "quatre\n"))
    corpus = data.load(write(tmp_path / "mine", **texts))
    assert corpus.lines == ["one", "un"]
    assert corpus.tests == {"test-en": ["four"], "test-fr": ["quatre"]}


# ---------------------------------------------------------------------------- mistakes


ONE, TWO = ("one\n", "un\n"), ("one\n\nthree\n", "un\ndeux\ntrois\n")


@pytest.mark.parametrize(
    "texts, message",
    [
        ({"train": ("one\ntwo\n", "un\n")}, "train.fr: 1 lines, but .*train.en has 2"),
        ({"train": TWO}, "train.en:2: empty, but train.fr has"),
        ({"train": ("one\ntwo\nthree\n", "un\n \ntrois\n")}, "train.fr:2: empty, but train.en"),
        ({"train": ("one\n",)}, "only train.en; a folder of pairs has"),
        ({"test": ONE}, "no train file"),
        ({"train": ("one\n", "")}, "train.fr: the file is empty"),
        ({"train": ONE, "test": ("two\n", "a\nb\n")}, "test.fr: 2 lines, but .*test.en has 1"),
    ],
)
def test_a_wrong_folder_of_parallel_files_is_refused(texts, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load_pairs(write(tmp_path / "mine", **texts))


@pytest.mark.parametrize(
    "text, message",
    [
        ("one\tun\ntwo deux\n", ":2: no tab; each line must be a sentence, a tab, and its trans"),
        ("one\tun\n\n", "too few"),
        ("one\tun\ttwo\n", ":1: more than one tab"),
        ("one\tun\n\tdeux\n", ":2: no sentence before the tab"),
        ("one\t \n", ":1: no sentence after the tab"),
        ("", "the file is empty"),
    ],
)
def test_a_wrong_table_of_pairs_is_refused(text, message, tmp_path):
    (tmp_path / "mine.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=f"mine.tsv.*{message}"):
        load_pairs(tmp_path / "mine.tsv")


@pytest.mark.parametrize(
    "name, languages, message",
    [
        ("nowhere", "", "no such pairs, folder or file"),
        ("nowhere.tsv", "", "nowhere.tsv: no such file"),
        ("mine.txt", "", "rename or convert"),
        ("toy", "en-fr", "toy has english-lami"),
        ("toy", "english", "joined by a hyphen"),
        ("toy", "english-", "joined by a hyphen"),
        ("toy", "lami-lami", "two different names"),
    ],
)
def test_unknown_pairs_and_languages_are_refused(name, languages, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("one\n")
    with pytest.raises(DataError, match=message):
        load_pairs(name, languages)
