"""RoBERTa against transformers: equal logits from random tiny models, and damaged folders."""

import json
import logging
import os
import shutil
from types import SimpleNamespace

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing may ask a network

from helpers import (
    SHORT,
    assert_complains,
    call,
    contents,
    edit,
    entry,
    succeed,
    swap,
    train,
    unchanged,
)
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram

from data import batching
from data.files import write_json
from data.tokenizer import BOS, EOS, MASK, SPECIAL, train_tokenizer
from lab.load import read_run
from lab.records import read_metrics, read_record
from model import Config, Encoder, LanguageModel
from nets.roberta import export_roberta, load_roberta
from nets.roberta_files import OURS

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)
transformers.utils.logging.disable_progress_bar()

WORDS = ["hope and change matter, my friends", "freedom and the ranch in texas"]
WORDS += ["a thousand points of light, a prudent gulf", "so let us work harder today."]
TEXTS = ["hope and <mask> matter", "the ranch", "a thousand points of light <mask> a gulf."]


def trained_tokenizer(last=("<mask>",)):
    """Train a byte-level BPE tokenizer with special tokens where RoBERTa has them."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, letters = ["<s>", "<pad>", "</s>", "<unk>"], pre_tokenizers.ByteLevel.alphabet()
    how = dict(special_tokens=special, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=300, **how))
    tokenizer.add_special_tokens([AddedToken(token, special=True, lstrip=True) for token in last])
    ends = ("</s>", 2), ("<s>", 0)
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return tokenizer


def write_folder(folder, tokenizer=None, cls="RobertaForMaskedLM", more_rows=0, **config):
    """Write a folder with save_pretrained; return its model, whose weights are all random."""
    tokenizer = tokenizer or trained_tokenizer()
    shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
    shape |= dict(max_position_embeddings=50, layer_norm_eps=1e-5) | config
    shape = transformers.RobertaConfig(vocab_size=tokenizer.get_vocab_size() + more_rows, **shape)
    model = getattr(transformers, cls)(shape).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny RoBERTa. Tests that change it copy it first."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("roberta") / "tiny"
    write_folder(path)
    return path


def read_here(tokenizer, texts):
    """Read texts as the scripts do: idx, mask (B, T)."""
    texts = [text.replace("<mask>", "[MASK]") for text in texts]
    return batching.pad(batching.sentences(tokenizer, texts, 99)[0])


def places(tokenizer, theirs):
    """(V,): the id there of each token here."""
    names = dict(zip(OURS.values(), OURS))
    tokens = (tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size()))
    return torch.tensor([theirs.convert_tokens_to_ids(names.get(token, token)) for token in tokens])


@torch.no_grad()
def compare_models(model, tokenizer, there, folder):
    """Check equal ids and logits of one padded batch; each side uses its own tokenizer."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    batch = theirs(TEXTS, padding=True, return_tensors="pt")
    idx, mask = read_here(tokenizer, TEXTS)
    to = places(tokenizer, theirs)
    assert torch.equal(mask, batch["attention_mask"].bool()) and not mask.all()
    assert torch.equal(to[idx], batch["input_ids"])
    expected = there(**batch).logits[..., to]
    assert expected[mask].std() > 0.1  # else anything would be near it
    torch.testing.assert_close(model(idx, mask)[mask], expected[mask], atol=1e-4, rtol=0)


# ---------------------------------------------------------------------------- in

SHAPES = {
    "as RoBERTa": {},
    "transformers' defaults": {"layer_norm_eps": 1e-12, "type_vocab_size": 2},
    "four heads": {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3},
    "a large epsilon": {"layer_norm_eps": 0.1},
    "relu": {"hidden_act": "relu"},
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


def test_special_tokens_get_our_ids_and_others_keep_their_order(tmp_path):
    write_folder(tmp_path, trained_tokenizer(last=("<mask>", "<later>")))
    _, tokenizer = load_roberta(tmp_path)
    there = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    words = sorted(there.get_vocab().keys() - OURS.keys(), key=there.token_to_id)
    names = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    assert names == [*SPECIAL, *words] and words[-1] == "<later>"
    ids = tokenizer.encode("hope and [MASK] matter <later>", add_special_tokens=False).ids
    assert MASK in ids and ids[-1] == tokenizer.get_vocab_size() - 1
    hope = tokenizer.encode("hope", add_special_tokens=False).ids
    assert read_here(tokenizer, ["hope"])[0][0].tolist() == [BOS, *hope, EOS]


@pytest.mark.parametrize("split", [False, True])
def test_sentences_end_with_eos_and_are_no_longer_than_the_block(split, folder):
    _, tokenizer = load_roberta(folder)
    text = "a thousand points of light and the ranch in texas"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    sequences, n_long = batching.sentences(tokenizer, [text], 6, split=split)
    assert n_long == 1 and all(len(s) <= 6 and s[0] == BOS and s[-1] == EOS for s in sequences)
    assert [i for s in sequences for i in s[1:-1].tolist()] == (ids if split else ids[:4])
    assert batching.sentences(tokenizer, [text], len(ids) + 2)[1] == 0


def test_an_older_folder_gives_the_same_model(folder, tmp_path):
    """As on the hub: vocab.json and merges.txt, a pooler, half precision, a copy of tied words."""
    old = shutil.copytree(folder, tmp_path / "old")
    new, tokenizer = load_roberta(folder)
    trained_tokenizer().model.save(str(old))
    vocabulary = json.loads((old / "vocab.json").read_text(encoding="utf-8"))
    write_json(old / "vocab.json", {"<mask>": len(vocabulary)} | vocabulary)
    (old / "tokenizer.json").unlink()
    tensors = load_file(old / "model.safetensors")
    words = tensors["roberta.embeddings.word_embeddings.weight"]
    tensors |= {
        "roberta.pooler.dense.weight": torch.zeros(16, 16),
        "roberta.embeddings.position_ids": torch.arange(50)[None],
        "lm_head.decoder.weight": words.clone(),
    }
    half = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    save_file(half, old / "model.safetensors")
    model, same = load_roberta(old)
    assert same.to_str() == tokenizer.to_str()
    assert model.body.config == new.body.config
    assert model.head.words is model.body.embedding
    for (name, a), b in zip(model.named_parameters(), new.parameters()):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0, msg=name)


def test_a_tokenizer_that_pads_and_cuts_by_itself_does_not_here(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    tokenizer = Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.enable_padding(length=30, pad_id=1, pad_token="<pad>")
    tokenizer.enable_truncation(3)
    tokenizer.save(str(other / "tokenizer.json"))
    assert load_roberta(other)[1].to_str() == load_roberta(folder)[1].to_str()


@pytest.mark.parametrize("cls", ["RobertaModel", "RobertaForSequenceClassification"])
def test_a_folder_without_an_lm_head_has_a_body(cls, tmp_path, corpus):
    there = write_folder(tmp_path / "there", cls=cls)
    model, tokenizer = load_roberta(tmp_path / "there", head=False)
    idx, mask = read_here(tokenizer, TEXTS)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    batch = theirs(TEXTS, padding=True, return_tensors="pt")
    expected = (there if cls == "RobertaModel" else there.roberta)(**batch).last_hidden_state
    torch.testing.assert_close(model.body(idx, mask)[mask], expected[mask], atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="holds no tensor lm_head.*RobertaForMaskedLM"):
        load_roberta(tmp_path / "there")
    outcome = call("train_mlm", init=tmp_path / "there", data=corpus, out=tmp_path / "run")
    assert_complains(outcome, "lm_head")
    assert not (tmp_path / "run").exists()
    given = dict(init=tmp_path / "there", data=corpus, epochs=1, out=tmp_path / "run")
    succeed(call("train_classifier", **given))


# ---------------------------------------------------------------------------- out


def random_run(tmp_path, kind="bpe", **config):
    """Return a model with random weights and its tokenizer, as read_run would."""
    tokenizer = train_tokenizer(kind, WORDS, 290 if kind == "bpe" else 0)
    sizes = dict(n_layer=2, n_head=2, n_embd=16, n_ffn=20, block_size=48)
    config = sizes | dict(norm_first=False, head="roberta") | config
    model = LanguageModel(Encoder(Config(vocab_size=tokenizer.get_vocab_size(), **config))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return SimpleNamespace(model=model, tokenizer=tokenizer, folder=tmp_path / "run")


RELU = {"activation": "relu", "tie": False}


@pytest.mark.parametrize("kind", ["bpe", "word"])
@pytest.mark.parametrize(
    "config", [{"n_head": 4, "n_embd": 24}, RELU, {"norm_eps": 0.1, "dropout": 0.3}]
)
def test_transformers_reads_what_is_written(kind, config, tmp_path):
    run = random_run(tmp_path, kind, **config)
    export_roberta(run, tmp_path / "out")
    there, told = transformers.RobertaForMaskedLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(told.values()), told
    assert not list((tmp_path / "out").glob("*.partial"))
    compare_models(run.model, run.tokenizer, there.eval(), tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.pad_token, theirs.mask_token) == ("<pad>", "<mask>")
    assert theirs.model_max_length == run.model.body.config.block_size
    # And back: the same model, with the same ids.
    model, tokenizer = load_roberta(tmp_path / "out")
    assert tokenizer.get_vocab() == run.tokenizer.get_vocab()
    assert vars(model.body.config) == vars(run.model.body.config)
    for (name, a), b in zip(model.named_parameters(), run.model.parameters()):
        assert torch.equal(a, b), name
    # without [EOS], as it was trained
    assert torch.equal(read_here(tokenizer, TEXTS)[0], read_here(run.tokenizer, TEXTS)[0])


NO_ROBERTA = [{"pos": "alibi"}, {"norm_first": True}, {"head": "linear"}, {"window": 3}]
NO_ROBERTA += [{"head": "clap", "unit_embd": True}, {"zero_mask": True}]


@pytest.mark.parametrize("config", NO_ROBERTA)
def test_a_run_that_is_no_roberta_is_not_written(config, tmp_path):
    told = ", ".join(f"{name}={value}" for name, value in config.items())
    with pytest.raises(ValueError, match=rf"{told}.*--pos learned --no-norm-first --head roberta"):
        export_roberta(random_run(tmp_path, **config), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------- in the scripts


def test_a_run_goes_out_and_in_again(corpus, finished, tmp_path):
    """Export a trained run and read it with --init: its perplexity is that of the run."""
    argv = ("--data", corpus, *SHORT["train_mlm"][-4:])
    learn = "--no-norm-first --steps 30 --lr 0.01 --warmup 3".split()
    train("train_mlm", *argv, *learn, out=tmp_path / "run")
    done = succeed(call("export", tmp_path / "run"))
    assert str(tmp_path / "run" / "roberta") in done.out
    given = dict(init=tmp_path / "run" / "roberta", steps=2, out=tmp_path / "on")
    succeed(call("train_mlm", *argv, **given))
    before, after = read_record(tmp_path / "run" / "result.json"), read_metrics(tmp_path / "on")
    assert after[0]["perplexity/valid"] == pytest.approx(before["perplexity/valid"], rel=1e-5)
    assert after[-1] != after[0]
    assert read_record(tmp_path / "on" / "config.json")["flags"]["n_embd"] == 16
    # A folder that holds something is left alone, and so is a run of another kind.
    there = contents(tmp_path / "run")
    new = tmp_path / "new"
    assert_complains(call("export", tmp_path / "run"), "is not empty")
    assert_complains(call("export", finished("train_mlm"), out=new), "norm_first=True")
    assert_complains(call("export", finished("train_lm"), out=new), "of kind 'lm'")
    assert contents(tmp_path / "run") == there and not new.exists()


def test_continuing_and_resuming_from_roberta(folder, corpus, tmp_path):
    argv = "--valid 0.2 --lr 0.01 --warmup 2 --eval-every 5 --batch-size 8 --steps 10".split()
    argv += ["--init", folder, "--data", corpus, "--out", tmp_path / "run"]
    succeed(call("train_mlm", *argv))
    first, _, last = read_metrics(tmp_path / "run")
    assert last["loss/valid"] < first["loss/valid"]
    succeed(call("train_mlm", *argv, "--resume"))
    loaded = read_run(tmp_path / "run")
    assert loaded.tokenizer.to_str() == load_roberta(folder)[1].to_str()
    # What was trained from RoBERTa can be written again.
    succeed(call("export", tmp_path / "run", out=tmp_path / "out"))
    there = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "out").eval()
    compare_models(loaded.model, loaded.tokenizer, there, tmp_path / "out")


@pytest.mark.parametrize(
    "argv", [(), ("--tune", "all"), ("--tune", "all", "--untrained"), ("--untrained",)]
)
def test_classifying_with_roberta_and_with_random_weights(argv, folder, corpus, tmp_path):
    short = "--epochs 3 --batch-size 8 --no-refit --seed 3".split()
    succeed(call("train_classifier", *argv, *short, init=folder, data=corpus, out=tmp_path / "run"))
    loaded, there = read_run(tmp_path / "run"), load_roberta(folder, head=False)[0]
    both = zip(loaded.model.body.parameters(), there.body.parameters())
    same = [torch.equal(a, b) for a, b in both]
    assert all(same) if argv == () else not any(same)
    gap = (loaded.model.body.embedding.weight - there.body.embedding.weight).abs().max()
    assert (gap > 0.3) == ("--untrained" in argv)  # fine-tuning moves the weights, but not far
    assert loaded.model.body.config == there.body.config


@pytest.mark.parametrize(
    "command, told",
    [
        ("train_mlm --init-from out/run", "leave --init-from out/run out"),
        ("train_mlm --vocab-from toy", "brings its vocabulary along; leave that out"),
        ("train_mlm --n-layer 3", "--n-layer 3: --init"),
        ("train_classifier --encoder out/run", "give one of them"),
        ("train_classifier --causal", "is an encoder"),
        ("train_classifier --n-layer 3", "--n-layer 3: --init"),
    ],
)
def test_flags_that_do_not_go_with_init(command, told, folder, corpus, tmp_path):
    outcome = call(*command.split(), init=folder, data=corpus, out=tmp_path / "run")
    assert_complains(outcome, told, "--init")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------- damaged folders

KEY = "roberta.encoder.layer.1.attention.self.key.weight"
EMBEDDING, BIAS = "roberta.embeddings.word_embeddings.weight", "lm_head.bias"


def in_tensors(change):
    def apply(folder):
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors")

    return apply


def in_file(name, how=None):
    return lambda folder: edit(folder / name, how)


def in_config(**values):
    return in_file("config.json", entry(**values))


def another_tokenizer(folder):
    tokenizer = Tokenizer(Unigram([(token, 0.0) for token in [*OURS, "a"]], 1))
    tokenizer.save(str(folder / "tokenizer.json"))


def only_bin(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


NO_NUMBERS = f"{KEY} does not hold finite floating-point numbers"
WRONG = {  # what is done to a folder, and what the message says
    "missing tensor": (in_tensors(lambda t: t.pop(KEY)), f"holds no tensor {KEY}", "restore"),
    "an output but no words": (
        in_tensors(lambda t: t.update({"lm_head.decoder.weight": t.pop(EMBEDDING)})),
        f"holds no tensor {EMBEDDING}",
        "restore",
    ),
    "missing bias": (in_tensors(lambda t: t.pop(BIAS)), f"no tensor {BIAS}", "ForMaskedLM"),
    "other shape": (
        in_tensors(lambda t: t.update({KEY: torch.zeros(16, 8)})),
        f"{KEY} is (16, 8), but (16, 16) in config.json",
    ),
    "not a number": (in_tensors(lambda t: t[KEY][0].fill_(torch.nan)), NO_NUMBERS),
    "whole numbers": (in_tensors(lambda t: t.update({KEY: t[KEY].long()})), NO_NUMBERS),
    "more layers": (in_config(num_hidden_layers=1), "er.1", "no place in the 1 layers"),
    "other model": (in_config(model_type="bert"), "model_type is 'bert'", "only 'roberta'"),
    "other activation": (in_config(hidden_act="gelu_new"), "is 'gelu_new'", "'gelu' or 'relu'"),
    "relative positions": (in_config(position_embedding_type="relative_key"), "is 'relative_key'"),
    "decoder": (in_config(is_decoder=True), "is_decoder is True"),
    "width in words": (in_config(hidden_size="16"), "hidden_size must be a whole number"),
    "heads": (in_config(num_attention_heads=3), "config.json: n_head must divide"),
    "vast layers": (in_config(num_hidden_layers=10**7), "too few for the 10,000,000 layers"),
    "beyond all": (in_config(hidden_size=10**12), "a whole number from 1 to 16,777,216"),
    "epsilon in words": (in_config(layer_norm_eps="small"), "must be a number", "restore"),
    "all dropped": (in_config(hidden_dropout_prob=1.0), "hidden_dropout_prob must be"),
    "small vocabulary": (in_config(vocab_size=100), "has ids up to", "vocab_size 100"),
    "other padding": (in_config(pad_token_id=0), "<pad> is 1", "pad_token_id 0"),
    "one position": (in_config(max_position_embeddings=4), "max_position_embeddings 4"),
    "no config": (in_file("config.json"), "config.json: no such file"),
    "cut config": (in_file("config.json", lambda c: c[:40]), "config.json: not valid JSON"),
    "no weights": (in_file("model.safetensors"), "safetensors: no such file", "whole model"),
    "cut weights": (in_file("model.safetensors", lambda c: c[:-30]), "not a readable safetensors"),
    "pickled weights": (only_bin, "no such file, only pytorch_model.bin", "save_pretrained"),
    "no tokenizer": (in_file("tokenizer.json"), "no such file, nor vocab.json with merges.txt"),
    "cut tokenizer": (in_file("tokenizer.json", lambda c: c[:100]), "not a tokenizer file"),
    "no mask": (in_file("tokenizer.json", swap(b"<mask>", b"<hide>")), "has no token <mask>"),
    "other kind of tokenizer": (another_tokenizer, "is of type Unigram", "only BPE"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_folder_that_is_wrong(wrong, folder, corpus, tmp_path):
    change, *parts = WRONG[wrong]
    copy = shutil.copytree(folder, tmp_path / "wrong")
    change(copy)
    with unchanged(copy):
        outcome = call("train_mlm", "--init", copy, "--data", corpus, "--out", tmp_path / "run")
        assert_complains(outcome, copy, *parts)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there_or_a_run(corpus, finished, tmp_path):
    folders = {tmp_path / "nowhere": "no such folder", finished("train_mlm"): "--init-from"}
    for script in ("train_mlm", "train_classifier"):
        for path, told in folders.items():
            outcome = call(script, init=path, data=corpus, out=tmp_path / "run")
            assert_complains(outcome, told, path)
