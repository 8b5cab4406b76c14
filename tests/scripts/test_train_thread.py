"""The reader of comments and their ancestors, and train_thread.py."""

import math
from functools import partial

import pytest
import torch
from helpers import (
    SHORT,
    TINY,
    assert_complains,
    call,
    result_of,
    succeed,
    tiny_model,
    train,
    write_posts,
)

from beyond import train_thread
from data.corpora import toy_threads
from data.corpora.threads import Tree, load_threads
from data.corpus import hold_out
from data.forest import Forest
from data.masked_comments import VIEWS, fixed_batches, sum_by_group
from data.tokenizer import BOS, UNK, encode, train_tokenizer
from lab.load import read_run
from lab.parameters import count_parameters
from lab.records import read_metrics
from model import POSITIONS, sinusoids
from nets.thread_reader import ThreadReader

#  p0 ── a1 ── b2 ── d4        and a second tree
#         └── c3
#   └── e5
TREES = [
    Tree(
        ["the post here", "a one two", "b three", "c four five six", "d two four", "e six"],
        [-1, 0, 1, 1, 2, 0],
    ),
    Tree(["another post", "f one", "g two five four one"], [-1, 0, 1]),
]


def reader(pos="learned", ancestor_positions="learned"):
    body = partial(ThreadReader, n_ancestors=3, ancestor_positions=ancestor_positions)
    return tiny_model(body, vocab_size=40, block_size=9, init_std=0.4, pos=pos)


def forest(trees=TREES, block_size=9, n_ancestors=3, max_tree_size=5):
    tokenizer = train_tokenizer("word", [text for tree in trees for text in tree.texts])
    return Forest(trees, tokenizer, block_size, n_ancestors, max_tree_size)


def states(model, where, rows):
    """{row: states without padding} of these comments, read in one batch."""
    idx, mask = where.comments(rows)
    h = model.body(idx, mask, **where.above(rows, where.chains))
    return {row: state[real] for row, state, real in zip(rows, h, mask)}


# ---------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("ancestor_positions", ThreadReader.ANCESTOR_POSITIONS)
@pytest.mark.parametrize("pos", POSITIONS)
def test_a_batch_gives_the_states_of_its_comments_one_by_one(pos, ancestor_positions):
    model, where = reader(pos, ancestor_positions), forest()
    found, body = states(model, where, [1, 2, 3, 4, 5, 7, 8]), model.body
    tables = {
        "none": torch.zeros(3, 16),
        "learned": body.positions.weight if ancestor_positions == "learned" else None,
        "sinusoidal": sinusoids(3, 16),
    }
    for row, chain in ((1, [0]), (2, [1, 0]), (4, [2, 1, 0]), (5, [0]), (8, [7, 6])):
        # one text at a time, without padding
        vectors = torch.stack([body.encoder(where.sequences[a][None])[0].mean(0) for a in chain])
        alone = body.decoder(
            where.sequences[row][None],
            memory=(vectors + tables[ancestor_positions][: len(chain)])[None],
        )[0]
        torch.testing.assert_close(found[row], alone, atol=2e-5, rtol=1e-4)
    # without its ancestors it differs
    assert not torch.allclose(found[4], body(where.sequences[4][None])[0], atol=1e-2)


def test_both_halves_share_embeddings_and_every_part_learns():
    model, where = reader(), forest()
    assert model.body.encoder.embedding is model.body.decoder.embedding is model.head.words
    idx, mask = where.comments([4, 8])
    model.loss(idx, idx, mask, **where.above([4, 8], where.chains)).backward()
    assert all(
        p.grad is not None and p.grad.any()
        for name, p in model.named_parameters()
        if not name.endswith("positions.weight") or "body.positions" in name
    )
    parts = count_parameters(model)
    assert parts["positions"] == (9 + 9 + 3) * 16 and parts["embedding"] == 40 * 16


# -------------------------------------------------------------------------------------- the batches


def test_a_text_with_several_answers_is_read_once():
    where = forest()
    read = where.above([2, 3, 4], where.chains)
    assert len(read["texts"]) == 3
    assert read["ancestors"].shape == (3, 3)
    assert read["ancestors_mask"].tolist() == [[True, True, False]] * 2 + [[True] * 3]
    texts = [row[real].tolist() for row, real in zip(read["texts"], read["texts_mask"])]
    for row, ancestors, real in zip([2, 3, 4], read["ancestors"], read["ancestors_mask"]):
        assert [texts[a] for a in ancestors[real]] == [
            where.sequences[a].tolist() for a in where.chains[row]
        ]
    # the nearest ancestors are kept
    assert forest(n_ancestors=1).chains[4] == [2] and forest(n_ancestors=2).chains[4] == [2, 1]


def test_each_comment_has_one_piece_and_a_control_elsewhere():
    trees = [Tree(*tree) for tree in toy_threads.generate(30)]
    where = forest(trees, max_tree_size=4, block_size=32)
    tree_of = [k for k, tree in enumerate(trees) for _ in tree.texts]
    posts = [row for row, chain in enumerate(where.chains) if not chain]
    assert sorted(row for piece in where.pieces for row in piece) == [
        row for row in range(len(tree_of)) if row not in posts
    ]
    assert len(posts) == 30 < len(where.pieces)
    for row, (own, other) in enumerate(zip(where.chains, where.others)):
        if own:
            assert other
            assert {tree_of[a] for a in own} == {tree_of[row]}
            assert len({tree_of[a] for a in other}) == 1
            assert tree_of[other[0]] != tree_of[row]
            beside = zip(where.chains, tree_of)
            deepest = max(len(chain) for chain, k in beside if k == tree_of[other[0]])
            assert len(other) == min(len(own), deepest)


def test_the_deepest_comments_are_counted_together():
    thread = Tree([f"word {i}" for i in range(9)], [-1, *range(8)])  # depths 1 to 8
    labels = torch.tensor([[-100, 7]] * 8)
    losses, again = torch.ones(8).double(), torch.zeros(8, dtype=torch.bool)
    sums = sum_by_group(forest([thread]), list(range(1, 9)), labels, losses, again)
    assert sums.tolist() == [[1, 1, 1, 1, 1, 3, 0]] * 2


def test_the_masks_are_the_same_for_every_seed_and_view():
    where = forest()
    (batch,) = fixed_batches(where, train_thread.Flags(seed=0), 40, None)
    (again,) = fixed_batches(where, train_thread.Flags(seed=1), 40, None)
    rows, inputs, mask, labels, views = batch
    assert torch.equal(inputs, again[1])
    assert torch.equal(labels, again[3])
    assert sorted(rows) == [1, 2, 3, 4, 5, 7, 8]
    assert list(views) == list(VIEWS)
    assert views["alone"] == {}
    assert not (labels[~mask] != -100).any()
    assert ((labels != -100).sum(1) >= 1).all()
    for row, shown, real, label in zip(rows, inputs, mask, labels):
        whole = torch.where(label != -100, label, shown)[real]
        assert torch.equal(whole, where.sequences[row])


# --------------------------------------------------------------------------------------- the script


ANIMALS = ["cat", "dog", "hen", "cow", "owl", "fox", "bee", "ant"]


@pytest.fixture(scope="module")
def echoes(tmp_path_factory):
    """60 posts with two replies each, one of which is answered; all repeat the post's animal.

    So a comment's ancestors tell the animal, and those of another tree do not.
    """
    posts = []
    for n in range(60):
        animal, other = ANIMALS[n % 8], ANIMALS[(n // 8 + n) % 8]
        first = ("a", None, f"a {animal} , a {other} ?")
        second = ("b", "a", f"> quoted\nyes a {other} !")
        third = ("c", None, f"the {animal} number {n % 5}")
        posts.append((f"my {animal} and a {other}", first, second, third))
    return write_posts(tmp_path_factory.mktemp("threads") / "echoes.jsonl", posts)


def test_from_a_pretrained_encoder(echoes, finished, tmp_path):
    given = dict(init_from=finished("train_mlm"), data=echoes, steps=0, out=tmp_path / "run")
    succeed(call("train_thread", *"--valid 0.2 --test 0.2".split(), **given))
    loaded, pretrained = read_run(tmp_path / "run"), read_run(finished("train_mlm"))
    assert loaded.tokenizer.to_str() == pretrained.tokenizer.to_str()
    idx = torch.randint(4, 40, (3, 9))
    expected = pretrained.model.body(idx)
    torch.testing.assert_close(loaded.model.body.encoder(idx), expected)
    torch.testing.assert_close(loaded.model(idx), pretrained.model.head(expected))
    succeed(call("train_thread", **given | {"data": "toy", "out": tmp_path / "toy"}))
    assert not any("floor" in name for name in result_of(tmp_path / "toy"))  # other words
    wrong = call("train_thread", init_from=finished("train_lm"), data=echoes, out=tmp_path / "no")
    assert_complains(wrong, "--init-from", "train_mlm.py")
    two = call("train_thread", init_from=finished("train_tlm"), data=echoes, out=tmp_path / "no")
    assert_complains(two, "--init-from", "reads two languages")


def test_ancestors_tell_the_word_and_another_trees_do_not(tmp_path):
    posts = (
        (f"{animal} {n % 9} {n // 9 % 9} {n // 81}", ("a", None, animal), ("b", "a", animal))
        for n, animal in enumerate(ANIMALS[i] for i in torch.randint(8, (240,)))
    )
    learn = "--n-embd 32 --steps 150 --eval-every 150 --lr 0.01 --warmup 20".split()
    argv = (*TINY, *learn, "--data", write_posts(tmp_path / "same.jsonl", posts))
    succeed(call("train_thread", *argv, out=tmp_path / "run"))
    result = result_of(tmp_path / "run")
    ancestors, alone, shuffled = (result[f"perplexity/test-{view}"] for view in VIEWS)
    assert ancestors < 0.6 * alone and alone < 8 and shuffled > 1.5 * alone, result


def test_the_perplexities_are_those_by_hand(echoes, tmp_path):
    train("train_thread", data=echoes, lr=0.02, out=tmp_path / "run")
    loaded = read_run(tmp_path / "run")
    model, tokenizer = loaded.model, loaded.tokenizer
    table = model.body.positions.weight
    _, test = hold_out(load_threads(echoes).trees, 0.2, seed=0, key=lambda tree: tree.text())
    flags = train_thread.Flags(ancestors=3, max_tree_size=5, block_size=12)
    where, found = Forest(test, tokenizer, 12, 3, 5), {}
    texts = [text for tree in test for text in tree.texts]
    ids = [torch.tensor([BOS, *row]) for row in encode(tokenizer, texts)]
    batches = fixed_batches(where, flags, tokenizer.get_vocab_size(), None)
    for rows, inputs, mask, labels, _ in batches:
        for row, shown, real, label in zip(rows, inputs, mask, labels):
            chains = dict(ancestors=where.chains[row], alone=[], shuffled=where.others[row])
            for view, chain in chains.items():
                memory = {}
                if chain:
                    states = [model.body.encoder(ids[a][None])[0].mean(0) for a in chain]
                    memory["memory"] = torch.stack(states)[None] + table[: len(chain)]
                h = model.body.decoder(shown[real][None], **memory)[0].detach()
                logs = model.head(h).log_softmax(-1)
                above = {i for a in where.chains[row] for i in ids[a].tolist()} - {UNK}
                for t in (label[real] != -100).nonzero().flatten():
                    kinds = ["", f"-depth-{len(where.chains[row])}"]
                    kinds += ["-repeated"] * (label[t].item() in above)
                    for kind in kinds:
                        found.setdefault(view + kind, []).append(-logs[t, label[t]].item())
    assert {"ancestors-depth-1", "alone-depth-2", "shuffled", "alone-repeated"} <= found.keys()
    for part in ("repeated", "depth-1", "depth-2"):
        assert result_of(tmp_path / "run")[f"tokens/test-{part}"] == len(found[f"alone-{part}"])
    for name, nats in found.items():
        expected = pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-4)
        assert result_of(tmp_path / "run")[f"perplexity/test-{name}"] == expected
    last = read_metrics(tmp_path / "run")[-1]
    with_ancestors, alone, _ = (math.log(last[f"perplexity/valid-{view}"]) for view in VIEWS)
    expected = 0.8 * with_ancestors + 0.2 * alone  # as often as each is trained
    assert last["loss/valid"] == pytest.approx(expected, rel=1e-9)


def test_toy_prints_the_best_possible(tmp_path, monkeypatch):
    monkeypatch.setattr(
        toy_threads, "generate", lambda n=0, generate=toy_threads.generate: generate(40)
    )
    size = "--block-size 32 --ancestors 5 --max-tree-size 20 --steps 0".split()
    argv = (*SHORT["train_thread"], *size)
    done = succeed(call("train_thread", *argv, out=tmp_path / "run"))
    assert "(best possible: 1." in done.out.splitlines()[-1]
    result = result_of(tmp_path / "run")
    # At the floor, a hidden word of a slot costs the entropy of its kind, or less if it is not
    # replaced by [MASK]. Other words cost nothing.
    trees = [Tree(*tree) for tree in toy_threads.generate(40)]
    _, test = hold_out(trees, 0.2, seed=0, key=lambda tree: tree.text())
    texts = [text for tree in test for text in tree.texts[1:]]
    words = sum(len(row) for row in encode(train_tokenizer("word", texts), texts))
    nats = sum(math.log(len(choices)) for choices in toy_threads.WORDS.values())
    least = nats * len(texts) / words
    assert 0.75 * least < math.log(result["floor/perplexity/test-alone"]) < 1.05 * least
    assert 1 < result["floor/perplexity/test-ancestors"] < result["floor/perplexity/test-alone"]
    assert "floor/perplexity/test-shuffled" not in result
    for floor in ("floor/", ""):
        alone, ancestors = (result[f"{floor}perplexity/test-{v}"] for v in ("alone", "ancestors"))
        assert result[f"{floor}gain/test"] == pytest.approx(math.log(alone / ancestors))
    assert f", of {result['floor/gain/test']:.3f} possible" in done.out
    # no floor is reported where it would bound nothing
    for more in (
        *(dict(ancestors=4), dict(vocab_size=80), dict(tokenizer="bpe", vocab_size=300)),
        dict(test=0.7),  # too few training trees for all words
    ):
        succeed(call("train_thread", *argv, **more, out=tmp_path / "other", overwrite=True))
        assert not any(name.startswith("floor") for name in result_of(tmp_path / "other"))


def test_runs_of_threads_are_neither_compared_nor_encoders(finished, corpus, tmp_path):
    run = finished("train_thread")
    assert_complains(call("compare", run), run, "is not that of a run that can be compared")
    outcome = call("train_classifier", encoder=run, data=corpus, out=tmp_path / "x")
    assert_complains(outcome, "of kind 'thread'")
