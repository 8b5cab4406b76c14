"""Redraw the pictures of the pages, docs/figures: `make figures`.

    python -m studies.pictures
    python -m studies.pictures --data path/to/speeches --out out/figures

Trains what the pictures show (about twelve CPU minutes; finished runs are not repeated), draws, and
copies the figures. docs/figures/README.md lists the pictures, also those that take hours and that
this script leaves as they are.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from data.files import read_json
from lab.flags import Data, Folder, main
from studies import positions
from studies.sweep import Job, SweepFlags, options, run_all

PAGES = Path(__file__).parent.parent / "docs" / "figures"
DECODERS = ("learned", "sinusoidal", "alibi", "rope")  # on toy
EIGHT_MORE = (
    "shaw",
    "t5",
    "deberta",
    "kerple",
    "fire",
    "cope",
    "forget",
    "pope",
)  # on the speeches
FORMS = ("offset", "symmetric", "one-sided")  # of ALiBi in an encoder, which need no training
SENTENCE = "We will defend the central granary together before the first census."


@dataclass
class Flags(SweepFlags):
    data: Data = "speeches"  # corpus of the assignment
    out: Folder = "out/figures"  # folder of all runs and figures


def redraw(flags):
    out = Path(flags.out).expanduser()
    trainings, drawings, sources = list_jobs(flags, out)
    run_all(out, [trainings, drawings], flags)
    for picture, pattern in sources.items():
        (path,) = out.glob(pattern)
        shutil.copy(path, PAGES / picture)
    positions.write_figures(PAGES, read_json(PAGES / "positions.json")["groups"])
    print(f"{PAGES}: {len(sources) + 2} pictures")


def list_jobs(flags, out):
    """Return the jobs that train, the jobs that draw, and {picture: pattern of the figure in `out`
    that it is a copy of}."""
    trainings = []
    of_positions = {}  # ending of the picture's name: run
    for pos in DECODERS:
        words = options(threads=1, pos=pos, n_head=4)
        trainings.append(Job(f"toy-{pos}", "train_lm", words))
        of_positions[pos] = f"toy-{pos}"
    small = options(data=flags.data, threads=1, **positions.SIZES["laptop"]["lm"])
    for pos in EIGHT_MORE:
        trainings.append(Job(f"speeches-{pos}", "train_lm", small + options(pos=pos)))
        of_positions[pos] = f"speeches-{pos}"
    for form in FORMS:
        words = options(pos="alibi", alibi=form, n_head=4, block_size=8, steps=0)
        trainings.append(Job(f"form-{form}", "train_mlm", words))
        of_positions[form] = f"form-{form}"
    drawings = []
    sources = {}
    for name, run in of_positions.items():
        drawings.append(Job(f"maps-{run}", "attention_maps", [out / run, "--positions"]))
        sources[f"positions-{name}.png"] = f"maps-{run}/positions-*.png"

    words = options(data=flags.data, threads=1, pos="alibi")
    trainings.append(Job("lm-alibi", "train_lm", words))
    text = options(text="This is a test sentence")
    drawings.append(Job("maps-lm-alibi", "attention_maps", [out / "lm-alibi", *text]))
    sources["maps-lm-alibi.png"] = "maps-lm-alibi/map-1-*.png"

    words = options(task="translate", data="toy", pos="rope", batch_size=32, lr=2e-3, dropout=0)
    trainings.append(Job("translate", "beyond.train_seq2seq", words))
    words = [out / "translate", *options(text=SENTENCE, layer=2)]
    drawings.append(Job("maps-translate", "attention_maps", words))
    sources["maps-translate.png"] = "maps-translate/map-1-*.png"
    return trainings, drawings, sources


if __name__ == "__main__":
    main(redraw, Flags)
