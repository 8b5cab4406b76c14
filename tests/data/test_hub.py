"""--data hf:FOLDER: every form of a data set, its columns, and its errors."""

import pytest
from helpers import call, fails

from data import load, name_of
from data.files import UserError

datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
ROWS = [{"stars": i % 2, "review": f"this is film {i},\nand it is so"} for i in range(40)]
SPLITS = {"train": ROWS[:20], "validation": ROWS[20:28], "test": ROWS[28:]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """folder("csv", SPLITS) -> hf:FOLDER with the rows of each split in a file of that form."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    datasets.disable_progress_bars()

    def make(form, splits, features=None):
        (tmp_path / form).mkdir()
        for split, rows in splits.items():
            rows = datasets.Dataset.from_list(rows, features=features)
            getattr(rows, f"to_{form}")(f"{form}/{split}.{form}")
        return f"hf:{form}"  # also the name of a module of datasets, which must not be taken

    return make


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_forms_of_a_folder(folder, form):
    found = load(folder(form, SPLITS) + ":label=stars")
    assert found.name == name_of(f"hf:{form}:label=stars") == form
    assert found.rows[0] == (0, "this is film 0, and it is so") and found.classes == ["0", "1"]
    sizes = [len(part) for part in (found.rows, found.valid_rows, found.test_rows)]
    assert sizes == [20, 8, 12]


def test_columns_are_found_by_type(folder):
    star = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features(stars=star, review=datasets.Value("string"))
    unlabelled = [row | {"stars": -1} for row in SPLITS["test"]]  # as in GLUE's test sets
    found = load(folder("parquet", SPLITS | {"test": unlabelled}, features))
    assert found.classes == ["bad", "good"] and len(found.test_rows) == 8  # the validation rows
    text = load(folder("json", {"train": [{"review": row["review"]} for row in ROWS]}))
    assert len(text.lines) == 64 and len(text.tests["test"]) == 16 and not text.rows


def test_two_columns_that_fit_are_both_named(folder):
    rows = [{"author": "a", "label": i % 2, "content": "x", "text": f"b {i}"} for i in range(20)]
    found = load(folder("json", {"train": rows}))
    assert found.classes == ["0", "1"] and found.rows[0][1].startswith("b ")
    strings = [{"title": "a", "body": f"b {i}", "stars": i % 2} for i in range(20)]
    name = folder("parquet", {"train": strings})
    with pytest.raises(UserError, match="title and body both fit text; choose one: write .*text"):
        load(name)
    assert load(f"{name}:label=stars,text=body").classes == ["0", "1"]
    for row in rows:
        row["class"] = row.pop("label")
    with pytest.raises(UserError, match="author and class both fit label; choose one"):
        load(folder("csv", {"train": rows}))


def test_pairs_and_scores(folder):
    rows = [{"premise": "a", "hypothesis": f"b {i}", "label": i / 4} for i in range(20)]
    found = load(folder("json", {"train": rows}))
    assert (0.5, "a [EOS] b 2") in found.scored["rows"] + found.scored["test_rows"]
    assert len(found.scored["test_rows"]) == 4
    with pytest.raises(UserError, match="20 labels in 20 rows"):  # several per text
        load(
            folder("parquet", {"train": [{"text": f"a {i}", "labels": [i, 2]} for i in range(20)]})
        )


def test_cells_of_a_csv_are_read_as_typed(folder, capsys):
    stances = ["None", "NA", "against"]
    rows = [{"label": stances[i % 3], "text": "null" if i == 7 else f"b {i}"} for i in range(30)]
    name = folder("csv", {"train": rows, "test": [*rows, {"label": "", "text": "b"}]})
    found = load(name)
    assert found.classes == sorted(stances) and len(found.rows) == len(found.test_rows) == 30
    assert found.rows[7] == (0, "null")
    assert f"{name}: left out 1 rows of test with an empty label or text" in capsys.readouterr().err
    labels = [*"0101010101", ""]
    numbers = datasets.Dataset.from_list([{"label": a, "text": f"b {a}"} for a in labels])
    for split in ("train", "test"):
        numbers.to_csv(f"csv/{split}.csv")
    assert load(f"{name}:label=label").classes == ["0", "1"]


def test_what_cannot_be_read_is_named(folder):
    name = folder("csv", SPLITS)
    fails(call("train_classifier", data=f"{name}:label=star"), "label=star cannot", "stars, review")
    fails(call("train_classifier", data=name), f"--data {name}: no labelled rows")  # but a text
    empty = folder("parquet", {"train": [{"label": "", "text": "a"}]})
    with pytest.raises(UserError, match="no row of train has all of label, text"):
        load(empty)
    folder("json", {})
    with pytest.raises(UserError, match="hf:json: cannot be loaded .*check the name"):
        load("hf:json")
