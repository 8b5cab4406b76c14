"""SICK (Marelli et al. 2014): pairs of sentences, with an entailment label and a score from 1 to 5
of how related they are. SemEval 2014's task 1; its trial set is the validation set.

Downloaded from a pinned commit into data/sick/; under CC BY-NC-SA 3.0, so not part of this project.
"""

from data.download import download
from data.tables import make_corpus, read_rows

MIRRORS = (
    "https://raw.githubusercontent.com/pchampio/sentence-entailment/"
    "d9f10f1fbd7f17e1c1f316512464fb9efaa89541/",
)
SHA256 = {
    "sick_test/SICK_test.txt": "2b8aa806658d6fc23c6824c83776c2d4fee7556000817b5ec0f982861413b7d0",
    "sick_train/SICK_train.txt": "266cf8047149bd1d68138dd30439f3122bff30069740ac6705bb6197d9f1b48e",
    "sick_trial/SICK_trial.txt": "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
}


def load():
    """Return the Corpus of SICK, downloaded if it is not there."""
    return read_sick(download("sick", SHA256, MIRRORS))


def read_sick(folder):
    """Return the Corpus of SICK_train.txt, SICK_trial.txt and SICK_test.txt, which may stand in
    folders of their own. Raises UserError."""
    paths = {path.stem: path for path in folder.rglob("SICK_*.txt")}
    missing = folder / "SICK_test.txt"  # read_rows names it in its message
    train = read_rows(paths.get("SICK_train", missing))
    test = read_rows(paths.get("SICK_test", missing))
    valid = read_rows(paths.get("SICK_trial", missing))
    return make_corpus(folder, folder.resolve().name, train, test, valid)
