"""probe_layers.py: layers of an encoder beside an untrained one, and the table of their runs."""

import pytest
from helpers import call, result_of, succeed, train

from lab.records import read_record


def test_layers_of_an_encoder_and_of_its_untrained_double(corpus, tmp_path, jobs_in_process):
    flags = ("--zero-mask", "--scale-embd", "--head", "clap", "--attn-dropout", 0.1)
    run, layers = tmp_path / "run", tmp_path / "layers"
    train("train_mlm", *flags, "--data", corpus, "--out", run)
    done = succeed(call("probe_layers", run, "--seeds", 1, "--jobs", 1, "--out", layers))
    result = result_of(layers)
    assert {name for name in result if name.endswith("/test")} == {
        f"{kind}/layer-{layer}/test"
        for kind in ("pretrained", "untrained")
        for layer in (0, 1, "all")
    }
    for kind in ("pretrained", "untrained"):
        one = result_of(layers / f"{kind}-layer-1-0")["accuracy/test"]
        assert result[f"{kind}/layer-1/test"]["values"][0] == pytest.approx(100 * one)
        model = read_record(layers / f"{kind}-layer-1-0" / "config.json")["model"]
        assert model["zero_mask"] and model == read_record(run / "config.json")["model"]
    described = read_record(layers / "untrained-layer-0-0" / "config.json")
    assert described["classifier"]["layers"] == "0"
    assert "| embeddings |" in done.out
    assert (layers / "layers.png").stat().st_size > 5000
