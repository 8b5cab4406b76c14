"""Smoke: each script as a user starts it, with its files and numbers checked against a count by hand."""

import json
import math

import pytest
import torch
from helpers import SCRIPTS, SHORT

import data
import train_classifier
import train_lm
import train_mlm
from beyond import train_seq2seq
from data import batching
from data.tokenizer import BOS, UNK, encode, load_tokenizer
from lab.load import load_run
from lab.records import read_metrics

FILES = {
    "config.json",
    "tokenizer.json",
    "metrics.jsonl",
    "checkpoint.pt",
    "previous.pt",
    "best.pt",
    "result.json",
    "curve.png",
}
COST = {"seconds", "cpu_seconds", "tokens_per_second", "peak_memory_mb", "parameters", "command"}
SPEAKERS = ("obama", "wbush", "hbush")


def result_of(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "script, module",
    [
        ("train_lm", train_lm),
        ("train_mlm", train_mlm),
        ("train_classifier", train_classifier),
        ("train_seq2seq", train_seq2seq),
    ],
)
def test_help_tells_every_flag_with_its_default(script, module, cli):
    told = cli(script, "--help")
    text = " ".join(told.out.split()).replace("- ", "-")  # argparse breaks lines anywhere
    assert told.code == 0 and told.err == ""
    # the script's own come first
    assert (
        text.index("--lr FLOAT")
        < text.index("the run:")
        < text.index("--seed INT")
        < text.index("the model:")
        < text.index("--pos {")
    )
    for name, default in vars(module.Flags()).items():
        assert f"--{name.replace('_', '-')}" in text, name
        assert f"(default: {default})" in text or default in ("", None), name


@pytest.mark.parametrize(
    "script, kind, steps",
    [
        ("train_lm", "lm", [0, 4, 8]),
        ("train_mlm", "mlm", [0, 4, 8]),
        ("train_classifier", "classifier", [1, 2, 3, 4]),
        ("train_seq2seq", "seq2seq", [0, 4, 8]),
    ],
)
def test_a_run_as_the_user_starts_it(script, kind, steps, shell, corpus, tmp_path):
    done = shell(script, *SHORT[script], "--data", corpus, "--pos", "alibi", "--seed", 5)
    assert (done.code, done.err) == (0, "")  # piped: no live line, and no warnings
    folder = tmp_path / "out" / f"{kind}-tiny-alibi-5"  # the default place
    assert {path.name for path in folder.iterdir()} == FILES | (
        {"confusion.png"} if kind == "classifier" else set()
    )
    assert [line["step"] for line in read_metrics(folder)] == steps
    assert (folder / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    result, last = result_of(folder), done.out.splitlines()[-1]
    assert COST <= result.keys() and result["command"].startswith(f"python {script}.py --n-layer 1")
    assert (
        "accuracy" if kind == "classifier" else "step 8" if kind == "seq2seq" else "perplexity"
    ) in last and str(folder.relative_to(tmp_path)) in last
    assert result["parameters"]["total"] == sum(
        p.numel() for p in load_run(folder).model.parameters()
    )


@pytest.mark.parametrize("pos", ["learned", "sinusoidal", "alibi", "rope", "nope"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_position_trains_in_every_script(script, pos, cli, corpus, tmp_path):
    done = cli(
        script,
        *SHORT[script],
        "--data",
        corpus,
        "--pos",
        pos,
        "--lr",
        "0.01",
        "--out",
        tmp_path / "run",
    )
    assert (done.code, done.err) == (0, "")
    first, *_, last = read_metrics(tmp_path / "run")
    if script != "train_classifier":
        name = "perplexity/train" if script == "train_lm" else "perplexity/valid"
        assert last[name] < first[name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_bfloat16_and_byte_level_pieces_run(script, cli, corpus, tmp_path):
    n_sentinels = 1 if script == "train_seq2seq" else 0
    done = cli(
        script,
        *SHORT[script],
        "--data",
        corpus,
        "--dtype",
        "bfloat16",
        "--tokenizer",
        "bpe",
        "--vocab-size",
        300,
        "--pos",
        "rope",
        "--out",
        tmp_path / "run",
    )
    assert (done.code, done.err) == (0, "") and load_run(tmp_path / "run").config["model"][
        "vocab_size"
    ] == 300 + n_sentinels


# ---------------------------------------------------------------------------- causal language model


def nats_by_hand(model, ids, block):
    """Minus log probability of all tokens after [BOS], one at a time, each after those of its block."""
    nats = 0.0
    with torch.no_grad():
        for t in range(1, len(ids)):
            start = (t - 1) // block * block
            logits = model(torch.tensor([ids[start:t]]))[0, -1]
            nats -= logits.log_softmax(-1)[ids[t]].item()
    return nats


def test_perplexity_and_bits_per_byte_are_those_of_a_count_by_hand(cli, corpus, tmp_path):
    argv = (
        *SHORT["train_lm"],
        "--data",
        corpus,
        "--pos",
        "alibi",
        "--lr",
        "0.01",
        "--eval-block",
        "5,40",
        "--out",
        tmp_path / "run",
    )
    assert cli("train_lm", *argv).code == 0
    loaded, result = load_run(tmp_path / "run"), result_of(tmp_path / "run")
    for name in SPEAKERS:
        text = (corpus / f"test_LM_{name}.txt").read_text(encoding="utf-8")
        ids = [BOS] + [i for line in text.splitlines() for i in encode(loaded.tokenizer, [line])[0]]
        count = len(ids) - 1
        assert (
            result[f"tokens/{name}"] == count
            and UNK in ids
            and result[f"unknown/{name}"] == pytest.approx(ids.count(UNK) / count)
        )
        assert (
            count % 12
        )  # the last block is not full, so a mean of the blocks' means would be another number
        for block, at in ((12, ""), (5, "@5"), (40, "@40")):
            nats = nats_by_hand(loaded.model, ids, block)
            assert result[f"perplexity/{name}{at}"] == pytest.approx(
                math.exp(nats / count), rel=1e-4
            )
            assert result[f"bits_per_byte/{name}{at}"] == pytest.approx(
                nats / math.log(2) / len(text.encode()), rel=1e-4
            )
    assert result["perplexity/obama"] == pytest.approx(
        read_metrics(tmp_path / "run")[-1]["perplexity/obama"]
    )


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_evaluation_does_not_depend_on_its_batches(batch_size, finished, corpus):
    loaded = load_run(finished("train_lm"))
    ids = batching.stream(loaded.tokenizer, data.load(corpus).tests["obama"])
    flags = train_lm.Flags()
    once = train_lm.evaluate(loaded.model, ids, 12, torch.device("cpu"), flags, batch_size=len(ids))
    assert train_lm.evaluate(
        loaded.model, ids, 12, torch.device("cpu"), flags, batch_size
    ) == pytest.approx(once, rel=1e-5)


def test_training_text_is_evaluated_whole_or_by_its_beginning(cli, corpus, tmp_path):
    for name, limit in (("whole", 200_000), ("part", 50)):
        assert (
            cli(
                "train_lm",
                *SHORT["train_lm"],
                "--data",
                corpus,
                "--eval-train",
                limit,
                "--out",
                tmp_path / name,
            ).code
            == 0
        )
    whole, part = result_of(tmp_path / "whole"), result_of(tmp_path / "part")
    tokens = sum(
        len(ids)
        for ids in encode(
            load_tokenizer(tmp_path / "whole" / "tokenizer.json"), data.load(corpus).lines
        )
    )
    assert whole["tokens/train"] == tokens and part["tokens/train"] == 50
    assert (
        part["perplexity/obama"] == whole["perplexity/obama"]
        and part["perplexity/train"] != whole["perplexity/train"]
    )


def test_the_language_model_learns(cli, corpus, tmp_path):
    argv = (
        *SHORT["train_lm"],
        "--data",
        corpus,
        "--steps",
        60,
        "--lr",
        "0.02",
        "--eval-every",
        30,
        "--out",
        tmp_path / "run",
    )
    assert cli("train_lm", *argv).code == 0
    first, *_, last = read_metrics(tmp_path / "run")
    assert (
        last["perplexity/train"] < 0.3 * first["perplexity/train"]
        and last["perplexity/hbush"] < 0.5 * first["perplexity/hbush"]
    )


RECIPE = (
    "--drop-words",
    "0.1",
    "--swap-words",
    "0.2",
    "--rare-unknown",
    "0.3",
    "--label-smoothing",
    "0.05",
    "--members",
    "2",
    "--eval-stride",
    "5",
    "--pos",
    "alibi",
)


def test_all_that_helps_on_a_small_text_at_once(cli, shell, corpus, tmp_path):
    argv = (
        *SHORT["train_lm"],
        "--data",
        corpus,
        "--steps",
        60,
        "--lr",
        "0.02",
        "--eval-every",
        30,
        "--valid",
        "0.2",
    )
    done = cli("train_lm", *argv, *RECIPE, "--out", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    first, *_, last = read_metrics(tmp_path / "run")
    assert last["perplexity/valid"] < 0.5 * first["perplexity/valid"]
    result = result_of(tmp_path / "run")
    assert result["perplexity/obama"] == pytest.approx(last["perplexity/obama"])
    # What is written is the average of both members, each prediction made from at least 12 - 5 words.
    loaded = load_run(tmp_path / "run")
    ids = batching.stream(loaded.tokenizer, data.load(corpus).tests["obama"])
    nats = 0.0
    for i in range(1, len(ids)):
        begin = 0 if i <= 12 else -(-(i - 12) // 5) * 5
        p = (
            sum(
                member(ids[None, begin:i])[0, -1].softmax(-1)[ids[i]].item()
                for member in loaded.model.members
            )
            / 2
        )
        nats -= math.log(p)
    assert result["perplexity/obama"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-4)
    # Unknown words are expected more than without the recipe.
    assert cli("train_lm", *argv, "--out", tmp_path / "plain").code == 0
    plain, known = load_run(tmp_path / "plain").model, ids[None, :12]
    assert (
        loaded.model(known).softmax(-1)[..., UNK].mean()
        > 3 * plain(known).softmax(-1)[..., UNK].mean()
    )
    # It can be looked at, sampled from and continued like any other.
    assert shell("attention_maps", tmp_path / "run", "--text", "hope and change matter").code == 0
    assert shell("sample", tmp_path / "run", "--text", "hope and").code == 0


def test_validation_lines_give_no_words_to_the_vocabulary(cli, own_corpus, tmp_path):
    with open(own_corpus / "train_LM.txt", "a", encoding="utf-8") as file:
        file.writelines(f"Word{i} is only here .\n" for i in range(40))
    assert (
        cli(
            "train_lm",
            *SHORT["train_lm"],
            "--data",
            own_corpus,
            "--valid",
            "0.5",
            "--out",
            tmp_path / "run",
        ).code
        == 0
    )
    words = load_tokenizer(tmp_path / "run" / "tokenizer.json").get_vocab()
    assert (
        5 < sum(f"Word{i}" in words for i in range(40)) < 35
        and result_of(tmp_path / "run")["unknown/valid"] > 0.03
    )


@pytest.mark.parametrize("script", ["train_lm", "train_mlm"])
def test_pretraining_on_one_text_and_going_on_with_another(
    script, cli, corpus, own_corpus, tmp_path
):
    (own_corpus / "train_LM.txt").write_text(
        "another text of other words and freedom matter\n" * 9
        + "and more of it\n" * 3
        + "hope and light\n",
        encoding="utf-8",
    )
    begun = cli(
        script,
        *SHORT[script],
        "--data",
        own_corpus,
        "--vocab-from",
        corpus,
        "--out",
        tmp_path / "begun",
    )
    assert begun.code == 0, begun.err
    vocabulary = load_tokenizer(tmp_path / "begun" / "tokenizer.json").get_vocab()
    assert "Zanzibar" not in vocabulary and "another" not in vocabulary and "ranch" in vocabulary
    gone_on = cli(
        script,
        "--init-from",
        tmp_path / "begun",
        "--data",
        corpus,
        *SHORT[script][-4:],
        "--steps",
        0,
        "--out",
        tmp_path / "on",
    )
    assert gone_on.code == 0, gone_on.err
    a, b = (load_run(tmp_path / name) for name in ("begun", "on"))
    assert (
        a.tokenizer.to_str() == b.tokenizer.to_str() and a.model.body.config == b.model.body.config
    )
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters()))
    assert (
        cli(
            script,
            "--init-from",
            tmp_path / "begun",
            "--vocab-from",
            corpus,
            "--data",
            corpus,
            "--out",
            tmp_path / "no",
        ).code
        == 2
    )
    refused = cli(
        script,
        "--init-from",
        tmp_path / "begun",
        "--n-embd",
        48,
        "--data",
        corpus,
        "--out",
        tmp_path / "no",
    )
    assert refused.code == 2 and "--n-embd 48" in refused.err and "--init-from" in refused.err


# ---------------------------------------------------------------------------- masked language model


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--head", "clap"),
        ("--head", "clap", "--zero-mask"),
        ("--head", "linear"),
        ("--mask-unit", "span"),
        ("--mask-unit", "word", "--tokenizer", "bpe"),
        ("--no-norm-first",),
        ("--alibi", "one-sided", "--pos", "alibi"),
        ("--window", "3"),
        ("--split", "clean"),
    ],
)
def test_every_kind_of_pretraining_learns(argv, cli, corpus, tmp_path):
    done = cli(
        "train_mlm",
        *SHORT["train_mlm"],
        *argv,
        "--data",
        corpus,
        "--steps",
        30,
        "--eval-every",
        15,
        "--lr",
        "0.01",
        "--warmup",
        5,
        "--out",
        tmp_path / "run",
    )
    assert (done.code, done.err) == (0, "")
    first, middle, last = read_metrics(tmp_path / "run")
    assert (
        last["loss/valid"] < first["loss/valid"]
        and last["tokens"] > middle["tokens"] > first["tokens"] == 0
    )
    assert (
        ("beta" in last)
        == ("clap" in argv)
        == load_run(tmp_path / "run").model.body.config.unit_embd
    )
    result = result_of(tmp_path / "run")
    assert (
        result["perplexity/valid"] == pytest.approx(math.exp(result["loss/valid"]))
        and 0 <= result["accuracy/valid"] <= 1
    )


def test_masks_of_the_validation_set_are_the_same_at_every_evaluation():
    flags, sequences = (
        train_mlm.Flags(),
        [torch.cat([torch.tensor([BOS]), torch.randint(5, 90, (n,))]) for n in range(3, 20)],
    )
    torch.manual_seed(1)
    one = train_mlm.validation_set(sequences, flags, 90, None)
    torch.manual_seed(2)
    two = train_mlm.validation_set(sequences, flags, 90, None)
    assert all(torch.equal(a, b) for x, y in zip(one, two) for a, b in zip(x, y))


def test_masked_perplexity_is_a_mean_over_hidden_tokens(finished):
    loaded, flags = load_run(finished("train_mlm")), train_mlm.Flags()
    V = loaded.tokenizer.get_vocab_size()
    sequences = [
        torch.cat(
            [
                torch.tensor([BOS]),
                torch.randint(5, V, (n,), generator=torch.Generator().manual_seed(n)),
            ]
        )
        for n in (2, 3, 11, 11, 11)
    ]
    batches = train_mlm.validation_set(sequences, flags, V, None)
    nats, hits, count = train_mlm.evaluate(loaded.model, batches, torch.device("cpu"), flags)
    expected, right, hidden = 0.0, 0, 0
    loaded.model.eval()
    for inputs, mask, labels in batches:
        for row, real, label in zip(inputs, mask, labels):
            logits = loaded.model(row[real][None])[
                0
            ].detach()  # each sentence by itself, without padding
            for t in (label[real] != -100).nonzero().flatten().tolist():
                expected -= logits[t].log_softmax(-1)[label[t]].item()
                right += int(logits[t].argmax() == label[t])
                hidden += 1
    assert (hits, count) == (right, hidden) and nats == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------------------- classifier

LEARN = ("--lr", "0.02", "--epochs", "8")


def test_the_classifier_learns_and_its_result_adds_up(cli, corpus, tmp_path):
    done = cli(
        "train_classifier",
        *SHORT["train_classifier"],
        *LEARN,
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
    )
    result = result_of(tmp_path / "run")
    assert (
        result["accuracy/train"] > 0.6 and result["accuracy/unseen"] > 0.5
    )  # a speaker's words give him away; chance is 1/3
    confusion, classes = result["confusion"], result["classes"]
    assert classes == list(SPEAKERS) and [sum(row) for row in confusion] == [5, 5, 5]
    assert sum(confusion[i][i] for i in range(3)) / 15 == pytest.approx(result["accuracy/test"])
    assert (6 * result["accuracy/seen"] + 9 * result["accuracy/unseen"]) / 15 == pytest.approx(
        result["accuracy/test"]
    )
    assert "15 test rows of which 6 also stand in the training data" in done.out


def test_accuracy_is_that_of_asking_the_model_row_by_row(finished, corpus):
    loaded, result = load_run(finished("train_classifier")), result_of(finished("train_classifier"))
    right = [
        loaded.model(torch.tensor([[BOS, *encode(loaded.tokenizer, [text])[0]][:12]]))
        .argmax()
        .item()
        == label
        for label, text in data.load(corpus).test_rows
    ]
    assert result["accuracy/test"] == pytest.approx(sum(right) / 15)
    assert result["accuracy/seen"] == pytest.approx(sum(right[:6]) / 6)


def test_balance_gives_a_rare_class_the_weight_of_a_common_one(cli, tmp_path):
    # The text tells nothing, so the answer is the share of the class as the loss sees it: 1/5, or 1/2; with the prior taken
    # twice in training and left out afterwards, odds of 1/4 become 4.
    rows = [
        f"{'rare' if number % 5 == 0 else 'common'}\tnumber {number} of them\n"
        for number in range(100)
    ]
    (tmp_path / "mine.tsv").write_text("".join(rows), encoding="utf-8")
    share = {}
    for how in ("none", "weights", "prior"):
        argv = (
            "--data",
            tmp_path / "mine.tsv",
            "--n-layer",
            1,
            "--n-embd",
            16,
            "--epochs",
            3,
            "--lr",
            "0.01",
            "--balance",
            how,
            "--out",
            tmp_path / how,
        )
        assert cli("train_classifier", *argv).code == 0
        loaded = load_run(tmp_path / how)
        with torch.no_grad():
            answer = loaded.model(
                torch.tensor([[BOS, *encode(loaded.tokenizer, ["number unheard of them"])[0]]])
            ).softmax(-1)[0]
        share[how] = answer[loaded.config["classes"].index("rare")].item()
    assert share["none"] < 0.33 < share["weights"] < 0.6 < share["prior"]


def test_the_heads_dropout_works_on_a_frozen_encoder_too(cli, corpus, finished, tmp_path):
    for rate in ("0.0", "0.5"):
        assert (
            cli(
                "train_classifier",
                "--encoder",
                finished("train_mlm"),
                "--data",
                corpus,
                "--epochs",
                1,
                "--head-dropout",
                rate,
                "--out",
                tmp_path / rate,
            ).code
            == 0
        )
    assert not torch.equal(
        *(load_run(tmp_path / rate).model.head.layers[-1].weight for rate in ("0.0", "0.5"))
    )


def test_refitting_trains_anew_on_all_rows_for_the_best_number_of_epochs(cli, corpus, tmp_path):
    argv = (*SHORT["train_classifier"], *LEARN, "--data", corpus)
    for name, how in (("refit", "--refit"), ("kept", "--no-refit")):
        assert cli("train_classifier", *argv, how, "--out", tmp_path / name).code == 0
    assert (tmp_path / "refit" / "metrics.jsonl").read_text() == (
        tmp_path / "kept" / "metrics.jsonl"
    ).read_text()
    refit, kept = result_of(tmp_path / "refit"), result_of(tmp_path / "kept")
    assert (
        refit["epoch"] == kept["epoch"] and refit["accuracy/valid"] == kept["accuracy/valid"]
    )  # what chose them
    loaded = load_run(tmp_path / "refit")
    assert not torch.equal(
        loaded.model.head.layers[0].weight, load_run(tmp_path / "kept").model.head.layers[0].weight
    )
    right = [
        loaded.model(torch.tensor([[BOS, *encode(loaded.tokenizer, [text])[0]][:12]]))
        .argmax()
        .item()
        == label
        for label, text in data.load(corpus).rows
    ]
    assert refit["accuracy/train"] == pytest.approx(
        sum(right) / 60
    )  # of all 60, not of the 48 that were not held out


def body_of(folder):
    return {
        name: value
        for name, value in torch.load(folder / "best.pt", weights_only=True)["model"].items()
        if name.startswith("body.")
    }


@pytest.mark.parametrize("tune", ["frozen", "all"])
def test_on_a_pretrained_encoder(tune, cli, corpus, finished, tmp_path):
    encoder = finished("train_mlm")
    done = cli(
        "train_classifier",
        "--encoder",
        encoder,
        "--tune",
        tune,
        "--data",
        corpus,
        *LEARN,
        "--lr",
        0.01,
        "--batch-size",
        8,
        "--out",
        tmp_path / "run",
    )
    assert (done.code, done.err) == (0, "")
    before, after = body_of(encoder), body_of(tmp_path / "run")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert before.keys() == after.keys() and bool(changed) == (tune == "all"), changed
    assert (tmp_path / "run" / "tokenizer.json").read_text() == (
        encoder / "tokenizer.json"
    ).read_text()
    assert result_of(tmp_path / "run")["accuracy/test"] > 0.6
    body, head = (
        sum(
            p.numel()
            for name, p in load_run(tmp_path / "run").model.named_parameters()
            if name.startswith(part)
        )
        for part in ("body.", "head.")
    )
    assert f"{head + (body if tune == 'all' else 0):,} of them trained" in done.out
    # the encoder's, not the flag's default
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["flags"][
            "n_embd"
        ]
        == 16
    )
    # By default a frozen encoder is read at every layer, in three ways.
    assert load_run(tmp_path / "run").model.features(torch.tensor([[2, 6, 7]])).size(1) == (
        16 * 3 * 2 if tune == "frozen" else 16
    )


def test_features_kept_of_a_frozen_encoder_give_what_the_whole_model_gives(
    cli, corpus, finished, tmp_path
):
    assert (
        cli(
            "train_classifier",
            "--encoder",
            finished("train_mlm"),
            "--data",
            corpus,
            *LEARN,
            "--out",
            tmp_path / "run",
        ).code
        == 0
    )
    loaded, result = load_run(tmp_path / "run"), result_of(tmp_path / "run")
    rows = train_classifier.Rows(data.load(corpus).test_rows, loaded.tokenizer, 12)
    right = train_classifier.predict(loaded.model, rows, torch.device("cpu")) == rows.labels
    assert right.float().mean().item() == pytest.approx(result["accuracy/test"])
    # What is subtracted comes from the training rows, and of 54 rows no more than 54 components can.
    features = train_classifier.all_features(
        loaded.model,
        train_classifier.Rows(data.load(corpus).rows, loaded.tokenizer, 12),
        torch.device("cpu"),
    )
    torch.testing.assert_close(loaded.model.shift, features.mean(0), atol=1e-5, rtol=1e-4)
    assert loaded.model.project(features).size(1) == loaded.model.head.layers[0].in_features <= 54


@pytest.mark.parametrize("tune", ["frozen", "all"])
def test_on_a_causal_decoder_by_its_last_word(tune, cli, shell, corpus, finished, tmp_path):
    decoder, run = finished("train_lm"), tmp_path / "run"
    done = cli(
        "train_classifier",
        "--encoder",
        decoder,
        "--tune",
        tune,
        "--data",
        corpus,
        *LEARN,
        "--batch-size",
        8,
        "--out",
        run,
    )
    assert (done.code, done.err) == (0, "")
    changed = [
        not torch.equal(value, body_of(run)[name]) for name, value in body_of(decoder).items()
    ]
    assert any(changed) == (tune == "all") and result_of(run)["accuracy/test"] > 0.5
    loaded = load_run(run)
    assert (
        loaded.model.body.causal
        and loaded.config["flags"]["causal"]
        and loaded.model.pool == ["last"]
    )
    # In a padded batch too, each sentence is judged by the state of its own last word, which no later word changes.
    idx = torch.tensor([[BOS, 7, 8, 9, 6], [BOS, 9, 7, 0, 0]])
    mask = idx != 0
    together = loaded.model.features(idx, mask)
    torch.testing.assert_close(
        together[1:], loaded.model.features(idx[1:, :3]), atol=1e-5, rtol=1e-4
    )
    h = loaded.model.body(idx, mask)[torch.arange(2), torch.tensor([4, 2])]
    torch.testing.assert_close(together[:, -16:], h, atol=1e-6, rtol=1e-5)
    right = [
        loaded.model(torch.tensor([[BOS, *encode(loaded.tokenizer, [text])[0]][:12]]))
        .argmax()
        .item()
        == label
        for label, text in data.load(corpus).test_rows
    ]
    assert result_of(run)["accuracy/test"] == pytest.approx(sum(right) / 15)
    # It can be asked and looked at: nothing above the diagonal.
    if tune == "all":
        asked, maps = (
            shell("sample", run, "--text", "hope and change matter"),
            shell("attention_maps", run, "--text", "hope and change matter"),
        )
        assert (
            asked.code == 0
            and "obama" in asked.out
            and maps.code == 0
            and "nothing above the diagonal" in maps.out
        )


def test_a_decoder_from_scratch(cli, corpus, tmp_path):
    done = cli(
        "train_classifier",
        *SHORT["train_classifier"],
        *LEARN,
        "--causal",
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
    )
    assert (done.code, done.err) == (0, "") and result_of(tmp_path / "run")["accuracy/train"] > 0.6
    loaded = load_run(tmp_path / "run")
    assert loaded.model.body.causal and loaded.model.pool == ["last"]


def test_clean_split_trains_without_the_test_sentences(cli, corpus, tmp_path):
    done = cli(
        "train_classifier",
        *SHORT["train_classifier"],
        *LEARN,
        "--data",
        corpus,
        "--split",
        "clean",
        "--out",
        tmp_path / "run",
    )
    assert (
        done.code == 0
        and "6 training rows and 1 lines of text with their sentences are removed" in done.out
    )
    assert "43 training rows, 11 for validation" in done.out  # of 54
    # The same test rows are told apart as in the full split, so that the two can be compared.
    assert {"accuracy/seen", "accuracy/unseen"} <= result_of(tmp_path / "run").keys()


def test_clean_split_refuses_an_encoder_pretrained_on_the_test_sentences(
    cli, corpus, finished, tmp_path
):
    argv = (
        "--data",
        corpus,
        "--split",
        "clean",
        "--epochs",
        1,
        "--valid",
        0.2,
        "--out",
        tmp_path / "run",
    )
    refused = cli("train_classifier", "--encoder", finished("train_mlm"), *argv)
    assert refused.code == 2 and "pretrain it with --split clean too" in refused.err
    assert (
        cli(
            "train_mlm",
            *SHORT["train_mlm"],
            "--data",
            corpus,
            "--split",
            "clean",
            "--out",
            tmp_path / "clean",
        ).code
        == 0
    )
    assert cli("train_classifier", "--encoder", tmp_path / "clean", *argv).code == 0
