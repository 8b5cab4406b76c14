"""Tokenizers: word level and byte-level BPE."""

import subprocess
import sys

import pytest
from helpers import ROOT

from data import tokenizer as tk
from data.files import UserError
from data.tokenizer import SPECIAL, UNK, detokenize, encode, train_tokenizer

TEXTS = """The ranger doesn't fear the dark .
Freedom , he said , is worth 1,000 ranches !
the dark fears the ranger 's light""".split("\n")


def test_word_ids_follow_frequency_then_spelling():
    tokenizer = train_tokenizer("word", ["b a c c", "c b a d"])
    assert tk.token_strings(tokenizer, range(9)) == [*SPECIAL, "c", "a", "b", "d"]
    small = train_tokenizer("word", ["b a c c", "c b a d"], vocab_size=7)
    assert small.get_vocab_size() == 7 and encode(small, ["a b c d"]) == [[6, UNK, 5, UNK]]


def test_ids_and_held_out_texts_are_the_same_in_every_process(capsys):
    program = (
        "from data.tokenizer import train_tokenizer; from data.leaks import hold_out\n"
        f"texts = {TEXTS!r}\n"
        "for kind in ('word', 'bpe'): print(train_tokenizer(kind, texts, 400).to_str())\n"
        "print(hold_out(' '.join(texts).split(), 0.3, 0))"
    )
    exec(program, {})
    env = {"PYTHONHASHSEED": "7"}  # it decides the order of Python's sets
    told = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=env, text=True)
    assert told == capsys.readouterr().out and len(told) > 1000


def test_word_starts_mark_where_words_of_bpe_pieces_begin():
    # Few merges: most words, and the letter é, are several pieces
    tokenizer = train_tokenizer("bpe", [*TEXTS, *["天\n雨\n— 한국"] * 3], 290)
    starts, text = tk.word_starts(tokenizer), "the rangers doubt, unafraid: café—雨天 한국 🙂"
    (ids,) = encode(tokenizer, [text])
    begins = [n for n, i in enumerate(ids) if starts[i] or n == 0]
    found = [detokenize(tokenizer, ids[i:j]) for i, j in zip(begins, [*begins[1:], None])]
    assert "|".join(found) == "the| rangers| doubt|,| unafraid|:| café|—|雨|天| 한국| 🙂"
    assert tokenizer.get_vocab_size() == 290 and UNK not in ids


def test_detokenized_words_are_spaced_as_in_english():
    tokenizer = train_tokenizer("word", TEXTS)
    text = "Freedom, he said, doesn't fear the ranger's light, 1,000 ranches!"
    (ids,) = encode(tokenizer, [text])
    split = "Freedom , he said , does n't fear the ranger 's light , 1,000 ranches !"
    assert tk.token_strings(tokenizer, ids) == split.split()  # as in the Penn Treebank
    assert detokenize(tokenizer, ids) == text
    for text in "मैच जीता। फिर", "هل جاء؟ نعم، اليوم":
        tokenizer = train_tokenizer("word", [text])
        assert detokenize(tokenizer, encode(tokenizer, [text])[0]) == text


@pytest.mark.parametrize("text", [
    "L'homme d'une maison, aujourd'hui: qu’il s'arrête!", "Lorsqu'elle y est (ici), jusqu'à 5%?",
    "It's 5 o'clock [sic] {so} for £5, the boys' house...",
    'He said: "no", then ("yes").', "« Oui », dit-il", "I don't, they’ll",
])  # fmt: skip
def test_marks_are_joined_as_in_english_and_french(text):
    tokenizer = train_tokenizer("word", [text])
    (ids,) = encode(tokenizer, [text])
    assert detokenize(tokenizer, ids) == text
    for n in range(len(ids)):  # a text can be continued
        assert text.startswith(detokenize(tokenizer, ids[:n]))


def test_joiners_belong_to_the_word_that_they_are_in():
    words = ["می\u200cخواهم", "क्\u200dष", "x"]
    tokenizer = train_tokenizer("word", [" ".join(words)])
    assert set(tokenizer.get_vocab()) == {*SPECIAL, *words}


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
            tk.load_tokenizer(path)
