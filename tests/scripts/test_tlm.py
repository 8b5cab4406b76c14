"""Two languages in one encoder: restarted positions, language vectors, train_tlm.py; and train_mlm.py --causal."""

import json
import math
import random

import pytest
import torch
from helpers import SHORT, TINY, assert_complains, contents

import train_mlm
from beyond import train_tlm
from data import batching
from data.corpora.pairs import load_pairs
from data.corpus import hold_out
from data.tokenizer import BOS, MASK, encode
from lab.load import load_run, read_metrics
from lab.parameters import count_parameters
from lab.run import Run
from model import POSITIONS, Config, LanguageModel
from nets.two_languages import make_encoder

WORDS = 8
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


def bilingual(pos="learned", **more):
    torch.manual_seed(0)
    return LanguageModel(
        make_encoder(
            Config(
                **dict(
                    vocab_size=40,
                    block_size=9,
                    n_layer=2,
                    n_head=2,
                    n_embd=16,
                    n_ffn=20,
                    init_std=0.4,
                    pos=pos,
                    n_language=2,
                )
                | more
            )
        )
    ).eval()


def sequences(*lengths):
    return [torch.cat([torch.tensor([BOS]), torch.randint(5, 40, (n - 1,))]) for n in lengths]


# ---------------------------------------------------------------------------- batches


def test_a_pair_is_one_sequence_whose_positions_begin_anew():
    firsts, seconds = (
        [torch.tensor([3, 7, 8]), torch.tensor([3, 9])],
        [torch.tensor([3, 5]), torch.tensor([3, 6, 7, 8])],
    )
    idx, mask, where = batching.join(firsts, seconds)
    assert idx.tolist() == [[3, 7, 8, 3, 5, 0], [3, 9, 3, 6, 7, 8]] and mask.tolist() == [
        [True] * 5 + [False],
        [True] * 6,
    ]
    assert where["languages"][mask].tolist() == [0, 0, 0, 1, 1] + [0, 0, 1, 1, 1, 1]
    assert where["positions"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]]
    idx, mask, where = batching.apart(firsts, seconds)
    assert (
        idx[mask].tolist() == [3, 7, 8, 3, 9, 3, 5, 3, 6, 7, 8]
        and where["languages"].tolist() == [[0] * 4] * 2 + [[1] * 4] * 2
        and "positions" not in where
    )


# ---------------------------------------------------------------------------- the model


@pytest.mark.parametrize("alibi", ["offset", "symmetric", "one-sided"])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("pos", POSITIONS)
def test_which_sentence_stands_first_makes_no_difference(pos, window, alibi):
    # Only so if everything that depends on the place (vectors, angles, distances, the window) follows the restarted positions.
    if alibi != "offset" and pos != "alibi":
        return
    model, (a, b) = bilingual(pos, window=window, alibi=alibi).body, sequences(4, 5)
    idx, mask, where = batching.join([a], [b])
    h = model(idx, mask, **where)
    turned, _, _ = batching.join([b], [a])
    moved = {name: torch.cat([value[:, 4:], value[:, :4]], dim=1) for name, value in where.items()}
    torch.testing.assert_close(
        model(turned, mask, **moved), torch.cat([h[:, 4:], h[:, :4]], dim=1), atol=1e-5, rtol=1e-4
    )
    if pos != "nope" or window:  # and these are not the plain ones
        assert not torch.allclose(model(idx, mask, languages=where["languages"]), h, atol=1e-3)


@pytest.mark.parametrize("pos", POSITIONS)
def test_positions_and_languages_given_as_they_are_anyway_change_nothing(pos):
    model, idx = bilingual(pos).body, torch.stack(sequences(9, 9))
    plain = model(idx)
    torch.testing.assert_close(
        model(idx, languages=torch.zeros_like(idx), positions=torch.arange(9).expand(2, 9)),
        plain,
        atol=1e-5,
        rtol=1e-4,
    )
    assert not torch.allclose(model(idx, languages=torch.ones_like(idx)), plain, atol=1e-2)


@pytest.mark.parametrize("pos", POSITIONS)
def test_swapped_languages_change_every_state(pos):
    model = bilingual(pos).body
    idx, mask, where = batching.join(sequences(4), sequences(5))
    swapped = where | {"languages": 1 - where["languages"]}
    assert ((model(idx, mask, **where) - model(idx, mask, **swapped)).abs().amax(-1) > 1e-3).all()


def test_the_embedding_is_the_sum_of_its_parts():
    model = bilingual("learned").body
    idx, _, where = batching.join(sequences(3), sequences(4))
    parts = [
        model.embedding.weight[idx[0, t]] + model.positions.weight[p] + model.languages.weight[l]
        for t, (p, l) in enumerate(zip([0, 1, 2, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 1]))
    ]
    _, states = model(idx, need_states=True, **where)
    torch.testing.assert_close(states[0][0], torch.stack(parts))


def test_alibi_is_the_distance_of_restarted_positions():
    model = bilingual("alibi", alibi="symmetric").body
    _, mask, where = batching.join(sequences(3), sequences(4))
    p = [0, 1, 2, 0, 1, 2, 3]
    expected = torch.tensor([[[-m * abs(i - j) for j in p] for i in p] for m in (2**-4, 2**-8)])
    torch.testing.assert_close(model.restarted_bias(7, mask, where["positions"])[0], expected)
    assert expected[0, 0, 3] == expected[0, 2, 5] == 0  # the n-th words of both


@pytest.mark.parametrize("pos", POSITIONS)
def test_the_padding_of_a_pair_is_invisible(pos):
    model, firsts, seconds = (
        bilingual(pos).body,
        sequences(5, 9, 2),
        sequences(3, 9, 6),
    )  # in all beyond a learned table of 9
    idx, mask, where = batching.join(firsts, seconds)
    h = model(idx, mask, **where)
    for row, pair in enumerate(zip(firsts, seconds)):
        alone, _, where = batching.join(*([side] for side in pair))
        torch.testing.assert_close(
            h[row, mask[row]], model(alone, **where)[0], atol=1e-5, rtol=1e-4
        )


def test_what_cannot_be_is_refused():
    idx, mask, where = batching.join(sequences(3), sequences(11))
    with pytest.raises(ValueError, match="block_size=9, got 11"):
        bilingual("learned").body(idx, mask, **where)


def test_a_model_without_languages_has_the_weights_it_had():
    one, two = bilingual(n_language=0), bilingual()
    assert two.state_dict().keys() - one.state_dict().keys() == {"body.languages.weight"}
    assert count_parameters(two)["embedding"] - count_parameters(one)["embedding"] == 2 * 16


# ---------------------------------------------------------------------------- train_tlm.py


@pytest.fixture(scope="module")
def ciphers(tmp_path_factory):
    """Pairs of random words and the same in cipher: nobody can do better than 1 in WORDS alone, with the other language all
    can be known."""
    folder, rng = tmp_path_factory.mktemp("pairs") / "ciphers", random.Random(0)
    folder.mkdir()
    for name, count in (("train", 600), ("val", 40), ("test", 40)):
        rows = [[rng.randrange(WORDS) for _ in range(rng.randint(4, 6))] for _ in range(count)]
        for ending, letter in (("en", "e"), ("xx", "x")):
            (folder / f"{name}.{ending}").write_text(
                "".join(" ".join(f"{letter}{word}" for word in row) + "\n" for row in rows),
                encoding="utf-8",
            )
    return folder


SMALL = (*TINY, "--steps", "8", "--eval-every", "4")


def result_of(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def test_a_run_as_the_user_starts_it(shell, ciphers, tmp_path):
    done = shell("train_tlm", *SMALL, "--data", ciphers, "--pos", "alibi", "--seed", 5)
    assert (done.code, done.err) == (0, "")
    folder = tmp_path / "out" / "tlm-ciphers-alibi-5"
    assert {path.name for path in folder.iterdir()} == FILES and [
        line["step"] for line in read_metrics(folder)
    ] == [0, 4, 8]
    result = result_of(folder)
    measured = {
        f"{metric}/{part}-{language}-{view}"
        for metric in ("perplexity", "accuracy")
        for part in ("valid", "test")
        for language in ("en", "xx")
        for view in train_tlm.VIEWS
    }
    assert measured <= result.keys() and "out/tlm-ciphers-alibi-5" in done.out.splitlines()[-1]
    told = {
        f"en {result['perplexity/test-en-alone']:,.2f} alone, "
        f"{result['perplexity/test-en-paired']:,.2f} beside its translation",
        "perplexity of test at step",
    }
    assert (
        all(words in done.out.splitlines()[-1] for words in told)
        and "valid: en" in done.out.splitlines()[-2]
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (
        config["languages"] == ["en", "xx"]
        and config["model"]["n_language"] == 2
        and load_run(folder, ("mlm",)).model.body.languages.weight.shape == (2, 16)
    )


def test_the_translation_tells_the_hidden_word_and_another_sentences_does_not(
    cli, ciphers, tmp_path
):
    argv = (
        "--data",
        ciphers,
        "--pos",
        "rope",
        "--n-layer",
        1,
        "--n-embd",
        32,
        "--n-head",
        2,
        "--n-ffn",
        64,
        "--steps",
        150,
        "--eval-every",
        150,
        "--lr",
        "0.01",
        "--pair-rate",
        "0.7",
        "--warmup",
        20,
    )
    assert cli("train_tlm", *argv, "--out", tmp_path / "run").code == 0
    result = result_of(tmp_path / "run")
    for language in ("en", "xx"):
        alone, paired, mispaired = (
            result[f"perplexity/test-{language}-{view}"] for view in train_tlm.VIEWS
        )
        assert paired < 1.5 and 0.8 * WORDS < alone < 1.3 * WORDS and mispaired > alone, (
            language,
            alone,
            paired,
            mispaired,
        )


def test_the_three_views_ask_for_the_same_words(ciphers):
    texts, flags = load_pairs(ciphers).tests["test"], train_tlm.Flags()
    tokenizer = train_tlm.train_tokenizer("word", [sentence for pair in texts for sentence in pair])
    sides = [batching.sentences(tokenizer, side, 12)[0] for side in zip(*texts)]
    for side in (0, 1):
        views, found = (
            train_tlm.masked_test_set(sides, side, flags, tokenizer.get_vocab_size(), None),
            {},
        )
        for view, batches in views.items():
            rows = found[view] = []
            for inputs, mask, labels, where in batches:
                for row, real, label, language in zip(inputs, mask, labels, where["languages"]):
                    assert (
                        (label[~real] == -100).all()
                        and (label[real & (language != side)] == -100).all()
                        and not (row[real & (language != side)] == MASK).any()
                    )
                    own, other = real & (language == side), real & (language != side)
                    rows.append((row[own].tolist(), label[own].tolist(), row[other].tolist()))
        assert (
            [row[:2] for row in found["alone"]]
            == [row[:2] for row in found["paired"]]
            == [row[:2] for row in found["mispaired"]]
        )
        assert all(not row[2] for row in found["alone"]) and any(
            MASK in row[0] for row in found["alone"]
        )
        whole = [
            [label if label != -100 else token for token, label in zip(*row[:2])]
            for row in found["paired"]
        ]
        known = {(tuple(first.tolist()), tuple(second.tolist())) for first, second in zip(*sides)}
        beside = {
            view: [
                tuple(map(tuple, (own, row[2]) if side == 0 else (row[2], own))) in known
                for own, row in zip(whole, found[view])
            ]
            for view in ("paired", "mispaired")
        }
        assert all(beside["paired"]) and not any(beside["mispaired"]) and len(whole) == 40


def test_the_perplexities_are_those_of_a_count_by_hand(cli, ciphers, tmp_path):
    assert (
        cli(
            "train_tlm",
            *SMALL,
            "--data",
            ciphers,
            "--pos",
            "sinusoidal",
            "--lr",
            "0.02",
            "--out",
            tmp_path / "run",
        ).code
        == 0
    )
    loaded, flags = load_run(tmp_path / "run"), train_tlm.Flags()
    sides = [
        [torch.tensor([BOS, *ids]) for ids in encode(loaded.tokenizer, side)]
        for side in zip(*load_pairs(ciphers).tests["test"])
    ]
    for side, language in enumerate(("en", "xx")):
        for view, batches in train_tlm.masked_test_set(
            sides, side, flags, loaded.tokenizer.get_vocab_size(), None
        ).items():
            nats = count = 0
            for inputs, mask, labels, where in batches:
                for row, (tokens, real, label) in enumerate(zip(inputs, mask, labels)):
                    logits = loaded.model(
                        tokens[real][None],
                        **{name: value[row][real][None] for name, value in where.items()},
                    )[0].detach()
                    for t in (label[real] != -100).nonzero().flatten().tolist():
                        nats -= logits[t].log_softmax(-1)[label[t]].item()
                        count += 1
            assert result_of(tmp_path / "run")[
                f"perplexity/test-{language}-{view}"
            ] == pytest.approx(math.exp(nats / count), rel=1e-4)


@pytest.mark.parametrize("pos", POSITIONS)
def test_every_position_trains(pos, cli, ciphers, tmp_path):
    assert (
        cli(
            "train_tlm",
            *SMALL,
            "--data",
            ciphers,
            "--pos",
            pos,
            "--lr",
            "0.02",
            "--dtype",
            "bfloat16",
            "--out",
            tmp_path / "run",
        ).code
        == 0
    )
    first, *_, last = read_metrics(tmp_path / "run")
    assert last["loss/valid"] < first["loss/valid"]


def test_pairs_without_val_files_hold_some_out(cli, tmp_path):
    (tmp_path / "mine.tsv").write_text(
        "".join(f"word {n}\tmot {n}\n" for n in range(60)), encoding="utf-8"
    )
    done = cli(
        "train_tlm",
        *SMALL,
        "--data",
        tmp_path / "mine.tsv",
        "--valid",
        "0.2",
        "--pair-rate",
        0,
        "--out",
        tmp_path / "run",
    )
    assert (
        (done.code, done.err) == (0, "")
        and "43 training pairs" in done.out
        and "11 for validation" in done.out
        and "perplexity/heldout-target-paired" in result_of(tmp_path / "run")
    )
    kept, held = hold_out(load_pairs(tmp_path / "mine.tsv").train, 0.2, 0, key=lambda pair: pair[0])
    assert (len(kept), len(held)) == (43, 11)


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(cli, ciphers, tmp_path, monkeypatch):
    argv, save, count = (
        (*SMALL, "--data", ciphers, "--dropout", "0.2"),
        Run.save_checkpoint,
        iter(range(9)),
    )
    assert cli("train_tlm", *argv, "--out", tmp_path / "whole").code == 0

    def pressed(self, *args, **more):
        save(self, *args, **more)
        if next(count) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_checkpoint", pressed)
        assert cli("train_tlm", *argv, "--out", tmp_path / "parts").code == 130
    torch.rand(7)
    assert cli("train_tlm", *argv, "--out", tmp_path / "parts", "--resume").code == 0
    assert (tmp_path / "whole" / "metrics.jsonl").read_text() == (
        tmp_path / "parts" / "metrics.jsonl"
    ).read_text()


def test_an_mlm_run_goes_on_as_it_was(cli, ciphers, tmp_path):
    # the text of both languages
    assert (
        cli(
            "train_mlm",
            *SHORT["train_mlm"],
            "--lr",
            "0.01",
            "--data",
            ciphers,
            "--out",
            tmp_path / "mlm",
        ).code
        == 0
    )
    for source, out in (("mlm", "tlm"), ("tlm", "again")):
        assert (
            cli(
                "train_tlm",
                "--init-from",
                tmp_path / source,
                "--data",
                ciphers,
                "--steps",
                0,
                "--out",
                tmp_path / out,
            ).code
            == 0
        )
    mlm, tlm, again = (load_run(tmp_path / name).model for name in ("mlm", "tlm", "again"))
    idx = torch.tensor([[BOS, 5, 6, 7]])
    assert (
        torch.equal(tlm(idx, languages=torch.ones_like(idx)), mlm(idx))
        and torch.equal(again(idx), mlm(idx))
        and not tlm.body.languages.weight.any()
    )
    turned = cli(
        "train_tlm",
        "--init-from",
        tmp_path / "tlm",
        "--data",
        ciphers,
        "--languages",
        "xx-en",
        "--out",
        tmp_path / "run",
    )
    assert_complains(
        turned, "--init-from", "its languages are en-xx, not xx-en", "--languages en-xx"
    )


def test_an_mlm_run_that_does_not_know_the_language(cli, finished, ciphers, tmp_path):
    outcome = cli(
        "train_tlm",
        "--init-from",
        finished("train_mlm"),
        "--data",
        ciphers,
        "--out",
        tmp_path / "run",
    )
    assert_complains(
        outcome,
        f"--init-from {finished('train_mlm')}",
        "100% of the words of en are unknown",
        f"--vocab-from {ciphers}",
    )
    assert not (tmp_path / "run").exists()


def test_a_run_in_two_languages_can_be_used_as_any_encoder(cli, corpus, ciphers, tmp_path):
    assert (
        cli(
            "train_tlm",
            *SMALL,
            "--data",
            ciphers,
            "--tokenizer",
            "bpe",
            "--vocab-size",
            300,
            "--out",
            tmp_path / "tlm",
        ).code
        == 0
    )
    assert (
        cli(
            "train_classifier",
            "--encoder",
            tmp_path / "tlm",
            "--data",
            corpus,
            "--epochs",
            1,
            "--out",
            tmp_path / "classifier",
        ).code
        == 0
    )


@pytest.mark.parametrize(
    "argv, parts",
    [
        (["--pair-rate", "2"], ["--pair-rate must be from 0 to 1, got 2"]),
        (["--mask-rate", "0"], ["--mask-rate must be above 0"]),
        (["--block-size", "1"], ["--block-size must be at least 2"]),
        (["--steps", "-1"], ["--steps must not be negative"]),
        (["--n-head", "3"], ["--n-head must divide --n-embd"]),
        (["--languages", "en"], ["--languages en", "joined by a hyphen"]),
        (["--languages", "en-de"], ["train.de: no such file"]),
        (["--data", "nowhere"], ["--data nowhere: no such pairs"]),
        (["--causal"], ["--causal", "--help"]),
    ],
)
def test_a_flag_that_cannot_work(argv, parts, cli, ciphers, tmp_path):
    assert_complains(
        cli("train_tlm", *SMALL, "--data", ciphers, "--out", tmp_path / "run", *argv), *parts
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "test, argv, parts",
    [
        (("four\n", "quatre\n"), (), ["test has a single pair", "give more"]),
        (
            ("a b\nc\n", "x\ny\n"),
            ("--vocab-size", 15),
            ["no word of en in test is in the vocabulary", "--vocab-size"],
        ),
    ],
)
def test_a_test_set_nothing_can_be_measured_on(test, argv, parts, cli, ciphers, tmp_path):
    for name in ("train.en", "train.xx", "val.en", "val.xx"):
        (tmp_path / name).write_text((ciphers / name).read_text())
    (tmp_path / "test.en").write_text(test[0]), (tmp_path / "test.xx").write_text(test[1])
    assert_complains(
        cli("train_tlm", *SMALL, *argv, "--data", tmp_path, "--out", tmp_path / "run"), *parts
    )
    assert not (tmp_path / "run").exists()


def test_files_that_do_not_fit_together_leave_everything_as_it_was(cli, tmp_path):
    (tmp_path / "train.en").write_text("one\ntwo\n"), (tmp_path / "train.fr").write_text("un\n")
    before = contents(tmp_path)
    assert_complains(
        cli("train_tlm", "--data", tmp_path, "--out", tmp_path / "run"),
        tmp_path / "train.fr",
        "1 lines",
        "has 2",
    )
    assert contents(tmp_path) == before


def test_help_tells_every_flag(cli):
    told = cli("train_tlm", "--help")
    assert told.code == 0 and all(
        f"--{name.replace('_', '-')}" in told.out for name in vars(train_tlm.Flags())
    )


# ---------------------------------------------------------------------------- train_mlm.py --causal


def test_the_causal_run_predicts_every_next_word_of_each_sentence(cli, corpus, tmp_path):
    done = cli(
        "train_mlm",
        *SHORT["train_mlm"],
        "--causal",
        "--data",
        corpus,
        "--pos",
        "alibi",
        "--lr",
        "0.02",
        "--out",
        tmp_path / "run",
    )
    assert (done.code, done.err) == (0, "") and "next-word perplexity" in done.out
    loaded = load_run(tmp_path / "run", ("lm",))
    assert loaded.model.body.causal
    held = list(dict.fromkeys(hold_out(train_mlm.data.load(corpus).texts(), 0.2, seed=0)[1]))
    nats = count = 0
    for ids in encode(loaded.tokenizer, held):
        for begin in range(0, len(ids), 11):  # pieces of a block
            piece = [BOS, *ids[begin : begin + 11]]
            for t in range(1, len(piece)):
                nats -= (
                    loaded.model(torch.tensor([piece[:t]]))[0, -1].log_softmax(-1)[piece[t]].item()
                )
                count += 1
    assert result_of(tmp_path / "run")["perplexity/valid"] == pytest.approx(
        math.exp(nats / count), rel=1e-4
    )


def test_a_causal_run_is_a_language_model_to_the_other_scripts(cli, corpus, finished, tmp_path):
    argv = (*SHORT["train_mlm"], "--causal", "--data", corpus)
    assert cli("train_mlm", *argv, "--out", tmp_path / "clm").code == 0
    assert (
        cli(
            "train_lm",
            "--init-from",
            tmp_path / "clm",
            "--data",
            corpus,
            "--steps",
            0,
            "--out",
            tmp_path / "lm",
        ).code
        == 0
    )
    assert (
        cli(
            "train_mlm",
            "--causal",
            "--init-from",
            tmp_path / "lm",
            "--data",
            corpus,
            "--steps",
            0,
            "--valid",
            "0.2",
            "--out",
            tmp_path / "again",
        ).code
        == 0
    )
    one, two = (
        torch.load(tmp_path / name / "best.pt", weights_only=True)["model"]
        for name in ("clm", "again")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert_complains(
        cli(
            "train_mlm",
            "--causal",
            "--init-from",
            finished("train_mlm"),
            "--data",
            corpus,
            "--out",
            tmp_path / "x",
        ),
        "of kind 'mlm'",
        "'lm' is needed",
    )
    assert_complains(
        cli("train_mlm", *argv, "--mask-rate", "0.2", "--out", tmp_path / "x"),
        "--causal hides no words",
        "--mask-rate",
    )
    assert (
        cli(
            "train_lm",
            *SHORT["train_lm"],
            "--members",
            2,
            "--steps",
            1,
            "--data",
            corpus,
            "--out",
            tmp_path / "two",
        ).code
        == 0
    )
    assert_complains(
        cli(
            "train_mlm",
            "--causal",
            "--init-from",
            tmp_path / "two",
            "--data",
            corpus,
            "--out",
            tmp_path / "x",
        ),
        "is an ensemble",
    )
