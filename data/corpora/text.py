"""A plain text file as a corpus: a sentence or paragraph per line."""

from data.corpus import Corpus, normalize
from data.files import DataError, read_non_empty_lines


def load(path):
    """Return the Corpus of one file; the new lines of its last tenth become the test set.

    Raises DataError as `read_non_empty_lines` does, for a single line, and if no held-out line is
    new.
    """
    lines = read_non_empty_lines(path)
    cut = len(lines) - max(1, len(lines) // 10)
    if cut < 1:
        raise DataError(
            f"{path}: a single line cannot be split into training and test text; "
            "break it into lines"
        )
    training = {normalize(line) for line in lines[:cut]}
    test = [line for line in lines[cut:] if normalize(line) not in training]
    if not test:
        raise DataError(
            f"{path}: every line of the last tenth also appears earlier, so there is no test text; "
            "give a text that repeats itself less"
        )
    return Corpus(path.stem, lines[:cut], {"test": test})
