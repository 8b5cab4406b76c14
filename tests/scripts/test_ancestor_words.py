"""ancestor_words.py: a cache of the ancestors' words, beside the reader of train_thread.py."""

import json
import shutil

import pytest
import torch
from helpers import assert_complains, call, result_of, succeed, train, write_posts

from data.corpora.threads import Tree
from data.files import write_json
from data.forest import Forest
from data.tokenizer import train_tokenizer
from studies import ancestor_words

# Whose words are repeated below them, in another tree they are others
TREES = [Tree([f"a {w} {w} post", f"one {w} b", f"{w} c"], [-1, 0, 1]) for w in ("cat", "dog")]


def test_frequencies_are_counted_in_the_ancestors():
    tokenizer = train_tokenizer("word", [text for tree in TREES for text in tree.texts])
    where = Forest(TREES, tokenizer, 9, 3, 5)
    labels = where.comments([2])[0]  # [BOS] cat c
    labels[:, 0] = -100
    own, other = (
        ancestor_words.frequencies(where, [2], labels, chains)
        for chains in (where.chains, where.others)
    )
    assert own == pytest.approx([3 / 7, 0]) and other == pytest.approx([0, 0])
    assert where.repeated([2], labels).tolist() == [True, False]
    nats = ancestor_words.mixed(torch.tensor([2.0, 1.0]), torch.tensor(own), 0.1)
    assert nats.exp().tolist() == pytest.approx(
        [1 / (0.9 * 0.13534 + 0.1 * 3 / 7), 1 / (0.9 * 0.36788)], rel=1e-4
    )


def test_the_views_are_those_of_the_run(tmp_path):
    posts = (
        (f"post {n} of a {word}", ("a", None, f"{word} {word} {word} {n % 5}"))
        for n, word in enumerate(["cat", "dog", "hen", "owl"] * 15)
    )
    data = write_posts(tmp_path / "posts.jsonl", posts)
    train("train_thread", data=data, out=tmp_path / "run")
    runs = (tmp_path / "run", "--out", tmp_path / "words")
    succeed(call("ancestor_words", *runs))
    (found,) = result_of(tmp_path / "words")["runs"].values()
    result = result_of(tmp_path / "run")
    for view, words in ancestor_words.VIEWS.items():
        expected = [result[f"perplexity/test-{view}{group}"] for group in ("", "-repeated")]
        assert found[words] == pytest.approx(expected, rel=1e-4)
    assert found["count"] == [result["tokens/test"], result["tokens/test-repeated"]]
    assert found["cache of its ancestors"][0] < 0.9 * found["alone"][0]

    other = shutil.copytree(tmp_path / "run", tmp_path / "other")
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    write_json(other / "config.json", config | {"flags": config["flags"] | {"mask_rate": 0.5}})
    refused = call("ancestor_words", tmp_path / "run", other)
    assert_complains(refused, f"{other}: differs from", "leave it out")
    (other / "result.json").unlink()
    assert_complains(call("ancestor_words", other), f"{other}: not finished")
