"""train_seq2seq.py and its runs: perplexities by hand, generation, infilling, translation, maps."""

import json
import math

import pytest
import sacrebleu
import torch
from helpers import SHORT, assert_complains, call, result_of, succeed, tiny_model, train

import model
from beyond import train_seq2seq
from data import spans
from data.corpus import hold_out
from data.files import read_lines
from data.source_target import DRAWS, fixed_batches
from data.tokenizer import BOS, EOS, PAD, encode
from lab import load_run
from lab.inside import answers
from lab.load import read_run
from lab.records import read_metrics
from nets.encoder_decoder import EncoderDecoder, generate

COUNTS = ("one un", "two deux", "three trois", "four quatre")
COLOURS = ("red rouge", "blue bleu", "black noir")
NOUNS = ("cats chats", "dogs chiens", "birds oiseaux", "mice souris")


def pair(number):
    """One of 192 phrases and its translation, in which the adjective follows the noun."""
    count, colour, noun, other = (
        words[number // step % len(words)].split()
        for words, step in ((COUNTS, 1), (COLOURS, 4), (NOUNS, 12), (NOUNS, 48))
    )
    return (
        f"{count[0]} {colour[0]} {noun[0]} and {other[0]} .",
        f"{count[1]} {noun[1]} {colour[1]} et {other[1]} .",
    )


TRANSLATE = (*SHORT["train_seq2seq"], *"--task translate --batch-size 16".split())
LEARN = (
    *"--n-embd 32 --n-ffn 64 --steps 250 --eval-every 125 --lr 0.01 --warmup 10".split(),
    *"--dropout 0 --valid 0.1 --pos rope".split(),
)


@pytest.fixture(scope="session")
def translator(tmp_path_factory):
    """(run folder, printed text) of a run that has learned to translate."""
    folder = tmp_path_factory.mktemp("translator")
    path = folder / "pairs.tsv"
    lines = ("\t".join(pair(number)) + "\n" for number in range(192))
    path.write_text("".join(lines), encoding="utf-8")
    done = succeed(call("train_seq2seq", *TRANSLATE, *LEARN, data=path, out=folder / "run"))
    return folder / "run", done.out


@torch.no_grad()
def losses_by_hand(model, source, target):
    """Minus the log probabilities of one target's ids, given one source."""
    logits = model(torch.tensor([[BOS, *target[:-1]]]), source=torch.tensor([source]))[0]
    return [-logits[t].log_softmax(-1)[i].item() for t, i in enumerate(target)]


# ------------------------------------------------------------------------------------------ numbers


def test_perplexity_of_infilling_is_that_by_hand(finished, corpus):
    folder = finished("train_seq2seq")
    loaded, result = read_run(folder), result_of(folder)
    flags, first = train_seq2seq.Flags(**loaded.config["flags"]), loaded.config["first_sentinel"]
    lines = read_lines(corpus / "test_LM_obama.txt")
    # --block-size 12
    pieces = [
        [BOS, *ids[i : i + 11]]
        for ids in encode(loaded.tokenizer, lines)
        for i in range(0, len(ids), 11)
    ]
    batches = fixed_batches([torch.tensor(ids) for ids in pieces], flags, first)
    nats, words, texts = [], [], []
    for source, mask, inputs, labels in batches:
        assert torch.equal(inputs[:, 1:], labels[:, :-1].where(labels[:, :-1] != -100, PAD))
        assert (inputs[:, 0] == BOS).all()
        for b in range(len(source)):
            target = [i for i in labels[b].tolist() if i != -100]
            texts.append(spans.restore(source[b][mask[b]].tolist(), target, first))
            found = losses_by_hand(loaded.model, source[b][mask[b]].tolist(), target)
            nats += found
            words += [loss for loss, i in zip(found, target) if i < first and i != EOS]
    assert sorted(texts) == sorted(pieces * DRAWS)  # every line, whole
    assert result["tokens/obama"] == len(nats) > len(words) > 0
    for metric, losses in (("perplexity", nats), ("perplexity_words", words)):
        expected = math.exp(sum(losses) / len(losses))
        assert result[f"{metric}/obama"] == pytest.approx(expected, rel=1e-4)
    names = {f"perplexity/{name}" for name in ("valid", "obama", "wbush", "hbush")}
    assert read_metrics(folder)[-1].keys() >= names


def test_all_runs_are_measured_on_the_same_gaps():
    examples = [torch.tensor([BOS, *range(10, 10 + n)]) for n in (5, 9, 30, 12)]
    one, other = (
        fixed_batches(examples, train_seq2seq.Flags(seed=seed, steps=seed), 100) for seed in (0, 1)
    )
    assert all(torch.equal(a, b) for batch, same in zip(one, other) for a, b in zip(batch, same))
    assert not torch.equal(one[0][0], one[1][0])  # each draw differs


def test_translation_learns_and_its_numbers_are_those_by_hand(translator):
    folder, out = translator
    loaded, result = read_run(folder), result_of(folder)
    _, heldout = hold_out([pair(number) for number in range(192)], 0.1, 0, key=lambda row: row[0])
    nats, outputs = [], []
    for source, target in heldout:
        ids, wanted = encode(loaded.tokenizer, [source, target])
        ids = [BOS, *ids]
        nats += losses_by_hand(loaded.model, ids, [*wanted, EOS])
        written = generate(loaded.model, torch.tensor([ids]), None, 12)[0].tolist()
        outputs.append(loaded.tokenizer.decode(written).replace(" .", "."))
    assert result["perplexity/test"] == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-4)
    assert result["tokens/test"] == len(nats)
    targets = [target for _, target in heldout]
    exact = [output == target.replace(" .", ".") for output, target in zip(outputs, targets)]
    assert result["exact/test"] == sum(exact) / len(exact) > 0.8
    for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
        score = metric.corpus_score(outputs, [targets]).score
        assert result[f"{name}/test"] == pytest.approx(score)
    assert "BLEU" in out and "source to target" in out.splitlines()[-1]
    assert "[S0]" not in loaded.tokenizer.get_vocab()
    assert set(targets[0].split()) <= loaded.tokenizer.get_vocab().keys()


def test_a_batch_is_translated_as_each_sentence_alone(translator):
    loaded, flags = read_run(translator[0]), train_seq2seq.Flags(block_size=12)
    texts = ["two red cats and mice .", "one blue", "black birds and dogs .", "three"]
    sources = [torch.tensor([BOS, *ids]) for ids in encode(loaded.tokenizer, texts)]

    def translate(*chosen):
        pairs, cpu = [(source, None) for source in chosen], torch.device("cpu")
        return train_seq2seq.translate(loaded.model, pairs, loaded.tokenizer, cpu, flags)

    assert translate(*sources) == [translate(source)[0] for source in sources]


def test_bleu_compares_with_the_targets_as_they_were_given(translator):
    text = "deux girafes noir et souris ."  # one of these words is unknown to the vocabulary
    found = train_seq2seq.score([text], [text], read_run(translator[0]).tokenizer)
    assert found["bleu"] == pytest.approx(100) and found["chrf"] == pytest.approx(100)


def test_folders_of_pairs_and_their_val_set(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    parts = {"train": range(40), "val": range(40, 50), "test_2016": range(50, 60)}
    for name, numbers in parts.items():
        for side, ending in enumerate(("en", "fr")):
            lines = [*(pair(number)[side] for number in numbers), "mice " * 60]
            (folder / f"{name}.{ending}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = [*TRANSLATE, *"--block-size 40 --tokenizer bpe --vocab-size 300".split()]
    at = argv.index("--valid")
    del argv[at : at + 2]  # the val files are the validation set
    given = dict(data=folder, languages="fr-en", out=tmp_path / "run")
    done = succeed(call("train_seq2seq", *argv, **given))
    assert "fr to en" in done.out
    assert "pairs of train longer than --block-size 40, left out: 1" in done.out
    assert "pairs of test_2016 longer than --block-size 40, truncated: 1" in done.out
    metrics = ("perplexity", "exact", "bleu", "chrf")
    measured = {f"{metric}/{part}" for metric in metrics for part in ("valid", "test_2016")}
    assert measured <= result_of(tmp_path / "run").keys()


# ---------------------------------------------------------------------------------------- bad input


def test_training_pairs_longer_than_a_block(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} {'x ' * 30}\t{n}\n" for n in range(40)))
    outcome = call("train_seq2seq", *TRANSLATE, data=tmp_path / "pairs.tsv", out=tmp_path / "run")
    assert_complains(outcome, "--block-size 12: every training pair is longer")
    assert not (tmp_path / "run").exists()


def test_pairs_without_the_task_are_recognised(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"a cat {n}\tun chat {n}\n" for n in range(40)))
    outcome = call("train_seq2seq", data=tmp_path / "pairs.tsv", out=tmp_path / "run")
    assert_complains(outcome, "pairs.tsv: expected at least two classes", "--task translate")


@pytest.mark.parametrize(
    "text, parts",
    [
        ("We hope.", ["no [MASK] found", "put one where"]),
        ("[MASK] a [MASK]", ["has 2 [MASK]s, more than the 1", "use fewer"]),
        ("[MASK]" + " we" * 20, [": has 22 tokens with [BOS]", "learned positions end at 12"]),
    ],
)
def test_a_text_that_cannot_be_filled(text, parts, finished):
    assert_complains(call("sample", finished("train_seq2seq"), text=text), *parts)


def test_a_mask_for_a_translator(translator):
    done = call("sample", translator[0], text="two [MASK] cats")
    assert_complains(done, "translates", "--task infill")


# --------------------------------------------------------------------------------------- generation


def tiny():
    return tiny_model(EncoderDecoder, pos="rope", block_size=16, n_ffn=0, init_std=0.8)


def test_generation_ends_when_every_row_has_ended():
    model = tiny()
    model.head.bias.data[EOS] = 1e4
    assert generate(model, torch.randint(5, 30, (3, 4)), None, 10).tolist() == [[EOS]] * 3
    words = iter(torch.tensor([[EOS, 9], [9, EOS], [9, 9]]))  # of two rows, at each step
    written = generate(model, torch.randint(5, 30, (2, 4)), None, 10, lambda _: next(words))
    assert written.tolist() == [[EOS, 9], [9, EOS]]
    # special tokens below [EOS] are never written, however likely
    model.head.bias.data[: EOS + 1] = torch.tensor([1e4, 1e4, 1e4, 1e4, -1e4])
    assert (generate(model, torch.randint(5, 30, (3, 4)), None, 7) > EOS).all()


def test_every_gap_is_filled_though_the_model_would_end():
    model, gen = tiny(), torch.Generator()
    source = torch.tensor([BOS, 7, 27, 8, 28, 9, 29])  # sentinels from 27 on
    model.head.bias.data[EOS], model.head.bias.data[12] = 1e4, 1e3
    one_word_each = [27, 12, 28, 12, 29, 12]
    assert answers.rewrite(model, source, 27, 20, 0, 50, gen) == one_word_each
    model.head.bias.data[EOS], model.head.bias.data[29] = 0, 1e4
    assert answers.rewrite(model, source, 27, 20, 0.8, 50, gen) == one_word_each
    model.head.bias.data[29] = -1e4
    # words are written as long as they are likelier than an end
    assert answers.rewrite(model, source, 27, 4, 0, 50, gen) == [27, 12, 12, 12]


def test_a_filled_sentence_keeps_what_was_typed(finished):
    ask = ("sample", finished("train_seq2seq"), "--text", "hope and [MASK] matter, my friends.")
    told = call(*ask, samples=2, temperature=1.5)
    again = call(*ask, samples=2, temperature=1.5)
    assert told.code == 0 and told.out == again.out
    heads, texts = told.out.splitlines()[::2], told.out.splitlines()[1::2]
    assert heads == ["--- most likely words", "--- sample 1", "--- sample 2"]
    assert len(set(texts)) == 3
    for text in texts:
        assert text.startswith("hope and") and text.endswith("matter, my friends.")
        assert "[S0]" not in text
    one = call(*ask, temperature=0)
    assert one.out.splitlines() == told.out.splitlines()[:2]


def test_a_translation_is_the_one_learned(translator):
    told = call("sample", translator[0], text="two blue dogs and mice.", temperature=0)
    assert told.out.splitlines() == ["--- most likely words", "deux chiens bleu et souris."]


def test_a_byte_level_gap_includes_the_space_before_it(corpus, tmp_path):
    flags = dict(tokenizer="bpe", vocab_size=300, pos="nope")
    train("train_seq2seq", **flags, data=corpus, out=tmp_path / "run")
    ask = dict(text="hope [MASK] work.", temperature=0, tokens=5)
    filled = succeed(call("sample", tmp_path / "run", **ask)).out.splitlines()[1]
    assert filled.startswith("hope") and filled.endswith(" work.")


# --------------------------------------------------------------------------------------------- maps


TWO_MAPS = ("1-hope-and-mask", "2-hope-and-change")


def test_gaps_of_a_map_are_those_typed_or_drawn(finished, tmp_path, figures):
    texts = ["hope and [MASK] matter", "hope and change matter"]
    run = finished("train_seq2seq")
    call("attention_maps", run, text=texts, out=tmp_path)
    report = json.loads((tmp_path / "maps.json").read_text())
    typed, gaps = (report[f"map-{name}-matter-{run.name}.png"]["runs"] for name in TWO_MAPS)
    assert typed[0]["queries"] == ["[BOS]", "hope", "and", "[S0]", "matter"]
    encoder, decoder, cross = gaps
    drawn, written = encoder["queries"], decoder["queries"]
    assert cross["keys"] == drawn
    assert written[:2] == ["[BOS]", "[S0]"] and cross["queries"] == written
    at = drawn.index("[S0]")
    whole = drawn[:at] + written[2:] + drawn[at + 1 :]
    assert whole == ["[BOS]", "hope", "and", "change", "matter"]


def test_a_map_shows_the_words_that_sample_fills_in(finished):
    run = load_run(finished("train_seq2seq"))
    run.model.head.bias[EOS] = 1e4  # one word, though the model would write none
    views = run.attention("hope and [MASK] zebra")
    assert views["encoder"].words == ["[BOS]", "hope", "and", "[S0]", "zebra*"]
    words = run.attention("hope and [MASK] matter")["decoder"].words
    assert words[:2] == ["[BOS]", "[S0]"] and len(words) == 3
    filled = run.sample("hope and [MASK] matter", temperature=0)[0]
    assert filled.replace(" ", "") == f"hopeand{words[2]}matter"


@pytest.mark.parametrize("memory_only", [False, True])
def test_maps_of_attention_to_padding_fail(translator, tmp_path, figures, monkeypatch, memory_only):
    right = model.attend

    def attend(q, k, v, bias=None, dropout=0.0):
        keeps = memory_only and q.size(2) == k.size(2)
        return right(q, k, v, bias if keeps else None, dropout)

    monkeypatch.setattr(model, "attend", attend)
    texts = ["two cats .", "one red cats and two blue dogs and cats ."]
    code, out, _ = call("attention_maps", translator[0], text=texts, out=tmp_path)
    assert code == 1
    before, _, cross = out.partition("cross-attention from decoder to source")
    assert "FAIL  no weight on padding" in cross and "FAIL  fused" in before
    assert ("FAIL  no weight on padding" in before) != memory_only


# --------------------------------------------------------------------------------------- comparison


def test_only_runs_of_one_task_are_compared(finished, translator, tmp_path):
    infill, out = finished("train_seq2seq"), tmp_path / "compare"
    told = succeed(call("compare", infill, out=out)).out
    assert "Encoder-decoder on tiny" in told and "perplexity obama" in told
    told = succeed(call("compare", translator[0], out=out)).out
    assert "exact (%) test" in told and "BLEU test" in told
    assert_complains(call("compare", infill, translator[0], out=out), "same data")
