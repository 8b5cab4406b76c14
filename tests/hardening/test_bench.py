"""bench/: the counted FLOPs are those computed, rivals do the work they claim, the scripts run.

How fast anything is, is not tested.
"""

import importlib.util
import json
import math
import re

import pytest
import torch
from helpers import assert_complains, call, succeed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import contestants, measure, per_head, rivals, work
from model import score_bias

SIZE = work.Size(2, 24, 3, 16, 3, 70, n_ffn=45, activation="relu")
QUICK = ("--sizes", "tiny", "--threads", "1", "--repeats", "1", "--seconds", "0")
CAUSAL = (*QUICK, "--tasks", "causal", "--positions", "learned")


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    """Measure the rate of small matrix products, which takes no time."""
    monkeypatch.setitem(measure.MATMUL_SIZES, "cpu", (128,))


@pytest.fixture
def only(monkeypatch):
    """only({name: builder}): let these be all rivals. The libraries take seconds to import."""
    return lambda builders: monkeypatch.setattr(rivals, "rivals", lambda task: (builders, []))


def table(*argv):
    """Run bench.speed. Return what it prints."""
    return succeed(call("speed", *argv)).out


def rows_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


# ---------------------------------------------------------------------------- the work


@pytest.mark.parametrize("task", work.TASKS)
@pytest.mark.parametrize("pos", ["learned", "alibi"])
def test_flops_are_those_that_torch_counts(task, pos):
    model = contestants.Poslab(SIZE, task, pos)
    batch = work.make_batches(SIZE, task)[0]
    B, T = SIZE.batch_size, SIZE.block_size
    flops = measure.forward_flops(model.config, task, B, T, int((batch["targets"] != -100).sum()))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        model(**batch)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as training:
        model(**batch).backward()
    # Pairs that this kernel computes and then masks
    future = 0 if task == "masked" else SIZE.n_layer * B * T * (T - 1) // 2 * 4 * SIZE.n_embd
    assert forward.get_total_flops() == sum(flops.values()) + future
    assert training.get_total_flops() == 3 * forward.get_total_flops()


@pytest.mark.parametrize("window", [1, 3, 8, 20])
@pytest.mark.parametrize("task", work.TASKS)
def test_a_window_counts_only_the_pairs_that_are_visible(task, window):
    config = contestants.Poslab(SIZE, task, "learned", window).config
    bias = (score_bias(8, "learned", 3, variant, window) for variant in ("offset", "causal"))
    both, causal = (one.isfinite().sum().item() for one in bias)
    seen = {"masked": both, "causal": causal, "seq2seq": both + causal + 8 * 8}[task]
    flops = measure.forward_flops(config, task, 1, 8, 8)["attention"]
    assert flops == SIZE.n_layer * seen * 4 * SIZE.n_embd


@pytest.mark.parametrize("task", work.TASKS)
def test_batches_have_the_announced_targets(task):
    first, second, *_ = work.make_batches(SIZE, task)
    for batch in (first, second):
        hidden = batch["targets"] != -100
        assert int(hidden.sum()) == work.n_predicted(SIZE, task)
        if task == "masked":
            assert (batch["idx"][hidden] == 2).all() and (batch["idx"][~hidden] >= 5).all()
        else:
            assert (batch["targets"][:, :-1] == batch["idx"][:, 1:]).all()
    assert not torch.equal(first["idx"], second["idx"])


# ---------------------------------------------------------------------------- the rivals


@pytest.mark.parametrize("library", rivals.LIBRARIES)
@pytest.mark.parametrize("task", ["masked", "causal"])
def test_rivals_have_the_same_size_and_starting_loss(task, library):
    pytest.importorskip(library)
    builders, _ = rivals.rivals(task)
    batch = work.make_batches(SIZE, task)[0]
    ours = sum(p.numel() for p in contestants.Poslab(SIZE, task, "learned").parameters())
    is_x = library == "x_transformers"
    names = [name for name in builders if (name == "x-transformers") == is_x]
    assert names
    for name in names:
        model = builders[name](SIZE).train()
        loss = model(**batch)
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(ours, rel=0.12), name
        assert loss.item() == pytest.approx(math.log(SIZE.vocab_size), rel=0.15), name
        assert model(**batch).item() == loss.item(), f"{name}: dropout"
        loss.backward()
        for weight, parameter in model.named_parameters():
            if "bias" not in weight and "gamma" not in weight:
                assert parameter.grad is not None, (name, weight)


def test_rivals_compute_logits_for_the_tokens_they_name():
    pytest.importorskip("transformers")
    batch = work.make_batches(SIZE, "masked")[0]
    masked = int((batch["targets"] != -100).sum())
    builders = rivals.rivals("masked")[0]
    losses = {}
    for name in ("ModernBERT sdpa", "ModernBERT sparse", "RoBERTa sdpa"):
        torch.manual_seed(0)
        model, shapes = builders[name](SIZE), []
        head = model.model.get_output_embeddings()
        head.register_forward_hook(lambda *args, shapes=shapes: shapes.append(args[2].shape))
        losses[name] = model(**batch).item()
        n = masked if model.logits == "masked" else batch["idx"].numel()
        assert [shape[:-1].numel() for shape in shapes] == [n], name
        assert (model.logits == "masked") == ("sparse" in name)
    assert losses["ModernBERT sparse"] == pytest.approx(losses["ModernBERT sdpa"], rel=1e-5)


def test_the_usual_gpt_is_causal():
    model = rivals.UsualGPT(SIZE)
    batch = work.make_batches(SIZE, "causal")[0]
    targets, other = batch["targets"].clone(), batch["idx"].clone()
    targets[:, 4:] = -100
    loss = model(batch["idx"], targets).item()
    other[:, 4:] = 7
    assert model(other, targets).item() == pytest.approx(loss, abs=1e-6)
    other[:, 2] = 8
    assert model(other, targets).item() != pytest.approx(loss, abs=1e-6)


# ---------------------------------------------------------------------------- bench.speed


def test_a_small_table_and_its_json(tmp_path):
    more = ("--positions", "alibi", "--repeats", "2", "--out", tmp_path / "speed.json")
    out = table(*QUICK, *more)
    rows = {(row["task"], row["name"]): row for row in rows_of(tmp_path / "speed.json")}
    for task in work.TASKS:
        expected = {"poslab learned", "poslab alibi", *rivals.rivals(task)[0]}
        assert {name for of, name in rows if of == task} == expected
        for name in expected:
            row = rows[task, name]
            assert f"  {name} " in out
            assert (row["threads"], row["dtype"]) == (1, "float32")
            sparse = task == "masked" and ("poslab" in name or "sparse" in name)
            assert row["logits"] == ("masked" if sparse else "all")
            assert row["loss_first"] == pytest.approx(math.log(50), abs=0.5)
            assert row["loss_after_two_steps"] < row["loss_first"]
            for phase in ("train", "eval"):
                assert row[phase]["tokens_per_second"] > 0 and row[phase]["share_of_peak"] > 0
                assert ("ratio" in row[phase]) == (name != "poslab learned")
    for library in rivals.LIBRARIES:
        missing = importlib.util.find_spec(library) is None
        assert (f": {library.replace('_', '-')} is not installed" in out) == missing


def test_rivals_in_processes_of_their_own_do_the_same_and_may_end(tmp_path, only):
    got, found = [], {"usual GPT": rivals.UsualGPT}
    # the process of nobody finds no such builder
    for builders, more in ((found, ()), ({"nobody": None} | found, ("--apart",))):
        only(builders)
        out = table(*CAUSAL, "--out", tmp_path / "speed.json", *more)
        got.append(next(r for r in rows_of(tmp_path / "speed.json") if r["name"] == "usual GPT"))
    for name in ("parameters", "logits", "loss_first", "loss_after_two_steps"):
        assert got[0][name] == got[1][name]
    assert got[1]["train"]["ratio"] > 0
    assert re.search("nobody +its process has ended", out) and "  poslab learned " in out


def test_out_of_memory_costs_only_its_own_line(only):
    def too_large(size):
        raise torch.OutOfMemoryError("no room")

    only({"too large": too_large, "usual GPT": rivals.UsualGPT})
    out = table(*CAUSAL)
    assert re.search("too large +out of memory", out)
    assert "  usual GPT " in out and "  poslab learned " in out
    only({"too large": too_large})
    assert "  poslab learned " in table(*CAUSAL)  # also where nobody is left to take turns with


def flops_of(row):
    """FLOPs per token of the evaluation, in units of 1,000."""
    found = row["eval"]
    return found["share_of_peak"] * row["matmul_gflops"] * found["cpu_seconds_per_million_tokens"]


def test_evaluation_alone_in_bfloat16(tmp_path, monkeypatch):
    tiny = work.Size(1, 16, 2, 8, 2, 50, tasks=("causal",), train=False)
    monkeypatch.setitem(work.SIZES, "tiny", tiny)
    more = ("--no-rivals", "--dtype", "bfloat16", "--window", "3")
    table(*CAUSAL, *more, "--out", tmp_path / "speed.json")
    window, plain = rows_of(tmp_path / "speed.json")
    assert window["name"] == "poslab learned, window 3"
    assert window["loss_first"] != plain["loss_first"]
    assert flops_of(window) < flops_of(plain)
    for row in (window, plain):
        assert row["dtype"] == "bfloat16" and "train" not in row
        assert row["loss_first"] == row["loss_after_two_steps"]


# ---------------------------------------------------------------------------- bench.length, flags


def test_a_small_figure_over_length_and_width(tmp_path):
    small = ("--lengths", "8,16", "--widths", "64", "--positions", "learned,alibi")
    more = ("--tokens", "32", "--repeats", "1", "--out", tmp_path / "length.png")
    succeed(call("length", *small, *more))
    rows = rows_of(tmp_path / "length.json")
    expected = [(pos, T) for T in (8, 16) for pos in ("learned", "alibi")]
    assert [(row["pos"], row["length"]) for row in rows] == expected
    for row in rows:
        assert row["limit_microseconds"] > 0 and row["microseconds"] > 0
        assert 0 < row["attention_flops"] < 1 and 0 < row["attention_time"] < 1
    assert (tmp_path / "length.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "command",
    [
        *("speed --sizes huge", "speed --positions t5", "speed --threads 0"),
        *("speed --threads 1,9999999999999999", "speed --tasks causal --sizes roberta-base"),
        *("speed --out no/x.json", "speed --apart --device cuda", "speed --graph --device cpu"),
        *("length --lengths 0", "length --widths 100", "length --out no/x.png"),
        *("length --out x.txt", "bench.assignment --out no/x.json"),
        "bench.assignment --data toy-pairs",
    ],
)
def test_an_invalid_flag_is_named(command):
    script, *argv = command.split()
    assert_complains(call(script, *argv), " ".join(argv).split(" --")[0])


def test_more_threads_than_torch_can_count_are_refused():
    told = call("length", threads=10**16)
    assert_complains(told, "--threads must be at least 0 and at most 4,096")


def test_the_per_head_implementation_names_an_invalid_argument(tmp_path):
    assert_complains(call("bench.per_head"), "required: part, data")
    assert_complains(call("bench.per_head", "mlm", "toy"), "invalid choice: 'mlm'")
    assert_complains(call("bench.per_head", "lm", tmp_path / "no"), f"{tmp_path / 'no'}: no such")
    assert_complains(call("bench.per_head", "classifier", "toy-pairs"), "holds no labelled rows")


def test_the_per_head_implementation_trains(corpus, capsys):
    per_head.train_lm(corpus, steps=100)
    per_head.train_classifier(corpus, epochs=1)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    before, after = (float(line[2]) for line in lines if line[1] == "train")
    assert after < before / 2
    epoch, train, test = lines[-1]
    assert epoch == "1" and 0 < float(train) <= 1 and 0 < float(test) <= 1
