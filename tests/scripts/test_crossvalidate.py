"""crossvalidate.py: every distinct sentence tested once, and the table is what the runs say."""

import json
import statistics

from helpers import assert_complains, call_main

from studies import crossvalidate


def test_cross_validation_of_two_recipes(corpus, tmp_path, jobs_in_process):
    argv = (
        "--data",
        corpus,
        "--folds",
        2,
        "--recipes",
        "bayes,random",
        "--out",
        tmp_path / "cv",
        "--jobs",
        1,
        "--mlm",
        "--n-embd 16 --n-head 2 --n-ffn 20 --block-size 12 --valid 0.2",
    )
    done = call_main(crossvalidate, crossvalidate.crossvalidate, *argv)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "cv" / "result.json").read_text(encoding="utf-8"))
    runs = [
        json.loads((tmp_path / "cv" / f"bayes-{i}" / "result.json").read_text(encoding="utf-8"))[
            "accuracy/test"
        ]
        for i in (1, 2)
    ]
    assert result["accuracy/bayes"]["values"] == runs and result["accuracy/bayes"][
        "mean"
    ] == statistics.fmean(runs)
    encoder = json.loads(
        (tmp_path / "cv" / "untrained-1" / "config.json").read_text(encoding="utf-8")
    )
    assert encoder["flags"]["split"] == "1/2" and encoder["flags"]["steps"] == 0
    assert (
        crossvalidate.RECIPES["bayes"][0] in done.out
        and (tmp_path / "cv" / "crossvalidate.png").stat().st_size > 5000
    )
    again = call_main(crossvalidate, crossvalidate.crossvalidate, *argv)
    assert again.code == 0 and again.out.count("finished before") == 6
    other = call_main(crossvalidate, crossvalidate.crossvalidate, *argv, "--pos", "nope")
    assert_complains(other, "finished with --pos alibi, not nope", "--out")


def test_an_unknown_recipe_is_named(cli, corpus):
    done = cli("crossvalidate", "--data", corpus, "--recipes", "bayes,magic")
    assert (
        done.code == 2
        and done.err.count("\n") == 1
        and "--recipes" in done.err
        and "magic" in done.err
    )
