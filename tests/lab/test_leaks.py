"""--split: nothing that a run starts from was made with the sentences that it removes."""

import shutil

import pytest
from helpers import SIZE, TINY, call, fails, succeed

import data
from data.leaks import hashes, read_hashes, split_corpus

pytestmark = pytest.mark.slow

# Each is made in this order in one folder. again/ and again.txt are the corpus at other paths
MADE = {
    "full": "train_lm --data again",
    "words": "train_lm --data other.txt --vocab-from again",
    "masked": "train_mlm --data other.txt --vocab-from again --valid 0.2",
    "chain": "train_lm --data other.txt --init-from words",
    "prepared": "data.prepare other.txt --vocab-from full --valid 0",
    "blocks": "train_lm --data prepared",
    "other": "train_lm --data other.txt",
    "clean": "train_mlm --data again --split clean --valid 0.2",
    "third": "train_mlm --data again --split 1/3 --valid 0.2",
}


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaks")
    shutil.copytree(corpus, folder / "again")
    shutil.copy(corpus / "train_LM.txt", folder / "again.txt")
    (folder / "other.txt").write_text("".join(f"we want other things {n} .\n" for n in range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, command in MADE.items():
            tiny = [] if "prepare" in command else TINY
            succeed(call(*command.split(), *tiny, out=name))
        yield folder


def classify(corpus, **flags):
    argv = ("--data", corpus, *SIZE, "--epochs", 1, "--valid", 0.2, "--overwrite", "--out", "run")
    return call("train_classifier", *argv, **flags)


def test_a_run_records_what_made_it_and_what_it_starts_from(made):
    read = {name: set(read_hashes(made / name).tolist()) for name in MADE}
    for name, split in dict(other="full", full="full", clean="clean").items():
        path = "other.txt" if name == "other" else "again"
        texts = split_corpus(data.load(path), split)[0].texts()
        assert read[name] == set(hashes(texts).tolist())
    assert read["words"] == read["masked"] == read["chain"] == read["other"] | read["full"]
    assert read["prepared"] == read["blocks"] > read["full"]


@pytest.mark.parametrize("name", ["full", "words", "masked", "chain", "blocks"])
def test_a_start_from_test_sentences_is_refused(name, made, corpus):
    whole, (clean, _, _) = data.load(corpus), split_corpus(data.load(corpus), "clean")
    leaks = set(whole.texts()) - set(clean.texts())
    found = fails(classify(corpus, encoder=name, split="clean"), f"--encoder {name}: was made")
    assert f"with {len(leaks)} of the sentences" in found and "the same --split" in found
    assert not (made / "run" / "config.json").exists()


def test_so_are_other_scripts_vocabularies_and_exported_encoders(made, corpus):
    argv = (*TINY, "--data", corpus, "--split", "clean", "--out", "run")
    fails(call("train_lm", *argv, init_from="full"), "--init-from full: was made")
    fails(call("train_lm", *argv, vocab_from="again.txt"), "--vocab-from again.txt: was made")
    fails(classify(corpus, encoder="clean", split="1/3"), "--encoder clean: was made with")
    pytest.importorskip("transformers", reason="the extra beyond is not installed")
    succeed(call("train_mlm", *TINY, "--no-norm-first", data="again.txt", valid=0.2, out="bert"))
    succeed(call("beyond.export", "bert", out="hub"))
    fails(classify(corpus, init="hub", split="clean"), "--init hub: was made with")


def test_other_texts_and_the_same_split_are_allowed(made, corpus):
    for encoder, split in dict(other="clean", clean="clean", third="1/3", full="full").items():
        succeed(classify(corpus, encoder=encoder, split=split))
