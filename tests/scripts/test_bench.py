"""bench.py, length.py and assignment.py: what they count is what is computed, and they run.
How fast is not tested."""

import importlib.util
import json
import math

import pytest
import torch
from helpers import call_main
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import assignment, length, measure, rivals, speed


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    """A limit that is found in no time, and is a low one."""
    monkeypatch.setitem(measure.MATMUL_SIZES, "cpu", (128,))


SIZE = speed.Size(2, 24, 3, 16, 3, 70, n_ffn=45, activation="relu")
LIBRARIES = [
    pytest.param(
        "transformers",
        marks=pytest.mark.skipif(
            not importlib.util.find_spec("transformers"), reason="transformers is not installed"
        ),
    ),
    pytest.param(
        "x_transformers",
        marks=pytest.mark.skipif(
            not importlib.util.find_spec("x_transformers"), reason="x-transformers is not installed"
        ),
    ),
]


@pytest.mark.parametrize("task", speed.TASKS)
@pytest.mark.parametrize("pos", ["learned", "alibi"])
def test_the_flops_are_those_of_the_matrix_products_that_torch_counts(task, pos):
    model = speed.Poslab(SIZE, task, pos)
    batch = speed.make_batches(SIZE, task)[0]
    B, T = SIZE.batch_size, SIZE.block_size
    flops = measure.forward_flops(model.config, task, B, T, int((batch["targets"] != -100).sum()))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        model(**batch)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as training:
        model(**batch).backward()
    future = (
        0 if task == "masked" else SIZE.n_layer * B * T * (T - 1) // 2 * 4 * SIZE.n_embd
    )  # computed there, and then masked
    assert forward.get_total_flops() == sum(flops.values()) + future
    assert training.get_total_flops() == 3 * forward.get_total_flops()


@pytest.mark.parametrize("task", speed.TASKS)
def test_batches_have_the_predictions_they_are_said_to_have(task):
    first, second, *_ = speed.make_batches(SIZE, task)
    for batch in (first, second):
        hidden = batch["targets"] != -100
        assert int(hidden.sum()) == speed.n_predicted(SIZE, task)
        if task == "masked":
            assert (batch["idx"][hidden] == 2).all() and (batch["idx"][~hidden] >= 5).all()
        else:
            assert (batch["targets"][:, :-1] == batch["idx"][:, 1:]).all()
    assert not torch.equal(first["idx"], second["idx"])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("task", ["masked", "causal"])
def test_every_implementation_does_the_same_work(task, library):
    """The same number of weights, nearly, and the loss of a model that knows nothing: without dropout, of the same
    positions."""
    builders, _ = rivals.rivals(task)
    batch = speed.make_batches(SIZE, task)[0]
    ours = sum(p.numel() for p in speed.Poslab(SIZE, task, "learned").parameters())
    names = [
        name for name in builders if (name == "x-transformers") == (library == "x_transformers")
    ]
    assert names
    for name in names:
        model = builders[name](SIZE).train()
        loss = model(batch["idx"], batch["targets"])
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(ours, rel=0.12), name
        assert (
            loss.item() == pytest.approx(math.log(SIZE.vocab_size), rel=0.15)
            and model(batch["idx"], batch["targets"]).item() == loss.item()
        ), name
        loss.backward()
        assert all(
            p.grad is not None
            for name, p in model.named_parameters()
            if "bias" not in name and "gamma" not in name
        ), name


def test_the_usual_gpt_sees_no_future_and_learns_what_the_targets_are():
    model = rivals.UsualGPT(SIZE)
    batch = speed.make_batches(SIZE, "causal")[0]
    only_first = batch["targets"].clone()
    only_first[:, 4:] = -100
    other = batch["idx"].clone()
    other[:, 4:] = 7
    assert model(batch["idx"], only_first).item() == pytest.approx(
        model(other, only_first).item(), abs=1e-6
    )
    other[:, 2] = 8
    assert model(batch["idx"], only_first).item() != pytest.approx(
        model(other, only_first).item(), abs=1e-6
    )


def test_a_small_table_and_its_json(tmp_path):
    done = call_main(
        speed,
        speed.bench,
        "--sizes",
        "tiny",
        "--positions",
        "alibi",
        "--threads",
        "1",
        "--repeats",
        "2",
        "--seconds",
        "0",
        "--out",
        tmp_path / "speed.json",
    )
    assert done.code == 0, done.err
    got = json.loads((tmp_path / "speed.json").read_text())
    rows = {(row["task"], row["name"]): row for row in got["rows"]}
    for task in speed.TASKS:
        expected = {"poslab learned", "poslab alibi", *rivals.rivals(task)[0]}
        assert {name for of, name in rows if of == task} == expected
        for name in expected:
            row = rows[task, name]
            assert f"  {name} " in done.out and row["threads"] == 1 and row["dtype"] == "float32"
            assert (
                row["loss_first"] == pytest.approx(math.log(50), abs=0.5)
                and row["loss_after_two_steps"] < row["loss_first"]
            )
            for work in ("train", "eval"):
                assert row[work]["tokens_per_second"] > 0 and row[work]["share_of_peak"] > 0
                assert ("ratio" in row[work]) == (name != "poslab learned")
    for library, names in rivals.NEEDED.items():
        assert (f": {library.replace('_', '-')} is not installed" in done.out) == (
            importlib.util.find_spec(library) is None
        ), names


def test_in_a_process_of_its_own_an_implementation_does_the_same(tmp_path, monkeypatch):
    # the libraries take seconds to import
    monkeypatch.setattr(rivals, "rivals", lambda task: ({"usual GPT": rivals.UsualGPT}, []))
    argv = (
        "--sizes",
        "tiny",
        "--tasks",
        "causal",
        "--positions",
        "learned",
        "--threads",
        "1",
        "--repeats",
        "1",
        "--seconds",
        "0",
        "--out",
        tmp_path / "speed.json",
    )
    rows = []
    for more in ((), ("--apart",)):
        done = call_main(speed, speed.bench, *argv, *more)
        assert done.code == 0, done.err
        rows.append(
            {row["name"]: row for row in json.loads((tmp_path / "speed.json").read_text())["rows"]}[
                "usual GPT"
            ]
        )
    assert [rows[0][name] for name in ("parameters", "loss_first", "loss_after_two_steps")] == [
        rows[1][name] for name in ("parameters", "loss_first", "loss_after_two_steps")
    ]
    assert rows[1]["train"]["ratio"] > 0


def test_a_process_that_ends_costs_its_own_line_only(monkeypatch):
    # its process finds none of that name, and fails
    monkeypatch.setattr(rivals, "rivals", lambda task: ({"nobody": None, "usual GPT": None}, []))
    done = call_main(
        speed,
        speed.bench,
        "--apart",
        "--sizes",
        "tiny",
        "--tasks",
        "causal",
        "--positions",
        "learned",
        "--threads",
        "1",
        "--repeats",
        "1",
        "--seconds",
        "0",
    )
    assert (
        done.code == 0
        and "nobody             its process has ended" in done.out
        and "  poslab learned " in done.out
    )
    assert (
        next(line for line in done.out.splitlines() if "usual GPT" in line)
        .split()[2]
        .replace(",", "")
        .isdecimal()
    )


def test_an_evaluation_alone_and_other_number_formats(tmp_path, monkeypatch):
    monkeypatch.setitem(
        speed.SIZES, "tiny", speed.Size(1, 16, 2, 8, 2, 50, tasks=("causal",), train=False)
    )
    done = call_main(
        speed,
        speed.bench,
        "--sizes",
        "tiny",
        "--positions",
        "learned",
        "--no-rivals",
        "--threads",
        "1",
        "--repeats",
        "1",
        "--seconds",
        "0",
        "--dtype",
        "bfloat16",
        "--out",
        tmp_path / "speed.json",
    )
    assert done.code == 0, done.err
    (row,) = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert (
        row["dtype"] == "bfloat16"
        and "train" not in row
        and row["loss_first"] == row["loss_after_two_steps"]
    )


def test_what_does_not_fit_into_memory_is_said_and_the_others_go_on(monkeypatch):
    def build(size):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(
        rivals, "rivals", lambda task: ({"too large": build, "usual GPT": rivals.UsualGPT}, [])
    )
    done = call_main(
        speed,
        speed.bench,
        "--sizes",
        "tiny",
        "--tasks",
        "causal",
        "--positions",
        "learned",
        "--threads",
        "1",
        "--repeats",
        "1",
        "--seconds",
        "0",
    )
    assert (
        done.code == 0
        and "too large          out of memory" in done.out
        and "  usual GPT " in done.out
        and "  poslab learned " in done.out
    )


@pytest.mark.parametrize(
    "script, argv, named",
    [
        (speed, ["--sizes", "huge"], "--sizes huge"),
        (speed, ["--tasks", "masked,other"], "--tasks masked,other"),
        (speed, ["--positions", "t5"], "--positions t5"),
        (speed, ["--threads", "0"], "--threads 0"),
        (speed, ["--threads", "many"], "--threads many"),
        (speed, ["--repeats", "0"], "--repeats"),
        (speed, ["--seconds", "-1"], "--seconds"),
        (speed, ["--out", "nowhere/x.json"], "--out nowhere"),
        (speed, ["--apart", "--device", "cuda"], "--apart"),
        (length, ["--lengths", "0"], "--lengths 0"),
        (length, ["--widths", "100"], "--widths 100"),
        (length, ["--lengths", "64,x"], "--lengths 64,x"),
        (length, ["--positions", "t5"], "--positions t5"),
        (length, ["--repeats", "0"], "--repeats"),
        (length, ["--out", "nowhere/x.png"], "--out nowhere"),
        (assignment, ["--repeats", "0"], "--repeats"),
    ],
)
def test_a_flag_that_cannot_work_costs_one_line(script, argv, named):
    main = length.measure_lengths if script is length else script.bench
    done = call_main(script, main, *argv)
    assert (
        done.code == 2
        and done.err.count("\n") == 1
        and named in done.err
        and "Traceback" not in done.err
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_its_table_is_refused_in_a_line():
    done = call_main(speed, speed.bench, "--device", "cuda")
    assert done.code == 2 and "--device cuda" in done.err and done.err.count("\n") == 1


def test_a_small_figure_over_length_and_width(tmp_path):
    done = call_main(
        length,
        length.measure_lengths,
        "--lengths",
        "8,16",
        "--widths",
        "64",
        "--positions",
        "learned,alibi",
        "--tokens",
        "32",
        "--repeats",
        "1",
        "--out",
        tmp_path / "length.png",
    )
    assert done.code == 0, done.err
    rows = json.loads((tmp_path / "length.json").read_text())["rows"]
    assert [(row["pos"], row["length"]) for row in rows] == [
        ("learned", 8),
        ("alibi", 8),
        ("learned", 16),
        ("alibi", 16),
    ]
    for row in rows:
        assert (
            row["limit_microseconds"] > 0
            and row["microseconds"] > 0
            and 0 < row["attention_flops"] < 1
            and 0 < row["attention_time"] < 1
        )
    assert (tmp_path / "length.png").read_bytes().startswith(b"\x89PNG")
