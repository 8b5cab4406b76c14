"""The assignment's data: sentences of three US presidents, to classify and to model.

Students' public repositories hold the same rows as the course. The files are downloaded from pinned
commits into data/speeches/; the data states no licence, so it is not part of this project.
"""

from data.corpus import Corpus
from data.download import download
from data.files import UserError, read_non_empty_lines
from data.tables import read_rows

SPEAKERS = {"0": "obama", "1": "wbush", "2": "hbush"}  # the assignment's labels
MIRRORS = (
    "https://raw.githubusercontent.com/yasho191/ScratchLLM/"
    "85b6308efcbf4f6ce0481c0120d3f4eedeb9a73f/speechesdataset/",
    "https://raw.githubusercontent.com/RunpengJ/UCSD_CSE256/"
    "8bd597b225b6de931cd6fd7d1f28a15494f80ff8/CSE256_PA2_FA24/PA2_code/speechesdataset/",
)
SHA256 = {
    "test_CLS.tsv": "31277b7d67cff8ad717c9f43c05810c6b78feb67f04472bd7aa20e71eb2e0da8",
    "test_LM_hbush.txt": "a0592374b7cd47a6417a311892a4b8a59f35cbe054cbaf96c06e50e904c8451f",
    "test_LM_obama.txt": "6cb3bb657ae40cab1cb8f3f38f391dbdcc80a9b21b577d5fc1ea4ba86901bed2",
    "test_LM_wbush.txt": "1281773860075b12727f9f581940c028074d05f3efbf99bbfcc9c7c472d4dbd5",
    "train_CLS.tsv": "7dbd7cadc6efe746d0c0a7e5fe81f0ac2431bd2a3b86b51f4cb23f373466c88e",
    "train_LM.txt": "aff1d88fad90db8cedfe8918a9099ffdfe622641a2a8c6e25dac1f7eda199b1a",
}


def load():
    """Return the Corpus of the speeches, downloaded if they are not there."""
    return read_assignment(download("speeches", SHA256, MIRRORS))


def read_assignment(folder):
    """Return the Corpus in a folder of the assignment's form; its rows or its text may be missing.
    Labels 0, 1 and 2 get names if the test sets are the assignment's. Raises UserError."""
    corpus = Corpus(folder.resolve().name)
    text = folder / "train_LM.txt"
    table = folder / "train_CLS.tsv"
    if not (text.exists() or table.exists()):
        raise UserError(f"{folder}: holds neither {text.name} nor {table.name}; try hf:{folder}")
    if text.exists():
        corpus.lines = read_non_empty_lines(text)
        for path in sorted(folder.glob("test_LM_*.txt")):
            corpus.tests[path.stem.removeprefix("test_LM_")] = read_non_empty_lines(path)
        if not corpus.tests:
            raise UserError(f"{folder}: no test_LM_*.txt beside {text.name}; add a test set")
    if table.exists():
        has_speakers = set(corpus.tests) == set(SPEAKERS.values())
        allowed = set(SPEAKERS) if has_speakers else None  # None: any label
        rows = read_rows(table, allowed)
        labels = sorted({row["label"] for row in rows})
        test_rows = read_rows(folder / "test_CLS.tsv", set(labels))
        corpus.rows = [(labels.index(row["label"]), row["text"]) for row in rows]
        corpus.test_rows = [(labels.index(row["label"]), row["text"]) for row in test_rows]
        corpus.classes = labels
        if has_speakers:
            corpus.classes = [SPEAKERS[label] for label in labels]
    return corpus
