"""Comment trees: reading, and masked words of comments with the ancestors they are read with."""

import json
import re
from collections import Counter

import pytest
import torch

from data import batching, threads
from data.files import UserError
from data.threads import THREAD_VIEWS, Forest, load_threads, read_forests, strip_markup
from data.tokenizer import MASK, WORD, train_tokenizer


def post(*edges, **more):
    """A post p; edges: (comment, parent id, and its body if it is not "said COMMENT")."""
    edges = ((*edge, f"said {edge[0]}")[:3] for edge in edges)
    comments = [dict(zip(("id", "parent_id", "body"), edge)) for edge in edges]
    return {"id": "p", "title": "A title", "selftext": "and a text", "comments": comments} | more


FLAT = (("a", "t3_p"), ("b", "t1_a"), ("c", "t1_a"), ("d", "t1_c"), ("e", "t3_p"))
TITLE = "A title and a text"


def read(folder, *posts):
    lines = (each if isinstance(each, str) else json.dumps(each) for each in posts)
    (folder / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return load_threads(folder / "mine.jsonl")


def answers(tree):  # {text: the text it answers}, whatever the order in the file
    return {x: tree.texts[up[0]] if up else None for x, up in zip(tree.texts, tree.chains)}


def test_comments_in_any_order_are_the_same_tree(tmp_path):
    (tree,) = read(tmp_path, post(*FLAT[::-1], ("a", "t3_p")))  # one comment twice
    expected = {TITLE: None, "said a": TITLE, "said b": "said a", "said c": "said a"}
    assert answers(tree) == expected | {"said d": "said c", "said e": TITLE}
    assert all(a < i for i, up in enumerate(tree.chains) for a in up)  # parents first


def nest(comment, form, with_parent):
    """A comment of {name: its replies} with these nested, in a list or in Reddit's listings."""
    name, parent, replies = comment
    made = {"id": name, "body": f"said {name}"}
    if with_parent:
        made["parent_id"] = parent
    children = [nest(reply, form, with_parent) for reply in replies]
    if form == "list":
        return made | {"replies": children}
    more = {"kind": "more", "data": {"id": "zz", "children": ["zz"]}}
    listing = {"kind": "Listing", "data": {"children": [*children, more]}}
    return {"kind": "t1", "data": made | {"replies": listing if children else ""}}


@pytest.mark.parametrize("form", ["list", "reddit"])
@pytest.mark.parametrize("with_parent", [True, False])
def test_nested_replies_are_the_same_tree(form, with_parent, tmp_path):
    d = ("d", "t1_c", [])
    tops = ("a", "t3_p", [("b", "t1_a", []), ("c", "t1_a", [d])]), ("e", "t3_p", [])
    comments = [nest(top, form, with_parent) for top in tops]
    if form == "reddit":
        comments = {"kind": "Listing", "data": {"children": comments}}
    of_ids = {"replies": {"data": {"children": ["b"]}}}  # only ids: the comments stand beside
    flat, nested, ids = read(
        tmp_path,
        post(*FLAT),
        post(comments=comments),
        post(comments=[comment | of_ids for comment in post(*FLAT)["comments"]]),
    )
    assert answers(flat) == answers(nested) == answers(ids) and len(flat.texts) == 6


def test_texts_of_comments_have_no_invisible_characters(tmp_path):
    (tree,) = read(tmp_path, post(("a", "", "&#x200B;\n\nso\u200bis re\xadmoved")))
    assert tree.texts[1] == "so is removed"


@pytest.mark.parametrize("body", ["[deleted]", None, "&gt; a quote"])
def test_a_deleted_comment_leaves_its_replies_to_its_parent(body, tmp_path):
    edges = [(*edge, body) if edge[0] in "ac" else edge for edge in FLAT]
    other = post(("f", ""), id="q", title=None, selftext="[removed]")
    tree, second = read(tmp_path, post(*edges), "", post(("x", "", body), id="r"), other)
    assert answers(tree) == {TITLE: None, "said b": TITLE, "said d": TITLE, "said e": TITLE}
    assert second.texts == ["", "said f"]


@pytest.mark.parametrize("text, cleaned", [
    ("&gt; a quote\n  > another\nan  answer &amp; 1 > 0\n", "an answer & 1 > 0"),
    ("a [page](https://example.org/x_(y)), www.example.org/a?b=c", "a page, URL"),
    ("no [link] here (none)", "no [link] here (none)"),
])  # fmt: skip
def test_markup_is_stripped(text, cleaned):
    assert strip_markup(text) == cleaned


def test_a_mistake_in_a_file_of_posts_names_its_line(tmp_path):
    loop = post(("a", "t1_b"), ("b", "t1_a"), id="q")
    for bad in ("{", {"id": "q"}, post(("a", "", 3), id="q"), loop):
        with pytest.raises(UserError, match="mine.jsonl:2: not a post .*; correct it") as error:
            read(tmp_path, post(*FLAT), bad)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="no.jsonl: cannot be read"):
        load_threads("no.jsonl")


def test_a_forest_links_comments_to_the_texts_above_them(tmp_path):
    trees = read(tmp_path, post(*FLAT), post(("f", ""), ("g", "t1_f"), ("h", "t1_g"), id="q"))
    tokenizer = train_tokenizer("word", [text for tree in trees for text in tree.texts])
    forest = Forest(trees, tokenizer, 9, n_ancestors=2, max_tree_size=2)
    row = {text: i for i, text in enumerate(forest.texts)}
    assert [forest.texts[i] for i in forest.chains[row["said d"]]] == ["said c", "said a"]
    assert [*map(len, forest.chains)] == [0, 1, 1, 2, 2, 2, 0, 1, 2, 2]
    # Pieces hold every comment once, and at most two of one tree
    rows = torch.cat(forest.batches(2, batching.generator(0))).tolist()
    assert sorted(rows) == [1, 2, 3, 4, 5, 7, 8, 9]
    assert all(len(piece) <= 2 and (piece[0] < 6) == (piece[-1] < 6) for piece in forest.pieces)
    for i in rows:  # the control reads another tree's ancestors, as many where there are as many
        other = forest.others[i]
        assert all((a < 6) != (i < 6) for a in other) and len(other) == len(forest.chains[i])
    chosen = [row["said d"], row["said b"]]
    above = forest.above(chosen, forest.chains)
    for i, who, real in zip(chosen, above["ancestors"], above["ancestors_mask"]):
        texts = [above["texts"][a][above["texts_mask"][a]].tolist() for a in who[real]]
        assert texts == [forest.sequences[a].tolist() for a in forest.chains[i]]
    assert len(above["texts"]) == 3  # each once


def test_every_comment_is_masked_alike_in_each_view(request):
    path = request.getfixturevalue("threads")
    how = dict(n_ancestors=3, max_tree_size=64, block_size=9)
    name, tokenizer, forests, digest = read_forests(path, None, "word", 0, 0.2, 0.2, **how)
    assert name == "tiny" and [each.chains.count([]) for each in forests.values()] == [16, 4, 5]
    assert digest == read_forests(path, tokenizer, "word", 0, 0.2, 0.2, **how)[3]
    forest, found = forests["test"], []
    row_of = {tuple(forest.sequences[i].tolist()): i for piece in forest.pieces for i in piece}
    views = forest.mask_comments(tokenizer.get_vocab_size(), None, 0.3, "token")
    for i in range(len(views["alone"])):
        first, *others = (views[view][i][:3] for view in THREAD_VIEWS)
        assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))
        restored = torch.where(first[2] == -100, first[0], first[2])
        chosen = [row_of[tuple(text[real].tolist())] for text, real in zip(restored, first[1])]
        found += chosen
        assert views["alone"][i][3] == {} and (first[0] == MASK).any()
        for view, chains in (("ancestors", forest.chains), ("shuffled", forest.others)):
            expected = forest.above(chosen, chains)
            assert all(views[view][i][3][key].equal(expected[key]) for key in expected)
    assert sorted(found) == [i for i, chain in enumerate(forest.chains) if chain]
    with pytest.raises(UserError, match="25 trees are too few for --valid 0.01 and --test 0.2"):
        read_forests(path, None, "word", 0, 0.01, 0.2)


def test_toy_replies_say_each_word_as_often_as_its_probability():
    trees = threads.generate(1000, seed=1)
    assert threads.generate(3, seed=1) == trees[:3]
    lengths = [len(re.findall(WORD, frame)) for frame in threads.REPLIES]
    assert len(set(lengths)) == len(lengths)  # a frame is known by its length
    for words in threads.WORDS.values():
        offered, taken, said, depths = Counter(), Counter(), set(), set()
        for tree in trees:
            spoken = [next(w for w in re.findall(WORD, text) if w in words) for text in tree.texts]
            for word, chain in zip(spoken[1:], tree.chains[1:]):
                p = dict.fromkeys(words, (1 - threads.TAKEN) / len(words))
                for d, a in enumerate(chain, start=1):
                    p[spoken[a]] += threads.TAKEN * 2.0**-d / (1 - 2.0 ** -len(chain))
                p = {each: round(value, 6) for each, value in p.items()}
                offered.update(p.values())
                taken[p[word]] += 1
                said.add(word), depths.add(len(chain))
        for p, n in offered.items():  # within five standard errors
            assert abs(taken[p] - n * p) < 5 * (1 + n * p * (1 - p)) ** 0.5, p
        assert depths == set(range(1, threads.DEEPEST + 1)) and said == set(words)
