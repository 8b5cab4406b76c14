"""RoBERTa against transformers: equal states and logits of random tiny models, in and out."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT, call, succeed
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

from beyond import export
from data.batching import pad, sentences
from data.files import UserError, write_json
from data.leaks import write_hashes
from data.tokenizer import EOS, encode, train_tokenizer
from lab.load import read_metrics, read_result, read_run
from nets.build import Options, build_model
from nets.roberta import OURS, load_roberta

transformers = pytest.importorskip("transformers", reason="the extra beyond is not installed")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = ["hope and change matter, my friends", "a thousand points of light, a prudent gulf"]
TEXTS = ["hope and <mask> matter", "the ranch", "a thousand points of light <mask> a gulf."]


def trained_tokenizer():
    """Train a byte-level BPE tokenizer with special tokens where RoBERTa has them."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, letters = ["<s>", "<pad>", "</s>", "<unk>"], pre_tokenizers.ByteLevel.alphabet()
    how = dict(special_tokens=special, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=300, **how))
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True)])
    ends = ("</s>", 2), ("<s>", 0)
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return tokenizer


def write_folder(folder, cls="RobertaForMaskedLM", more_rows=0, **config):
    """Write a folder with save_pretrained; return its model, whose weights are all random."""
    tokenizer = trained_tokenizer()
    shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
    shape |= dict(max_position_embeddings=50, layer_norm_eps=1e-5) | config
    shape = transformers.RobertaConfig(vocab_size=tokenizer.get_vocab_size() + more_rows, **shape)
    model = getattr(transformers, cls)(shape).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def read_here(tokenizer, texts):
    """Read texts as the scripts do: idx, mask (B, T)."""
    texts = [text.replace("<mask>", "[MASK]") for text in texts]
    return pad(sentences(tokenizer, texts, 99)[0])


@torch.no_grad()
def compare_models(model, tokenizer, there, folder):
    """Check equal ids and logits of one padded batch; each side uses its own tokenizer."""
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>", mask_token="<mask>"
    )
    batch = theirs(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    idx, mask = read_here(tokenizer, TEXTS)
    names = dict(zip(OURS.values(), OURS))
    tokens = (tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size()))
    to = torch.tensor([theirs.convert_tokens_to_ids(names.get(token, token)) for token in tokens])
    assert torch.equal(mask, batch["attention_mask"].bool()) and not mask.all()
    assert torch.equal(to[idx], batch["input_ids"])
    expected = there(**batch).logits[..., to]
    assert expected[mask].std() > 0.1  # else anything would be near it
    torch.testing.assert_close(model(idx, mask)[mask], expected[mask], atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------- in

SHAPES = {
    "as RoBERTa": {},
    "four heads, two token types": {"num_attention_heads": 4, "type_vocab_size": 2},
    "relu, a large epsilon": {"hidden_act": "relu", "layer_norm_eps": 0.1},
    "an output of its own": {"tie_word_embeddings": False},
    "rows that no token has": {"more_rows": 7},
}


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_logits_are_those_of_transformers(config, tmp_path):
    there = write_folder(tmp_path, **config)
    model, tokenizer = load_roberta(tmp_path)
    assert not model.training
    V = there.config.vocab_size - config.get("more_rows", 0)
    assert tokenizer.get_vocab_size() == model.body.config.vocab_size == V
    assert model.body.config.block_size == there.config.max_position_embeddings - 2
    compare_models(model, tokenizer, there, tmp_path)


def test_the_second_of_two_sentences_is_read_as_a_first_one(tmp_path):
    """As transformers' tokenizer(a, b): no space belongs to either."""
    write_folder(tmp_path)
    _, tokenizer = load_roberta(tmp_path)
    pair = trained_tokenizer().encode("hope", "a gulf")
    (both,), (a,), (b,) = (encode(tokenizer, [t]) for t in ("hope [EOS] a gulf", "hope", "a gulf"))
    assert both == [*a, EOS, EOS, *b]  # as theirs, <s> a </s></s> b </s>
    assert [OURS.get(token, token) for token in pair.tokens] == [
        "[BOS]", *map(tokenizer.id_to_token, both), "[EOS]"
    ]  # fmt: skip


def test_a_folder_without_an_lm_head_has_a_body(tmp_path):
    there = write_folder(tmp_path, cls="RobertaForSequenceClassification").roberta
    model, tokenizer = load_roberta(tmp_path, head=False)
    idx, mask = read_here(tokenizer, TEXTS)
    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for row, text in enumerate(TEXTS):
        theirs = torch.tensor([ids.encode(text).ids])
        expected, found = there(theirs).last_hidden_state[0], model.body(idx, mask)[row, mask[row]]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="no weights lm_head.*RobertaForMaskedLM"):
        load_roberta(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path):
    write_folder(tmp_path)
    write_json(tmp_path / "config.json", {"kind": "mlm"})
    for name in (tmp_path, tmp_path / "nowhere", "no-such-model"):  # the last is not asked for
        with pytest.raises(UserError, match=f"{name}: is no RoBERTa.*--init-from"):
            load_roberta(name)
    write_json(tmp_path / "config.json", {"model_type": "gpt2"})
    with pytest.raises(UserError, match="it is a gpt2"):
        load_roberta(tmp_path)


def test_without_transformers_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"package transformers; install .*\[beyond\]"):
        load_roberta(tmp_path)


# ---------------------------------------------------------------------------- out


def random_run(tmp_path, kind="bpe", **config):
    """Return a model with random weights and its tokenizer, as read_run would."""
    tokenizer = train_tokenizer(kind, WORDS, 290 if kind == "bpe" else 0)
    sizes = dict(n_layer=2, n_head=2, n_embd=16, n_ffn=20, block_size=48)
    config = sizes | dict(norm_first=False, head="roberta") | config
    model = build_model("mlm", Options(vocab_size=tokenizer.get_vocab_size(), **config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return SimpleNamespace(model=model, tokenizer=tokenizer, folder=tmp_path / "run")


@pytest.fixture
def write(monkeypatch):
    def write_run(run, folder):
        monkeypatch.setattr(export, "read_run", lambda *_: run)
        export.export(export.Flags("run", str(folder)))

    return write_run


RELU = {"activation": "relu", "tie": False, "norm_eps": 0.1}


@pytest.mark.parametrize("kind, config", [("word", RELU), ("bpe", {"n_head": 4, "dropout": 0.3})])
def test_transformers_reads_what_is_written(kind, config, tmp_path, write):
    run, out = random_run(tmp_path, kind, **config), tmp_path / "out"
    run.folder.mkdir(exist_ok=True)
    write_hashes(run.folder, [])
    write(run, out)
    there, told = transformers.RobertaForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not any(told.values()), told
    compare_models(run.model, run.tokenizer, there.eval(), out)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert (theirs.pad_token, theirs.mask_token) == ("<pad>", "<mask>")
    assert theirs.model_max_length == run.model.body.config.block_size
    # And back: the same model, with the same ids.
    model, tokenizer = load_roberta(out)
    assert tokenizer.get_vocab() == run.tokenizer.get_vocab()
    assert vars(model.body.config) == vars(run.model.body.config)
    for (name, a), b in zip(model.named_parameters(), run.model.parameters()):
        assert torch.equal(a, b), name
    # without [EOS], as it was trained
    assert torch.equal(read_here(tokenizer, TEXTS)[0], read_here(run.tokenizer, TEXTS)[0])
    with pytest.raises(UserError, match="is not empty"):
        write(run, out)


NO_ROBERTA = [{"pos": "alibi"}, {"norm_first": True}, {"head": "linear"}, {"window": 3}]


@pytest.mark.parametrize("config", [*NO_ROBERTA, {"head": "clap"}, {"zero_mask": True}])
def test_a_run_that_is_no_roberta_is_not_written(config, tmp_path, write):
    told = ", ".join(f"{name}={value}" for name, value in config.items())
    with pytest.raises(UserError, match=rf"{told}.*--pos learned --no-norm-first --head roberta"):
        write(random_run(tmp_path, **config), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_goes_out_and_in_again(finished, corpus, tmp_path):
    argv = "--pos learned --no-norm-first --head roberta --lr 0.01".split()
    run = finished("train_mlm", *argv)
    done = succeed(call("beyond.export", run, out=tmp_path / "roberta"))
    modes = {path.stat().st_mode for path in (tmp_path / "roberta").iterdir()}
    assert modes == {(run / "config.json").stat().st_mode}  # as the user's umask says
    assert "AutoModelForMaskedLM.from_pretrained" in done.out
    given = dict(init=tmp_path / "roberta", data=corpus, valid=0.2)
    succeed(call("train_mlm", **given, steps=0, out=tmp_path / "on"))
    expected = read_result(run)["perplexity/valid"]
    assert read_metrics(tmp_path / "on")[0]["perplexity/valid"] == pytest.approx(expected, rel=1e-5)
    succeed(call("train_classifier", **given, epochs=1, out=tmp_path / "frozen"))
    frozen, encoder = read_run(tmp_path / "frozen").model.body, read_run(run).model.body
    for a, b in zip(frozen.parameters(), encoder.parameters()):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_a_name_is_read_from_the_local_cache(tmp_path):
    """In a process of its own, since the hub's library reads its settings once."""
    home = tmp_path / "hub" / "models--me--tiny"
    write_folder(home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    code = (
        "from nets.roberta import load_roberta; print(load_roberta('NAME')[0].head.bias.tolist())"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    found = [
        subprocess.run(
            [sys.executable, "-c", code.replace("NAME", name)],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for name in ("me/tiny", str(home / "snapshots" / "abc"))
    ]  # fmt: skip
    assert found[0] == found[1] and len(found[0]) > 1000
    with pytest.raises(UserError, match="--init me/other: is no RoBERTa"):
        load_roberta("me/other")
