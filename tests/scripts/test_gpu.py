"""The scripts on a GPU: the numbers of the CPU, and runs that are stopped and resumed."""

import json
import signal
import subprocess
import time

import pytest
from helpers import ROOT, SHORT, TRAINING, call, open_store, start, start_two, succeed

from lab.records import read_metrics

pytestmark = pytest.mark.gpu
COST = ("seconds", "tokens", "memory", "time")  # of these numbers no agreement is expected
LENGTH = {
    "train_classifier": "--epochs 15 --head-dropout 0",
    "train_generative": "--steps 100 --class-steps 100",
}
LONG = "--steps 200 --eval-every 20"


def words(name, inputs, out, *more, device="cuda"):
    """The flags of a training in float32, without dropout: a GPU draws other random numbers."""
    short = [*inputs(name), *SHORT[name], "--dropout", "0", *LENGTH.get(name, LONG).split()]
    return [*short, "--device", device, "--dtype", "float32", "--out", out, *more]


def train(name, inputs, out, *more, device="cuda"):
    """Train in this process; return the lines of metrics.jsonl."""
    succeed(call(name, *words(name, inputs, out, *more, device=device)))
    return read_metrics(out)


def assert_close(found, expected):
    """Assert that two curves have the same numbers, up to rounding that has added up."""
    assert len(found) == len(expected) > 3
    for line, other in zip(found, expected):
        assert line.keys() == other.keys()
        known = [key for key in line if not key.startswith(COST)]
        assert [line[key] for key in known] == [
            pytest.approx(other[key], rel=0.01, abs=0.02) for key in known
        ]


@pytest.mark.parametrize("name", TRAINING)
def test_curves_are_those_of_the_cpu(name, inputs, tmp_path):
    expected = train(name, inputs, tmp_path / "cpu", device="cpu")
    assert_close(train(name, inputs, tmp_path / "gpu"), expected)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_resumes_with_the_same_curve(stop, inputs, tmp_path):
    out, flags = tmp_path / "stopped", ("--steps", "2000", "--dropout", "0.1")
    expected = train("train_lm", inputs, tmp_path / "whole", *flags)
    process = start("train_lm", *words("train_lm", inputs, out, *flags), stderr=subprocess.PIPE)
    while process.poll() is None and len(read_metrics(out)) < 4:
        time.sleep(0.01)
    process.send_signal(stop)
    process.communicate()
    assert process.returncode in (143, -signal.SIGKILL)
    succeed(call("train_lm", "--resume", out=out))
    assert_close(read_metrics(out), expected)


def test_two_processes_have_the_curve_of_one(inputs, tmp_path):
    expected = train("train_lm", inputs, tmp_path / "one")
    flags = words("train_lm", inputs, tmp_path / "two")
    processes = start_two(tmp_path, ROOT / "train_lm.py", *flags, port=open_store())
    assert [process.wait(300) for process in processes] == [0, 0]
    assert_close(read_metrics(tmp_path / "two"), expected)


@pytest.mark.parametrize(
    "name, model, how",
    [
        ("train_lm", "--pos learned", "--compile"),
        ("train_lm", "--pos learned", "--dtype bfloat16"),
        ("train_lm", "--pos alibi --n-embd 32 --n-head 2 --block-size 256", "--compile"),
        ("train_mlm", "--pos alibi", "--compile --dtype bfloat16"),
    ],
)
def test_compiled_and_in_bfloat16_a_model_learns_as_well(name, model, how, inputs, tmp_path):
    model, how = model.split(), how.split()
    expected = train(name, inputs, tmp_path / "plain", *model)[-1]["loss/train"]
    last = train(name, inputs, tmp_path / "other", *model, *how)[-1]["loss/train"]
    assert last == pytest.approx(expected, abs=0.1)


def test_the_step_that_a_cuda_graph_replays_is_that_of_the_script(tmp_path):
    how = "--sizes tiny --tasks causal --positions learned --repeats 1 --seconds 0".split()
    more = ("--no-rivals", "--device", "cuda", "--graph", "--window", "4")
    succeed(call("speed", *how, *more, out=tmp_path / "speed.json"))
    window, graph, plain = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert graph["name"] == "poslab learned, CUDA graph" and window["train"]["ratio"] > 0
    for name in ("loss_first", "loss_after_two_steps"):
        assert graph[name] == pytest.approx(plain[name], rel=1e-3)


def test_attention_and_samples_are_those_of_the_cpu(finished, tmp_path):
    run = finished("train_lm")
    drawn = call("attention_maps", run, "--positions", text="hope", device="cuda", out=tmp_path)
    assert "ok" in succeed(drawn).out
    written = {
        succeed(call("sample", run, text="hope and", temperature=0, device=device)).out
        for device in ("cpu", "cuda")
    }
    assert len(written) == 1
