"""Posts with nested comments: reading, cleaning, splitting; the best possible on generated ones."""

import json
import math
import random
import re
from collections import Counter

import pytest
import torch

from data import masking
from data.corpora import toy_threads
from data.corpora.threads import Tree, clean, load_threads
from data.files import DataError
from data.forest import split_tree
from data.tokenizer import MASK, SPECIAL, WORD


def comment(name, parent, body="", **more):
    return {"id": name, "parent_id": parent, "body": body or f"said {name}"} | more


def post(*comments, **more):
    head = {"id": "p", "title": "A title", "selftext": "and a text"}
    return head | {"comments": list(comments)} | more


PARENTS = {"a": "t3_p", "b": "t1_a", "c": "t1_a", "d": "t1_c", "e": "t3_p"}
FLAT = tuple(comment(*each) for each in PARENTS.items())


def write(path, *posts):
    lines = (each if isinstance(each, str) else json.dumps(each) for each in posts)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path, *posts):
    return load_threads(write(path / "mine.jsonl", *posts))


def answers(tree):
    """Return {text: the text it answers}, which does not depend on the order in the file."""
    return {
        text: tree.texts[parent] if parent >= 0 else None
        for text, parent in zip(tree.texts, tree.parents)
    }


# ---------------------------------------------------------------------------- reading


TITLE = "A title and a text"
EXPECTED = {TITLE: None, "said a": TITLE, "said b": "said a", "said c": "said a"}
EXPECTED |= {"said d": "said c", "said e": TITLE}


def listing(*children):
    """Replies as Reddit's interface gives them."""
    return {"data": {"children": list(children)}}


def nested(form, ids=True):
    """Return the comments of FLAT, each in the replies of its parent, in this form."""

    def below(parent):
        children = [name for name, above in PARENTS.items() if above == parent]
        known = parent if ids else None
        return [comment(name, known, replies=form(below(f"t1_{name}"))) for name in children]

    return below("t3_p")


@pytest.mark.parametrize(
    "comments",
    [
        FLAT,
        FLAT[::-1],
        nested(list),
        nested(list, ids=False),
        nested(lambda found: listing(*({"kind": "t1", "data": c} for c in found)) if found else ""),
        [entry | {"replies": listing("a", "b")} for entry in FLAT],
        [*FLAT[:4], FLAT[4] | {"replies": listing({"kind": "more", "data": {"children": ["x"]}})}],
    ],
)
def test_flat_and_nested_comments_are_the_same_tree(comments, tmp_path):
    (tree,) = read(tmp_path, post(*comments)).trees
    assert answers(tree) == EXPECTED and tree.texts[0] == TITLE
    assert all(parent < i for i, parent in enumerate(tree.parents))  # parents first


@pytest.mark.parametrize(
    "body", ["[deleted]", "[removed]", " \n", None, "> only a quote", "&gt; the same"]
)
def test_a_deleted_comment_leaves_its_replies_to_its_parent(body, tmp_path):
    comments = [entry | ({"body": body} if entry["id"] in "ac" else {}) for entry in FLAT]
    threads = read(tmp_path, post(*comments))
    left = {TITLE: None, "said b": TITLE, "said d": TITLE, "said e": TITLE}
    assert answers(threads.trees[0]) == left
    assert threads.left_out == {"deleted or empty comments": 2}


def test_incomplete_posts_and_comments_are_repaired_or_left_out(tmp_path):
    threads = read(
        tmp_path,
        post(comment("a", ""), {"id": "b", "body": "said b"}),
        "",
        post(comment("x", "t3_q", "[deleted]"), id="q"),
        post(comment("a", ""), id="", title=None, selftext="[removed]"),
        post(comment("a", ""), id=""),
    )
    assert answers(threads.trees[0]) == {TITLE: None, "said a": TITLE, "said b": TITLE}
    assert threads.trees[1].texts == ["", "said a"]
    assert len(threads.trees) == 3
    assert threads.name == "mine"
    assert threads.left_out == {
        "comments without a parent_id, taken as replies to the post": 4,
        "deleted or empty comments": 1,
        "posts without a comment that has text": 1,
    }


@pytest.mark.parametrize(
    "text, expected",
    [
        ("> a quote\n\nan answer", "an answer"),
        ("&gt; a quote\n  > another\nan  answer\n", "an answer"),
        ("1 > 0", "1 > 0"),
        ("a &amp; b &gt; c", "a & b > c"),
        ("see [this page](https://example.org/x_(y)) there", "see this page there"),
        ("see [it](/r/x), now", "see it, now"),
        ("at https://example.org/a?b=c, then www.example.org", "at URL then URL"),
        ("[removed]", ""),
        ("", ""),
        ("[MASK]", "[MASK]"),
        ("no [link] here (none)", "no [link] here (none)"),
    ],
)
def test_text_is_cleaned(text, expected):
    assert clean(text) == expected


def edges(*pairs):
    return post(*[comment(name, parent) for name, parent in pairs], id="q")


RING = edges(("a", "t1_b"), ("b", "t1_a"), ("c", "t3_q"))
BAD = [  # the second line of a file, and what the message says
    ("{", "mine.jsonl:2: not JSON"),
    ("[1]", "mine.jsonl:2: not a post"),
    ({"comments": []}, "mine.jsonl:2: not a post"),
    (post(id="q"), "mine.jsonl:2: the post q has no comments"),
    ({"id": "q"}, "mine.jsonl:2: the post q has no comments"),
    (RING, "mine.jsonl:2: the comment a does not lead up .*cycle"),
    (edges(("a", "t1_a")), "mine.jsonl:2: .*cycle"),
    (edges(("a", "t1_zz")), "mine.jsonl:2: the comment a answers t1_zz.*correct its parent_id"),
    (edges(("a", "t3_p")), "answers t3_p, which is neither t3_q"),
    (edges(("a", "a")), "answers a,"),
    (edges(("a", 7)), "answers 7,"),
    (edges(("a", ""), ("a", "")), "two comments have the id a"),
    (post(*FLAT), "the post p is already in line 1"),
    (post({"body": "x"}, id="q"), "mine.jsonl:2: a comment without an"),
    (post({"id": "a", "body": 3}, id="q"), "mine.jsonl:2: a comment without an"),
    (post(id="q", comments="none"), "must be lists of comments"),
    (post(id="q", comments=[3]), "must be lists of comments"),
    (post(comment("a", "", replies=3), id="q"), "must be lists of comments"),
]


@pytest.mark.parametrize("bad, message", BAD)
def test_a_mistake_in_a_file_of_posts_names_its_line(bad, message, tmp_path):
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path, post(*FLAT), bad)
    assert "\n" not in str(error.value)


def test_files_without_threads_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    deleted = write(tmp_path / "deleted.jsonl", post(comment("a", "", "[deleted]")))
    parts = {tmp_path / "no.jsonl": "no such file", tmp_path / "a.txt": "read from .jsonl"}
    parts |= {"nothing": "no such threads", deleted: "no post has a comment with text"}
    for name, part in parts.items():
        with pytest.raises(DataError, match=part):
            load_threads(name)


# ---------------------------------------------------------------------------- splitting


def test_a_piece_is_a_thread_and_the_whole_subtree_below_it():
    tree = Tree(list("p12345"), [-1, 0, 1, 2, 2, 0])
    assert list(split_tree(tree, 3, 2)) == [[1, 2, 3], [4], [5]]
    assert list(split_tree(tree, 5, 2)) == [[1, 2, 3, 4, 5]]
    assert sorted(split_tree(tree, 4, 2)) == [[1, 2, 3, 4], [5]]


def test_pieces_cover_any_tree_and_stay_within_their_size():
    dice = random.Random(0)
    for _ in range(200):
        n, near = dice.randrange(2, 40), dice.randrange(1, 4)
        tree = Tree(["x"] * n, [-1, *(dice.randrange(max(0, i - 3), i) for i in range(1, n))])
        above, size = tree.ancestors(near), near + dice.randrange(1, 6)
        pieces = list(split_tree(tree, size, near))
        assert sorted(i for piece in pieces for i in piece) == list(range(1, n))
        for piece in pieces:
            assert len({*piece, *(a for i in piece for a in above[i])} - {0}) <= size


def test_a_very_long_thread_is_split(tmp_path):
    names = [f"c{i}" for i in range(3000)]
    (tree,) = read(tmp_path, edges(*zip(names, ["t3_q"] + ["t1_" + name for name in names]))).trees
    pieces = list(split_tree(tree, 64, 8))
    assert tree.depths()[-1] == 3000
    assert sum(map(len, pieces)) == 3000
    assert len(pieces) < 3000 / 50


# ---------------------------------------------------------------------------- toy


@pytest.fixture(scope="module")
def trees():
    return [Tree(*tree) for tree in toy_threads.generate(3000, seed=1)]


def test_a_reply_frame_is_known_by_its_length():
    lengths = [len(re.findall(WORD, frame)) for frame in toy_threads.REPLIES]
    assert len(set(lengths)) == len(lengths) and max(lengths) < 32  # fits into a block with [BOS]
    every = [word for words in toy_threads.WORDS.values() for word in words]
    assert len(set(every)) == len(every)
    for frame in toy_threads.REPLIES + toy_threads.POSTS:
        assert not set(re.findall(WORD, re.sub(r"\{\w+\}", "", frame))) & set(every)
        assert all(frame.count("{" + kind + "}") == 1 for kind in toy_threads.KINDS)


def test_the_same_seed_gives_the_same_threads():
    assert toy_threads.generate(3) == toy_threads.generate(4)[:3] != toy_threads.generate(3, seed=1)
    assert load_threads("toy").trees[0] == Tree(*toy_threads.generate(1)[0])


@pytest.mark.parametrize("kind, words", toy_threads.WORDS.items())
def test_replies_say_each_word_as_often_as_its_probability(kind, words, trees):
    offered, taken, said, depths = Counter(), Counter(), Counter(), set()
    for tree in trees:
        for text, chain in zip(tree.texts[1:], tree.ancestors(9)[1:]):
            above, word = [tree.texts[a] for a in chain], toy_threads.kinds_in(text)[kind]
            p = {each: round(toy_threads.probability(each, kind, above), 6) for each in words}
            assert sum(p.values()) == pytest.approx(1, abs=1e-4)
            offered.update(p.values())
            taken[p[word]] += 1
            said[word] += 1
            depths.add(len(chain))
    for p, n in offered.items():  # within five standard errors
        assert abs(taken[p] - n * p) < 5 * (1 + n * p * (1 - p)) ** 0.5, p
    assert toy_threads.taken_from(3) == [4 / 7, 2 / 7, 1 / 7]
    assert depths == set(range(1, toy_threads.DEEPEST + 1))
    # To a reader of the reply alone, all words are equally likely.
    assert toy_threads.probability(words[0], kind, []) == pytest.approx(1 / len(words))
    assert said.keys() == set(words)
    assert all(abs(n / said.total() * len(words) - 1) < 0.1 for n in said.values())


def test_the_cost_of_a_disguised_word_agrees_with_drawn_masks():
    # Draw words by their probability and disguise them with mask_tokens. Where x is shown, the
    # share of a word must be exp(-nats).
    said = dict(people="widows", building="mill", event="frost", virtue="hope")
    ancestors = [toy_threads.POSTS[0].format(**said)]
    frame = "The widows say: hope, mill, {}."
    events, first = toy_threads.WORDS["event"], len(SPECIAL)
    tokens = {word: first + i for i, word in enumerate([*events, "mill", "widows", "hope"])}
    size = first + len(tokens)
    p = torch.tensor([toy_threads.probability(word, "event", ancestors) for word in events])
    words = torch.multinomial(p, 300_000, replacement=True)
    inputs, labels = masking.mask_tokens(
        words[:, None] + first, size, torch.Generator().manual_seed(0), 0.3
    )
    assert (labels == words[:, None] + first).all()
    place = 1 + re.findall(WORD, frame.format("tide")).index("tide")
    for x in (MASK, tokens["tide"], tokens["frost"], tokens["mill"]):
        where = words[inputs[:, 0] == x]
        assert len(where) > 1000
        for word in ("frost", "tide", "census"):
            shown = [0] * (place + 2)
            shown[place] = x
            cost = toy_threads.nats(frame.format(word), ancestors, tokens, shown, [place], size)
            assert math.exp(-cost) == pytest.approx(
                (where == events.index(word)).float().mean().item(), abs=4 * 0.5 / len(where) ** 0.5
            ), (x, word)


def test_words_of_the_frame_cost_nothing_and_others_add_up():
    text, tokens = "The widows say: hope, mill, frost.", {}
    hidden = list(range(1, 10))
    every = toy_threads.nats(text, [], tokens, [MASK] * 11, hidden, 99)
    assert every == pytest.approx(sum(math.log(len(words)) for words in toy_threads.WORDS.values()))
    assert toy_threads.nats(text, [], tokens, [MASK] * 11, [1, 3, 4, 6, 8, 10], 99) == 0
