"""WikiText (Merity et al. 2017): tokenised Wikipedia articles in train.txt, valid.txt and test.txt.

Words that its tokeniser split are joined again. WikiText-2 is downloaded from a pinned commit of
PyTorch's examples into data/wikitext2/. Its text is Wikipedia's, under CC BY-SA.
"""

from data.corpus import Corpus
from data.download import download
from data.files import read_non_empty_lines

MIRRORS = (
    "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/"
    "word_language_model/data/wikitext-2/",
)
SHA256 = {
    "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    "train.txt": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
}
REPAIRS = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk>", "[UNK]"))


def load():
    """Return the Corpus of WikiText-2, downloaded if it is not there."""
    return read_wikitext(download("wikitext2", SHA256, MIRRORS))


def read_wikitext(folder):
    """Return the Corpus of train.txt, with valid.txt and test.txt as test sets."""
    sets = {}
    for name in ("train", "valid", "test"):
        text = "\n".join(read_non_empty_lines(folder / f"{name}.txt", as_is=True))
        for old, new in REPAIRS:
            text = text.replace(old, new)
        sets[f"wiki-{name}"] = [line.strip() for line in text.split("\n")]
    return Corpus(folder.resolve().name, sets.pop("wiki-train"), sets)
