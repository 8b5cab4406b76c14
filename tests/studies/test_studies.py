"""nope.py and clap.py, tiny: every run is there, the report shows its numbers."""

import json

from helpers import call, fails

from studies import clap, nope


def read(path):
    return path.read_text(encoding="utf-8")


def test_nope(corpus, tmp_path, monkeypatch, jobs_here):
    tiny = dict(depths=(2, 1), n_embd=16, n_head=2, lengths=(8, 4), tokens=32, steps=8, lr=1e-3)
    tiny |= dict(vocab_size=0, eval_test=0, keep="0,4,8", probe=dict(blocks=8, steps=5))
    tiny |= dict(mlm=dict(steps=8, batch_size=4, lr=1e-3))
    monkeypatch.setattr(nope, "SIZES", {"quick": tiny})
    monkeypatch.setattr(nope, "COMPARED", ("nope", "learned"))
    more = {"studies.probe": ("--order-blocks", 8)}
    started, out = jobs_here(more), tmp_path / "study"
    flags = nope.Flags(data=str(corpus), size="quick", seeds=1, jobs=1, out=str(out))
    nope.study(flags)
    assert len(started) == 17
    runs = {path.parent.name for path in out.glob("*/checkpoint.pt")}
    anchors = [f"lm-{pos}-1-8{a}-0" for pos in ("nope", "learned") for a in ("", "-anchor")]
    others = ["lm-nope-2-8-0", "lm-nope-2-8-anchor-0"]
    others += ["lm-nope-1-4-anchor-0", "lm-learned-1-4-anchor-0", "mlm-nope-0", "mlm-learned-0"]
    assert runs == {*anchors, *others}
    config = json.loads(read(out / "lm-nope-1-8-anchor-0" / "config.json"))
    assert config["flags"]["anchor"] and config["model"]["n_ffn"] == 64
    # train short, test long
    one = json.loads(read(out / "lm-nope-1-8-anchor-0" / "result.json"))
    assert {f"perplexity/one@{length}" for length in (16, 32, 64)} < set(one)
    assert "@" not in "".join(json.loads(read(out / "lm-learned-1-8-0" / "result.json")))
    report = read(out / "report.md")
    assert f"{one['perplexity/one']:.1f}" in report
    for _, table in nope.REPORT:
        assert read(out / f"{table}.md") in report
    figures = [line[line.index("](") + 2 : -1] for line in report.splitlines() if line[:2] == "!["]
    assert len(figures) == 8 and all((out / figure).exists() for figure in figures)
    kept = json.loads(read(out / "probe-kept" / "result.json"))["runs"]
    assert all("step 4" in run["probe"] for runs in kept.values() for run in runs)
    nope.study(flags)
    assert len(started) == 17  # nothing runs twice


def test_clap(corpus, tmp_path, monkeypatch, jobs_here):
    tiny = dict(vocab_size=300, n_layer=1, n_embd=16, n_head=2, n_ffn=20, block_size=12)
    monkeypatch.setattr(clap, "SIZES", {"quick": tiny | dict(batch_size=4, lr=1e-3, steps=10)})
    jobs_here({"train_mlm": ("--valid", "0.2")})
    only = "baseline,zero-clap,zero-clap-mask-no-output"
    flags = dict(data=str(corpus), size="quick", seeds=2, jobs=1, out=str(tmp_path))
    clap.study(clap.Flags(only=only, steps=5, **flags))
    expected = {  # head, zero_mask, omit_mask, norm_first
        "baseline": ("roberta", False, False, False),
        "zero-clap": ("clap", True, False, False),
        "zero-clap-mask-no-output": ("clap", True, True, False),
    }
    for name, values in expected.items():
        model = json.loads(read(tmp_path / f"{name}-0" / "config.json"))["model"]
        options = ("head", "zero_mask", "omit_mask", "norm_first")
        assert tuple(model[option] for option in options) == values
        assert json.loads(read(tmp_path / f"{name}-1" / "result.json"))["step"] == 5
    assert (tmp_path / "compare" / "compare.png").exists()
    table = read(tmp_path / "compare-all" / "compare.md")
    assert all(f"| {name} " in table for name in expected)


def test_an_invalid_flag_is_named(tmp_path):
    fails(call("studies.clap", "--only", "alibis"), "--only alibis", "alibi-no-dropout")
    rows = tmp_path / "rows.tsv"
    rows.write_text("".join(f"{i % 2}\tword {i}\n" for i in range(40)), encoding="utf-8")
    fails(call("studies.nope", data=rows, out=tmp_path), f"--data {rows}", "no running text")
