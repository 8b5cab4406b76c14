"""Reading files, corpora, tokenizers and batches. Wrong files: scripts/test_bad_input.py."""

from collections import Counter

import pytest
import torch
from helpers import SAID, output_of, sentence
from tokenizers import Tokenizer, models

import data
from data import batching
from data.corpus import Corpus, hold_out, words_of
from data.files import DataError, read_lines
from data.tokenizer import (
    BOS,
    PAD,
    SPECIAL,
    UNK,
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


# ---------------------------------------------------------------------------- files


def test_lines_are_read_without_line_ends_mark_and_empty_end(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\n  two – é\n\n\n".encode())
    assert read_lines(tmp_path / "a.txt") == ["one", "", "  two – é"]


# ---------------------------------------------------------------------------- corpora


def test_a_folder_in_the_assignments_form(corpus):
    got = data.load(corpus)
    assert got.classes == ["obama", "wbush", "hbush"] and set(got.tests) == set(SAID)
    assert len(got.rows) == 60 and len(got.test_rows) == 15 and len(got.lines) == 61
    assert got.rows[1] == (1, sentence("wbush", 0))
    assert got.tests["hbush"][-1] == "Zanzibar is unheard of by hbush ."


def test_either_part_of_the_folder_may_be_missing(own_corpus):
    for name in ("train_LM.txt", *(f"test_LM_{speaker}.txt" for speaker in SAID)):
        (own_corpus / name).unlink()
    got = data.load(own_corpus)
    # Without the test sets, the labels have no names.
    assert not got.lines and got.classes == ["0", "1", "2"] and len(got.rows) == 60


def test_a_corpus_is_named_after_its_file_or_folder(tmp_path):
    (tmp_path / "speeches.v2").mkdir()
    names = {"toy": "toy", tmp_path / "my.txt": "my", tmp_path / "speeches.v2": "speeches.v2"}
    assert [data.name_of(str(path)) for path in names] == list(names.values())


def test_the_end_of_a_text_file_is_its_test_set(tmp_path):
    lines = [f"line {number}" for number in range(40)]
    (tmp_path / "mine.txt").write_text("\n\n".join(lines), encoding="utf-8")
    got = data.load(tmp_path / "mine.txt")
    assert got.name == "mine" and got.lines == lines[:36] and got.tests == {"test": lines[36:]}


def test_a_table_is_split_with_all_copies_of_a_text_on_one_side(tmp_path):
    rows = [(label, sentence("obama", number)) for number in range(30) for label in SAID]
    lines = "".join(f"{label}\t{text}\n" for label, text in rows)
    (tmp_path / "mine.tsv").write_text(lines, encoding="utf-8")
    got = data.load(tmp_path / "mine.tsv")
    assert got.classes == sorted(SAID) and len(got.test_rows) == 18  # 6 of 30 texts
    assert not {text for _, text in got.rows} & {text for _, text in got.test_rows}
    assert not any(got.seen())
    both = [(got.classes[label], text) for label, text in got.rows + got.test_rows]
    assert Counter(both) == Counter(rows)


def test_the_speeches_are_what_the_documentation_says(speeches):
    got = data.load(speeches)
    assert len(got.rows) == 2092
    assert len(got.test_rows) == 750
    assert sum(got.seen()) == 551
    assert len(got.lines) == 1553
    clean = got.clean()
    assert len(clean.rows) == 1537 and not any(clean.seen())
    texts = "".join(f" {' '.join(words_of(text))} /" for text in clean.texts())
    tests = [words_of(text) for _, text in got.test_rows]
    assert not [words for words in tests if len(words) > 4 and f" {' '.join(words)} " in texts]
    tokenizer = train_tokenizer("word", got.texts())
    assert tokenizer.get_vocab_size() == 5631
    assert {
        name: len(batching.stream(tokenizer, lines)) - 1 for name, lines in got.tests.items()
    } == {"obama": 5523, "hbush": 4779, "wbush": 4802}


def test_pydocs_are_reproducible_and_complete():
    got = data.load("pydocs")
    assert got == data.load("pydocs")
    assert len(got.lines) > 200 and got.tests
    assert not set(got.lines) & {line for lines in got.tests.values() for line in lines}


def test_hold_out_keeps_copies_together_and_the_order():
    # Copies that differ in white space
    items = [f"text {number % 50}" + " " * (number % 2) for number in range(200)]
    kept, held = hold_out(items, 0.2, seed=3)
    assert not {text.strip() for text in kept} & {text.strip() for text in held}
    assert len({text.strip() for text in held}) == 10 and Counter(kept + held) == Counter(items)
    assert kept == [item for item in items if item in set(kept)]
    assert hold_out(items, 0.2, seed=3) == (kept, held)
    assert hold_out(items, 0.2, seed=4) != (kept, held)


def test_clean_ignores_marks_and_case_and_keeps_short_overlaps():
    rows = [(0, "thank  you"), (1, "good people of the valley")]
    kept = ["thank you very much", "good people of the hills"]
    lines = [*kept, "Thanks , Good people , of  the valley !", "thank you"]
    corpus = Corpus("x", lines, {}, [(0, "thank you "), (1, "kept")], rows, ["a", "b"])
    cleaned, seen, note = corpus.split("clean")
    assert (cleaned.lines, cleaned.rows, cleaned.test_rows) == (kept, [(1, "kept")], rows)
    assert seen == [True, False]
    removed = "1 of 2 training rows and 2 of 4 lines of text with their sentences are removed"
    assert note == f"--split clean: 2 test rows; {removed}"


def test_words_of_any_script_are_told_apart():
    assert words_of("की, का!") == ["की", "का"] != words_of("के का")
    assert words_of("E\u0301te\u0301") == words_of("été") and words_of("...") == ["..."]


def test_cross_validation_tests_every_sentence_exactly_once():
    rows = [(i % 2, f"sentence number {i} of the corpus") for i in range(20)]
    test_rows = [(i % 2, f"test number {i} of all") for i in range(5)] + rows[:2]
    lines = [f"{rows[3][1]} and more", "another line"]
    whole = Corpus("c", lines, {}, rows + rows[:5], test_rows, ["a", "b"])
    tested = []
    for i in range(1, 6):
        part, seen, words = whole.split(f"{i}/5")
        held = {text for _, text in part.test_rows}
        assert len(held) == len(part.test_rows) == 5
        assert len(part.rows) == 20
        assert not any(seen)
        assert f"--split {i}/5" in words
        assert not held & {text for _, text in part.rows}
        assert (rows[3][1] in held) == (len(part.lines) == 1)
        tested += part.test_rows
    assert sorted(tested) == sorted(set(whole.rows + whole.test_rows))
    assert whole.split("full") == (whole, [False] * 5 + [True] * 2, "")


@pytest.mark.parametrize("how", ["0/5", "6/5", "1/1", "one", "1/", "-1/5"])
def test_an_invalid_split_is_refused(how):
    with pytest.raises(DataError, match=f"--split {how}"):
        Corpus("c", rows=[(0, "a")], test_rows=[(0, "b")]).split(how)


def test_split_words_of_wikitext_are_joined_again(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(
            f" \n = {name} = \n a <unk> man @-@ made 3 @.@ 5 of 1 @,@ 000 \n", encoding="utf-8"
        )
    corpus = data.load(tmp_path)
    assert corpus.lines == ["= train =", "a [UNK] man-made 3.5 of 1,000"]
    assert corpus.tests == {
        "wiki-valid": ["= valid =", corpus.lines[1]],
        "wiki-test": ["= test =", corpus.lines[1]],
    }
    tokenizer = train_tokenizer("word", corpus.lines)
    (ids,) = encode(tokenizer, corpus.lines[1:])
    assert [tokenizer.id_to_token(i) for i in ids] == "a [UNK] man-made 3.5 of 1,000".split()
    (tmp_path / "valid.txt").unlink()
    with pytest.raises(DataError, match="valid.txt: no such file"):
        data.load(tmp_path)


# ---------------------------------------------------------------------------- tokenizers


def test_words_are_split_as_in_the_penn_treebank():
    tokenizer = train_tokenizer("word", TEXTS)
    (ids,) = encode(tokenizer, ["The ranger doesn't fear 1,000 ranger's."])
    assert token_strings(tokenizer, ids) == "The ranger does n't fear 1,000 ranger 's .".split()


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(ValueError, match="'char'"):  # not taken for BPE
        train_tokenizer("char", ["We choose hope."])


def test_a_piece_of_a_letter_is_shown_as_its_bytes():
    tokenizer = train_tokenizer("bpe", ["es war war war"], 262)
    (ids,) = encode(tokenizer, ["war für\nalle"])
    shown = ["w", "ar", "␣", "f", r"\xc3", r"\xbc", "r", "⏎", "a", "l", "l", "e"]
    assert token_strings(tokenizer, ids) == shown
    assert detokenize(tokenizer, ids) == "war für\nalle"
    letters = Tokenizer(models.BPE({"é": 0, "\ufffd": 1}, []))  # not byte-level, so é is no byte
    assert token_strings(letters, [0, 1]) == ["é", "\ufffd"]


def test_word_ids_follow_frequency_then_spelling():
    tokenizer = train_tokenizer("word", ["b a c c", "c b a d"])
    words = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    assert words == [*SPECIAL, "c", "a", "b", "d"]
    small = train_tokenizer("word", ["b a c c", "c b a d"], vocab_size=7)
    assert small.get_vocab_size() == 7 and encode(small, ["a b c d"]) == [[6, UNK, 5, UNK]]


def test_ids_and_held_out_texts_are_the_same_in_every_process(capsys):
    # The hash seed decides the order of Python's sets.
    program = (
        "from data.tokenizer import train_tokenizer; from data.corpus import hold_out\n"
        f"texts = {TEXTS!r}\n"
        "for kind in ('word', 'bpe'): print(train_tokenizer(kind, texts, 400).to_str())\n"
        "print(hold_out(' '.join(texts).split(), 0.3, 0))"
    )
    exec(program, {})
    told = output_of(program)
    assert told == capsys.readouterr().out and len(told) > 1000


def test_the_vocabulary_holds_no_word_of_a_test_set(finished):
    tokenizer = load_tokenizer(finished("train_lm") / "tokenizer.json")
    assert tokenizer.token_to_id("freedom") and tokenizer.token_to_id("Zanzibar") is None
    assert encode(tokenizer, ["Zanzibar"]) == [[UNK]]


def test_words_of_combined_characters_are_known():
    tokenizer = train_tokenizer("word", ["Ko\u0308ln ist Köln"])  # ö of two characters, and of one
    assert encode(tokenizer, ["Ko\u0308ln Köln"]) == [[tokenizer.token_to_id("Köln")] * 2]


def test_byte_level_pieces_lose_nothing():
    tokenizer, text = train_tokenizer("bpe", TEXTS, 300), "Zanzibar’s  café\n— 漢字 🙂"
    (ids,) = encode(tokenizer, [text])
    assert tokenizer.get_vocab_size() == 300
    assert UNK not in ids
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
    (ids,) = encode(tokenizer, ["Freedom , he said , is worth the ranger 's light !"])
    assert detokenize(tokenizer, ids) == "Freedom, he said, is worth the ranger's light!"
    for text in "मैच जीता। फिर", "هل جاء؟ نعم، اليوم":
        tokenizer = train_tokenizer("word", [text])
        assert detokenize(tokenizer, encode(tokenizer, [text])[0]) == text


# ---------------------------------------------------------------------------- streams and blocks


def test_anchored_blocks_begin_with_bos_and_predict_the_same():
    ids = torch.arange(5, 40)
    for stride in (0, 3):
        plain, targets = batching.consecutive_blocks(ids, 8, stride)
        inputs, same = batching.consecutive_blocks(ids, 8, stride, anchor=True)
        assert torch.equal(targets, same) and torch.equal(inputs[:, 1:], plain[:, 1:])
        assert (inputs[:, 0] == BOS).all() and (plain[1:, 0] != BOS).all()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20, 40, 41])
@pytest.mark.parametrize("stride", [0, 1, 3, 8])  # 0: blocks do not overlap
def test_consecutive_blocks_predict_each_token_once(count, stride):
    ids = torch.arange(100, 101 + count)
    inputs, targets = batching.consecutive_blocks(ids, 8, stride)
    wanted = targets != -100
    assert sorted(targets[wanted].tolist()) == ids[1:].tolist()
    assert torch.equal(inputs[wanted] + 1, targets[wanted])  # shifted exactly once
    places = wanted.nonzero()[:, 1][targets[wanted] > 108]  # all targets after the first block
    assert (places >= 8 - (stride or 8)).all()
    assert all(row[row != PAD].diff().eq(1).all() for row in inputs)
    if not stride:
        assert (inputs[~wanted] == PAD).all()
        assert inputs.shape == targets.shape == (-(-count // 8), 8)


def test_a_generator_depends_on_each_of_its_numbers():
    asked = (0, 5), (0, 5), (0, 6), (1, 5)
    same, again, *others = (batching.generator(*numbers).initial_seed() for numbers in asked)
    assert same == again and len({same, *others}) == 3


def test_targets_of_random_blocks_are_shifted_exactly_once():
    ids = torch.arange(1000, 1030)
    x, y = batching.random_blocks(ids, 8, 500, batching.generator(0))
    assert torch.equal(x + 1, y) and torch.equal(x[:, 1:], y[:, :-1])
    assert set(x[:, 0].tolist()) == set(range(1000, 1022))  # every start that fits
    assert torch.equal(x, batching.random_blocks(ids, 8, 500, batching.generator(0))[0])


# ---------------------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    "split, expected",
    [
        (False, ["a b c", "a b c", "a b c", ""]),
        (True, ["a b c", "a b c", "d", "a b c", "d e f", "g", ""]),
    ],
)
def test_long_sentences_are_cut_or_split_and_counted(split, expected):
    tokenizer = train_tokenizer("word", ["a b c d e f g"])
    texts = ["a b c", "a b c d", "a b c d e f g", ""]
    found, long = batching.sentences(tokenizer, texts, block_size=4, split=split)
    assert [detokenize(tokenizer, s[1:]) for s in found] == expected and long == 2
    assert all(s[0] == BOS and len(s) <= 4 for s in found)


def test_length_batches_have_similar_lengths_in_random_order():
    lengths = torch.randint(1, 60, (320,))
    one, two = (
        torch.stack(batching.length_batches(lengths, 16, batching.generator(0, "epoch", epoch)))
        for epoch in (1, 2)
    )
    spread = (lengths[one].amax(1) - lengths[one].amin(1)).float().mean()
    assert spread < 8 and not torch.equal(one, two)
    # Other neighbours, not just another order
    assert {frozenset(b.tolist()) for b in one} != {frozenset(b.tolist()) for b in two}
    again = torch.stack(batching.length_batches(lengths, 16, batching.generator(0, "epoch", 1)))
    assert torch.equal(one, again)
