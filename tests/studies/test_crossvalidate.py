"""crossvalidate.py: every distinct sentence is tested once, and the table is what the runs say."""

import json
import statistics

from helpers import SIZE, call, fails

from lab.predictions import average_predictions
from studies import crossvalidate

TINY = " ".join(SIZE)


def test_three_recipes_with_two_seeds(corpus, tmp_path, jobs_here, capsys):
    def read(name):
        return json.loads((tmp_path / name).read_text("utf-8"))

    started = jobs_here({})
    decoders = f"{TINY} --steps 2 --class-steps 1"
    flags = crossvalidate.Flags(
        data=str(corpus),
        folds=2,
        seeds=2,
        recipes="bayes,random,likelihood",
        mlm=f"{TINY} --valid 0.2",
        likelihood=(decoders, f"{decoders} --tokenizer bpe --vocab-size 270"),
        jobs=1,
        out=str(tmp_path),
    )
    crossvalidate.crossvalidate(flags)
    assert len(started) == 4 + 2 + 4 + 8  # encoders, naive Bayes, their classifiers, decoders
    result = read("result.json")
    assert result["sentences"] == sum(read(f"bayes-{i}/result.json")["rows/test"] for i in (1, 2))
    bayes = [read(f"bayes-{i}/result.json")["accuracy/test"] for i in (1, 2)]
    assert result["accuracy"]["bayes"]["values"] == result["accuracy"]["bayes"]["averaged"] == bayes
    of_seeds = [read(f"random-2-{seed}/result.json")["accuracy/test"] for seed in (0, 1)]
    assert result["accuracy"]["random"]["values"][1] == statistics.fmean(of_seeds)
    assert len(result["accuracy"]["random"]["p"]) == 2
    encoder = read("untrained-1-0/config.json")["flags"]
    assert encoder["split"] == "1/2" and encoder["steps"] == 0 and encoder["valid"] == 0.2
    both = [
        average_predictions([tmp_path / f"likelihood-2-{s}{k}" for k in ("", "-1")]) for s in (0, 1)
    ]
    means = [each.accuracies()["accuracy/test"] for each in both]
    assert result["accuracy"]["likelihood"]["values"][1] == statistics.fmean(means)
    assert crossvalidate.RECIPES["bayes"][0] in capsys.readouterr().out


def test_invalid_flags_are_named(corpus):
    fails(call("studies.crossvalidate", recipes="x", data=corpus), "--recipes x", "bayes")
    fails(call("studies.crossvalidate", folds=1000, data=corpus), "--folds 1000: must be 2 to")
