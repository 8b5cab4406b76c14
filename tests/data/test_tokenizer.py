"""Tokenizers: word level and byte-level BPE."""

import subprocess
import sys

import pytest
from helpers import ROOT

from data.files import UserError
from data.tokenizer import (
    SPECIAL,
    UNK,
    add_sentinels,
    detokenize,
    encode,
    load_tokenizer,
    token_strings,
    train_tokenizer,
    word_starts,
)

TEXTS = [
    "The ranger doesn't fear the dark .",
    "Freedom , he said , is worth 1,000 ranches !",
    "the dark fears the ranger 's light",
]


def test_word_ids_follow_frequency_then_spelling():
    tokenizer = train_tokenizer("word", ["b a c c", "c b a d"])
    words = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    assert words == [*SPECIAL, "c", "a", "b", "d"]
    small = train_tokenizer("word", ["b a c c", "c b a d"], vocab_size=7)
    assert small.get_vocab_size() == 7 and encode(small, ["a b c d"]) == [[6, UNK, 5, UNK]]


def test_ids_and_held_out_texts_are_the_same_in_every_process(capsys):
    program = (
        "from data.tokenizer import train_tokenizer; from data.corpus import hold_out\n"
        f"texts = {TEXTS!r}\n"
        "for kind in ('word', 'bpe'): print(train_tokenizer(kind, texts, 400).to_str())\n"
        "print(hold_out(' '.join(texts).split(), 0.3, 0))"
    )
    exec(program, {})
    env = {"PYTHONHASHSEED": "7"}  # it decides the order of Python's sets
    told = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=env, text=True)
    assert told == capsys.readouterr().out and len(told) > 1000


def test_byte_level_pieces_lose_nothing():
    tokenizer, text = train_tokenizer("bpe", TEXTS, 300), "Zanzibar’s  café\n— 漢字 🙂"
    (ids,) = encode(tokenizer, [text])
    assert tokenizer.get_vocab_size() == 300 and UNK not in ids
    assert detokenize(tokenizer, ids) == text


def test_word_starts_mark_where_words_of_bpe_pieces_begin():
    # Few merges: most words, and the letter é, are several pieces
    tokenizer = train_tokenizer("bpe", [*TEXTS, *["天\n雨\n— 한국"] * 3], 290)
    starts, text = word_starts(tokenizer), "the rangers doubt, unafraid: café—雨天 한국"
    words, (ids,) = [], encode(tokenizer, [text])
    for i in ids:
        if starts[i] or not words:
            words.append([])
        words[-1].append(i)
    found = [detokenize(tokenizer, word) for word in words]
    words = ["the", " rangers", " doubt", ",", " unafraid", ":", " café", "—", "雨", "天", " 한국"]
    assert found == words


def test_detokenized_words_are_spaced_as_in_english():
    tokenizer = train_tokenizer("word", TEXTS)
    text = "Freedom, he said, doesn't fear the ranger's light, 1,000 ranches!"
    (ids,) = encode(tokenizer, [text])
    assert " ".join(token_strings(tokenizer, ids)) == (  # split as in the Penn Treebank
        "Freedom , he said , does n't fear the ranger 's light , 1,000 ranches !"
    )
    assert detokenize(tokenizer, ids) == text
    for text in "मैच जीता। फिर", "هل جاء؟ نعم، اليوم":
        tokenizer = train_tokenizer("word", [text])
        assert detokenize(tokenizer, encode(tokenizer, [text])[0]) == text


def test_sentinels_stand_behind_a_vocabulary_that_stays():
    lines = ["we will trust the people .", "[S0] is no word"]
    plain, more = train_tokenizer("bpe", lines), train_tokenizer("bpe", lines)
    first = plain.get_vocab_size()
    add_sentinels(more, 3)
    assert more.token_to_id("[S0]") == first and more.get_vocab_size() == first + 3
    assert {token: i for token, i in more.get_vocab().items() if i < first} == plain.get_vocab()
    assert encode(more, lines[:1]) == encode(plain, lines[:1])
    assert token_strings(more, [first, first + 2]) == ["[S0]", "[S2]"]


def test_mistakes_name_the_flag_or_the_file(tmp_path):
    for kind, least in (("word", 6), ("bpe", 261)):
        train_tokenizer(kind, ["a b"], least)
        with pytest.raises(UserError, match=f"--vocab-size 5: a {kind} vocabulary needs .*{least}"):
            train_tokenizer(kind, ["a b"], 5)
    path = tmp_path / "tokenizer.json"
    foreign = train_tokenizer("word", TEXTS).to_str().replace("[BOS]", "<s>")
    for text, message in (("{}", "not a tokenizer file"), (foreign, "does not begin with")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"tokenizer.json: {message}"):
            load_tokenizer(path)
