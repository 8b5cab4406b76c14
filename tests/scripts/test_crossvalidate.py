"""crossvalidate.py: every distinct sentence tested once, and the table is what the runs say."""

import statistics

from helpers import assert_complains, call, result_of, succeed

from lab.predictions import average_predictions
from lab.records import read_record
from studies import crossvalidate

TINY = "--n-embd 16 --n-head 2 --n-ffn 20 --block-size 12"


def test_cross_validation_of_three_recipes(corpus, tmp_path, jobs_in_process):
    out = tmp_path / "cv"
    recipes = "bayes,random,likelihood,bayes"
    argv = ("--data", corpus, "--folds", 2, "--seeds", 2, "--recipes", recipes, "--jobs", 1)
    argv += ("--out", out, "--mlm", f"{TINY} --valid 0.2")
    argv += ("--likelihood", f"{TINY} --steps 2 --class-steps 1")
    argv += ("--likelihood", f"{TINY} --steps 2 --class-steps 1 --tokenizer bpe --vocab-size 270")
    done = succeed(call("crossvalidate", *argv))
    runs = [result_of(out / f"bayes-{i}")["accuracy/test"] for i in (1, 2)]
    bayes = result_of(out)["accuracy/bayes"]
    assert bayes["values"] == runs and bayes["mean"] == statistics.fmean(runs)
    of_seeds = [result_of(out / f"random-2-{seed}")["accuracy/test"] for seed in (0, 1)]
    assert result_of(out)["accuracy/random"]["values"][1] == statistics.fmean(of_seeds)
    assert bayes["averaged"] == bayes["values"]  # it has no seeds
    encoder = read_record(out / "untrained-1-0" / "config.json")["flags"]
    assert encoder["split"] == "1/2" and encoder["steps"] == 0
    decoders = read_record(out / "likelihood-2-1" / "config.json")["flags"]
    assert decoders["split"] == "2/2" and decoders["class_steps"] == 1
    second = read_record(out / "likelihood-2-1-1" / "config.json")["flags"]
    assert second["tokenizer"] == "bpe"
    both = [average_predictions([out / f"likelihood-2-{s}{k}" for k in ("", "-1")]) for s in (0, 1)]
    means = [each.accuracies()["accuracy/test"] for each in both]
    assert result_of(out)["accuracy/likelihood"]["values"][1] == statistics.fmean(means)
    assert crossvalidate.RECIPES["bayes"][0] in done.out and "| seeds averaged" in done.out
    one_seed = succeed(call("crossvalidate", *argv, "--seeds", 1)).out
    assert "fold 2 |" in one_seed and "averaged" not in one_seed and "Last" not in one_seed
    assert (out / "crossvalidate.png").stat().st_size > 5000
    assert succeed(call("crossvalidate", *argv)).out.count("finished before") == 18
    other = call("crossvalidate", *argv, "--pos", "nope")
    assert_complains(other, "finished with --pos alibi, not nope", "--out")
    same = call("crossvalidate", *argv, "--mlm", f"{TINY} --valid=2e-1")
    assert succeed(same).out.count("finished before") == 18
    for change, told in [
        ("--valid 0.2 --no-norm-first", "--norm-first True, not False"),
        ("--valid=0.3", "--valid 0.2, not 0.3"),
        ("--valid abc", "--valid 0.2, not abc"),
        ("", "--valid 0.2, not its default"),
    ]:
        other = call("crossvalidate", *argv, "--mlm", f"{TINY} {change}")
        assert_complains(other, "untrained-1-0: finished with " + told)
