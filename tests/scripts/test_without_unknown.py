"""without_unknown.py: <unk> and [UNK] are read, but not counted."""

import math

import pytest
from helpers import call, result_of, succeed, train

from data.tokenizer import train_tokenizer
from studies.without_unknown import encode

LINES = ["A <unk> of <unk> , they said .", "<unk> it was", "No word is missing", "zebra <unk>"]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_known_tokens_spell_the_text_without_unk(kind):
    tokenizer = train_tokenizer(kind, LINES[:3] * 9, 300 if kind == "bpe" else 0)
    ids, known = encode(tokenizer, LINES)
    text = tokenizer.decode(ids[1:][known].tolist())
    expected = " ".join(LINES).replace("<unk>", "").replace("zebra", "zebra" * (kind == "bpe"))
    assert text.split() == expected.split()
    special = [line.replace("<unk>", "[UNK]") for line in LINES]  # as data/corpora/wikitext.py does
    ids, known = encode(tokenizer, special)
    assert tokenizer.decode(ids[1:][known].tolist(), skip_special_tokens=False) == text


def test_perplexities_of_a_run_on_text_with_unk(own_corpus, tmp_path):
    for path in own_corpus.glob("t*_LM*.txt"):
        text = path.read_text(encoding="utf-8").replace("and ", "<unk> ")
        path.write_text(text, encoding="utf-8")
    flags = dict(anchor=True, tokenizer="bpe", vocab_size=300, steps=60, lr=0.01)
    train("train_lm", **flags, data=own_corpus, out=tmp_path / "run")
    succeed(call("without_unknown", tmp_path / "run", out=tmp_path / "unknown"))
    (found,) = result_of(tmp_path / "unknown")["runs"].values()
    result, texts = result_of(tmp_path / "run"), sorted(own_corpus.glob("test_LM_*.txt"))
    names = [path.stem.removeprefix("test_LM_") for path in texts]
    tokens = sum(result[f"tokens/{name}"] for name in names)
    nats = sum(result[f"tokens/{n}"] * math.log(result[f"perplexity/{n}"]) for n in names)
    lines = [line for path in texts for line in path.read_text(encoding="utf-8").splitlines()]
    words = sum(len(line.split()) + 1 for line in lines)
    assert found["perplexity"][0] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert found["per word"][0] == pytest.approx(math.exp(nats / words), rel=1e-4)
    assert found["without"][0] > found["perplexity"][0] and 0.05 < found["share"][0] < 0.5
