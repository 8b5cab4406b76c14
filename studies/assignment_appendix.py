"""The last parts of the assignment's report: attention, and an appendix of the long tables."""

from lab import tables
from lab.figures import POSITION_NAMES
from lab.records import read_metrics, read_record
from studies.assignment_runs import COMPARED, join, percent
from studies.report import literal, picture, read_table

MAPS_SHOWN = ("classifier-alibi-0", "lm-alibi-0")  # whose first map is not in the appendix


def attention(runs):
    found = runs.out.glob("maps-*/attention-1-*.html")
    pages = sorted(path.relative_to(runs.out) for path in found)
    links = join([f"[{page.parts[0].removeprefix('maps-')}]({page.as_posix()})" for page in pages])
    maps = attention_maps(runs)
    return [
        "## Attention",
        "What do the heads attend to? Rows are queries, columns are keys, and every row sums to 1. "
        "`attention_maps.py` has checked this for each run, and also that no weight is on padding "
        "or on tokens that a decoder must not see. Attention weights show which vectors a head "
        "mixed. They do not explain an answer.",
        f"To look at single heads in a browser: {links}.",
        *(maps[name][0] for name in MAPS_SHOWN if name in maps),
    ]


def attention_maps(runs):
    """Return {folder of a run: figures of its attention}."""
    maps = {}
    for part, pos in drawn(runs):
        folder = f"maps-{part}-{pos}-0"
        about = read_record(runs.out / folder / "maps.json")
        what = f"Attention of the {model_name(part, pos)}, trained on {runs.data}"
        maps[f"{part}-{pos}-0"] = [
            picture(f"{folder}/{name}", f"{what}: “{literal(about[name]['text'])}”")
            for name in sorted(about)
            if name.endswith(".png")
        ]
    return maps


def appendix(runs):
    maps = attention_maps(runs)
    return [
        "## Appendix",
        *(classifier_appendix(runs) if "classifier" in runs.parts else []),
        *(frozen_appendix(runs) if "frozen" in runs.parts else []),
        *(decoder_appendix(runs) if "lm" in runs.parts else []),
        "### More attention maps",
        *(figure for name in maps for figure in maps[name][1 if name in MAPS_SHOWN else 0 :]),
        "### More position encodings",
        *position_pictures(runs),
    ]


def classifier_appendix(runs):
    return [
        "### The classifiers",
        f"{epochs_table(runs)}\n*Accuracy (%) on all test rows of {runs.data} after each epoch of "
        "the search for the best epoch. Seed 0.*",
        f"{parameters_table(runs, 'classifier')}\n*Parameters of the parts of a classifier.*",
        read_table(runs.out / "compare-classifier" / "compare.md"),
    ]


def frozen_appendix(runs):
    return [
        "### The frozen encoders",
        read_table(runs.out / "compare-frozen" / "compare.md"),
        *(
            picture(
                f"mlm-{pos}-0/curve.png",
                f"Pretraining of the encoder ({POSITION_NAMES[pos]}, seed 0) on {runs.data}: "
                "perplexity of masked words in held-out sentences, and the share that is found.",
            )
            for pos in COMPARED
        ),
    ]


def decoder_appendix(runs):
    steps = [
        f"{steps_table(runs, pos)}\n*{POSITION_NAMES[pos]}, seed 0: perplexity of the training "
        f"text and the test sets of {runs.data} after each evaluation.*"
        for pos in COMPARED
    ]
    return [
        "### The decoders",
        *steps,
        f"{parameters_table(runs, 'lm')}\n*Parameters of the parts of a decoder.*",
        read_table(runs.out / "compare-lm" / "compare.md"),
    ]


def position_pictures(runs):
    """Return figures of the position encodings of seed 0 that part 3 does not show, those that are
    fixed and alike in encoder and decoder only once."""
    pictures, shown = [], {("lm", "alibi")}
    for part, pos in drawn(runs):
        path = f"maps-{part}-{pos}-0/positions-{part}-{pos}-0.png"
        what = pos if pos in ("sinusoidal", "rope") else (part, pos)
        if (runs.out / path).exists() and what not in shown:
            trained = f"after training on {runs.data}" if pos == "learned" else "which is fixed"
            caption = f"Position encoding of the {model_name(part, pos)}, {trained}."
            pictures.append(picture(path, caption))
            shown.add(what)
    return pictures


def drawn(runs):
    """Return (part, pos) of the models that attention_maps.py has drawn."""
    return [(part, pos) for part in runs.parts if part != "frozen" for pos in COMPARED]


def model_name(part, pos):
    """Return "decoder (ALiBi, seed 0)"."""
    return f"{'decoder' if part == 'lm' else 'classifier'} ({POSITION_NAMES[pos]}, seed 0)"


def epochs_table(runs):
    """Return the test accuracy of the classifiers: a row per epoch, a column per encoding."""
    logged = [read_metrics(runs.out / f"classifier-{pos}-0") for pos in COMPARED]
    columns = [[percent([line["accuracy/test"]]) for line in lines] for lines in logged]
    rows = [[str(i + 1), *cells] for i, cells in enumerate(zip(*columns))]
    return tables.markdown(["epoch", *(POSITION_NAMES[pos] for pos in COMPARED)], rows)


def steps_table(runs, pos):
    """Return the perplexities of a decoder: a row per evaluation, a column per set."""
    lines = read_metrics(runs.out / f"lm-{pos}-0")
    names = [name for name in lines[0] if name.startswith("perplexity/")]
    rows = [[str(line["step"]), *(f"{line[name]:,.1f}" for name in names)] for line in lines]
    return tables.markdown(["step", *(name.removeprefix("perplexity/") for name in names)], rows)


def parameters_table(runs, part):
    """Return the numbers of parameters: a row per part of the model, a column per encoding."""
    counts = [runs.values(f"{part}-{pos}", "parameters")[0] for pos in COMPARED]
    rows = [[name, *(f"{count[name]:,}" for count in counts)] for name in counts[0]]
    return tables.markdown(["part", *(POSITION_NAMES[pos] for pos in COMPARED)], rows)
