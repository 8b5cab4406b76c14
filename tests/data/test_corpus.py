"""Corpora: the forms of files and folders, and how test text is kept apart."""

import shutil
from collections import Counter
from operator import itemgetter

import pytest

import data
from data.corpus import Corpus, copy_key
from data.files import UserError
from data.leaks import find_overlaps, hold_out, remove_test_sentences, split_corpus, words_of
from data.tokenizer import train_tokenizer


def test_a_folder_in_the_assignments_form(corpus, tmp_path):
    got = data.load(corpus)
    assert got.classes == ["0", "1"] and set(got.tests) == {"one", "two"}
    assert (len(got.lines), len(got.rows), len(got.test_rows)) == (60, 40, 15)
    assert got.rows[0][1] == got.lines[0] and got.texts() == got.lines + got.lines[:40]
    assert set(got.texts(got.lines[40:])) == set(got.lines) - set(got.lines[40:])
    folder = shutil.copytree(corpus, tmp_path / "mine")
    for old, new in (("one", "obama"), ("two", "wbush")):
        (folder / f"test_LM_{old}.txt").rename(folder / f"test_LM_{new}.txt")
    shutil.copy(folder / "test_LM_obama.txt", folder / "test_LM_hbush.txt")
    assert data.load(folder).classes == ["obama", "wbush"]  # by the names of the test sets
    with open(folder / "test_CLS.tsv", "a") as file:
        file.write("7\tWho says this?\n")
    with pytest.raises(UserError, match=r"test_CLS.tsv:16: unknown label '7', expected .*0, 1;"):
        data.load(folder)
    (folder / "test_CLS.tsv").unlink()
    with pytest.raises(UserError, match="test_CLS.tsv: cannot be read"):
        data.load(folder)
    shutil.copy(corpus / "test_CLS.tsv", folder)
    for path in folder.glob("test_LM_*"):
        path.unlink()
    with pytest.raises(UserError, match="no test_LM_.*.txt beside train_LM.txt"):
        data.load(folder)
    (folder / "train_LM.txt").unlink()
    assert not data.load(folder).lines and len(data.load(folder).rows) == 40
    with pytest.raises(UserError, match="neither train_LM.txt nor train_CLS.tsv; try hf:"):
        data.load(tmp_path)


def test_names_paths_and_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = [f"line {number}" for number in range(40)]
    (tmp_path / "my.txt").write_text("\n\n".join(lines))
    got = data.load("~/my.txt")
    assert (got.name, got.lines, got.tests) == ("my", lines[:36], {"test": lines[36:]})
    assert [*map(data.name_of, ("toy", "~/my.txt", "a/my.v2"))] == ["toy", "my", "my.v2"]
    for name, text in (("a.docx", "x"), ("one.txt", "one"), ("same.txt", "one\n" * 30)):
        (tmp_path / name).write_text(text)
    for path, message in {
        "": "--vocab-from '': is empty",
        "nowhere": "--vocab-from nowhere: .*or a name: sick, speeches, toy, toy-pairs, wikitext2",
        "cpoy": "--vocab-from cpoy: .*; or to train_lm.py a task: copy, reverse, recall",
        "~/a.docx": "a.docx: no folder, .txt, .tsv or .csv",
        "~/one.txt": "no line of the last tenth is new",
        "~/same.txt": "no line of the last tenth is new",
    }.items():
        with pytest.raises(UserError, match=message):
            data.load(path, "--vocab-from")


def test_the_speeches_are_what_the_documentation_says(speeches):
    got = data.load(speeches)
    assert (len(got.lines), len(got.rows), len(got.test_rows)) == (1553, 2092, 750)
    assert got.classes == ["obama", "wbush", "hbush"] and sum(got.seen()) == 551
    clean = remove_test_sentences(got)
    assert len(clean.rows) == 1537 and not any(clean.seen())
    unseen = [text for (_, text), is_seen in zip(got.test_rows, got.seen()) if not is_seen]
    for key, n_read in (lambda text: " ".join(words_of(text)), 90), (copy_key, 88):
        lines = [f" {key(line)} " for line in got.lines]
        assert sum(any(f" {key(text)} " in line for line in lines) for text in unseen) == n_read
    texts = "".join(f" {' '.join(words_of(text))} /" for text in clean.texts())
    tests = [words_of(text) for _, text in got.test_rows]
    assert not [words for words in tests if len(words) > 4 and f" {' '.join(words)} " in texts]
    assert train_tokenizer("word", got.texts()).get_vocab_size() == 5631


def test_split_words_of_wikitext_are_joined_again(tmp_path):
    for name in ("train", "valid", "test"):
        text = f" \n = {name} = \n a <unk> man @-@ made 3 @.@ 5 of 1 @,@ 000 \n"
        (tmp_path / f"{name}.txt").write_text(text)
    got, line = data.load(tmp_path), "a [UNK] man-made 3.5 of 1,000"
    assert got.lines == ["= train =", line] and got.tests["wiki-valid"] == ["= valid =", line]


def test_hold_out_keeps_copies_together_and_the_order():
    items = [f"text {number % 50}" + (".", " . ")[number % 2] for number in range(200)]
    kept, held = hold_out(items, 0.2, seed=3)
    kept_texts, texts = ({item.strip(" .") for item in part} for part in (kept, held))
    assert len(texts) == 10 and texts.isdisjoint(kept_texts)  # copies may differ in spaces
    assert Counter(kept + held) == Counter(items)
    assert kept == [item for item in items if item in set(kept)]
    assert hold_out(items, 0.2, seed=3) == (kept, held) != hold_out(items, 0.2, seed=4)
    with pytest.raises(UserError, match="--data my.txt: too little text to hold out --valid 0.1"):
        hold_out(["one", "two"], 0.1, name="my.txt")


def test_held_out_lines_that_overlap_training_lines_are_found():
    words = [f"word{i}" for i in range(30)]
    kept = [" ".join(words[:20]), "a short line"]
    seen = f"So {', '.join(words[8:20]).upper()}!"  # 12 words of the first one
    new = " ".join(["so", *words[9:20], "on"])  # 11 words
    assert find_overlaps([seen, new, "a short line", "other"], kept) == [seen]
    assert find_overlaps([seen], []) == find_overlaps([], kept) == []


def test_hold_out_keeps_the_shares_of_the_classes():
    rows = [(0 if i < 900 else i % 7 + 1, f"text {i}") for i in range(1000)]
    text, label = itemgetter(1), itemgetter(0)
    kept, held = hold_out(rows, 0.1, key=text, kind=label)
    counts, all_of = Counter(map(label, held)), Counter(map(label, rows))
    assert len(kept) == 900 and all(abs(counts[i] - all_of[i] / 10) < 1 for i in all_of)
    small = [(i, f"text {i}") for i in range(40)]  # no class alone has enough rows
    assert len(hold_out(small, 0.1, key=text, name="x", kind=label)[1]) == 4


def test_clean_ignores_marks_and_case_and_keeps_short_overlaps():
    rows = [(0, "thank  you"), (1, "good people of the valley")]
    kept = ["thank you very much", "good people of the hills"]
    lines = [*kept, "Thanks , Good people , of  the valley !", "thank you"]
    training = [(0, "thank you "), (1, "kept")]
    valid = [(0, "Thank you!"), (1, "also kept")]
    corpus = Corpus("x", lines, {}, training, rows, ["a", "b"], valid_rows=valid)
    cleaned, seen, note = split_corpus(corpus, "clean")
    assert cleaned.valid_rows == valid[1:]
    assert (cleaned.lines, cleaned.rows, cleaned.test_rows) == (kept, [(1, "kept")], rows)
    assert seen == [True, False] and note.startswith("--split clean: 2 test rows; removed with")
    assert note.endswith(": 1 of 2 training rows and 2 of 4 lines of text")
    assert words_of("की, का!") == ["की", "का"] != words_of("के का")  # words of any script
    assert words_of("E\u0301te\u0301") == words_of("été") and words_of("...") == ["..."]


def test_clean_finds_test_sentences_in_scripts_without_spaces():
    for sentence, around in ("我们今天去公园。", "他说，{}真好"), ("ฉันรักเมืองไทย", "และ{}มาก"):
        lines = [around.format(sentence), around.format(sentence[:4])]
        corpus = Corpus("x", lines, {}, [(0, "kept")], [(1, sentence)], ["a", "b"])
        assert remove_test_sentences(corpus).lines == lines[1:]


def test_cross_validation_tests_every_sentence_exactly_once():
    rows = [(i % 2, f"sentence number {i} of the corpus") for i in range(20)]
    test_rows = [(i % 2, f"test number {i} of all") for i in range(5)] + rows[:2]
    lines = [f"{rows[3][1]} and more", "another line"]
    whole, tested = Corpus("c", lines, {}, rows + rows[:5], test_rows, ["a", "b"]), []
    for i in range(1, 6):
        part, seen, note = split_corpus(whole, f"{i}/5")
        held = {text for _, text in part.test_rows}
        assert len(held) == len(part.test_rows) == 5 and len(part.rows) == 20
        assert not any(seen + part.seen()) and f"--split {i}/5" in note
        assert (rows[3][1] in held) == (len(part.lines) == 1)
        tested += part.test_rows
    assert sorted(tested) == sorted(set(whole.rows + whole.test_rows))
    assert split_corpus(whole, "full") == (whole, [False] * 5 + [True] * 2, "")
    with pytest.raises(UserError, match="--split clean: leaves no rows to train or test on"):
        split_corpus(Corpus("c", lines), "clean")
    for how in ("0/5", "6/5", "1/1", "one"):
        with pytest.raises(UserError, match=f"--split {how}: expected full, clean, or a part"):
            split_corpus(whole, how)
