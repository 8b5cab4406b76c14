"""Posts with nested comments: reading and cleaning them, who answers whom, and splitting large trees.

A file has one post a line, as JSON: {"id", "title", "selftext", "comments": [{"id", "parent_id", "body"}, ...]}. The comments
stand in one flat list, or each within the `replies` of its parent, as Reddit's own files have them. A parent_id is
t3_ and the post's id or t1_ and that of a comment of the same post. What is done with imperfect data:

    deleted, removed or empty comment    left out; its replies become replies of its parent
    no parent_id (lost in collecting)    a reply to the comment it stands within, else to the post
    parent_id of nobody, a cycle         a mistake of the file: DataError
    a post whose id is ""                taken, if none of its comments refers to it
    no comments at all                   a mistake of the file: DataError; where all are deleted, the post is left out
    quotes, lines that begin with >      left out: they repeat an ancestor's words
    links                                [text](address) becomes its text, a bare address the word URL
    a post without text                  kept: a tree needs its root, and the model reads [BOS] alone
"""

import html
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from data.corpora import toy_threads
from data.files import DataError, parse_json, read_lines

DELETED = ("[deleted]", "[removed]", "")


@dataclass
class Tree:
    """A post and its comments, parents before their replies. texts[0] is the post's, parents[0] is -1."""

    texts: list[str]
    parents: list[int]

    def depths(self):
        """How many steps each stands from the post, whose own depth is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    def ancestors(self, n):
        """For each text the indices of its nearest n ancestors, its parent first, the post last; the post has none."""
        found = [[]]
        for parent in self.parents[1:]:
            found.append([parent, *found[parent]][:n])
        return found

    def text(self):
        """All that is said in it, to tell whether two trees are the same."""
        return "\n".join(self.texts)


@dataclass
class Threads:
    name: str
    trees: list[Tree]
    left_out: Counter = field(
        default_factory=Counter
    )  # what was not taken as it stands in the file: how often


def load_threads(name):
    """The threads of that name, or at that path. Raises DataError with the file, the line and the remedy.

    name: toy (generated, see toy_threads.py) | a .jsonl of one post a line.
    """
    path = Path(name)
    if name == "toy":
        return Threads("toy", [Tree(*tree) for tree in toy_threads.generate()])
    if path.suffix != ".jsonl":
        kind = (
            "threads are read from .jsonl files; rename or convert the file"
            if path.exists()
            else "no such threads or file; give toy or a .jsonl of one post a line"
        )
        raise DataError(f"--data {name}: {kind}")
    trees, left_out, first_line = [], Counter(), {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            post = parse_json(line)
        except ValueError as error:
            raise DataError(
                f"{where}: not JSON ({str(error)[:60]}); each line must be one post as a JSON object"
            ) from None
        if not isinstance(post, dict) or not isinstance(post.get("id"), str):
            raise DataError(
                f'{where}: not a post; each line must be a JSON object with an "id", '
                'a "title" or "selftext", and "comments"'
            )
        if post["id"] and post["id"] in first_line:
            raise DataError(
                f"{where}: the post {post['id']} already stands in line {first_line[post['id']]}; "
                "remove one of them"
            )
        first_line[post["id"]] = number
        tree = read_tree(post, where, left_out)
        if len(tree.texts) > 1:
            trees.append(tree)
        else:
            left_out["posts without a comment that has text"] += 1
    if not trees:
        raise DataError(
            f"{path}: no post has a comment with text; give a file of posts with comments"
        )
    return Threads(path.stem, trees, left_out)


def read_tree(post, where, left_out):
    """One post of a file as a Tree; counts in left_out what is missing. Raises DataError."""
    comments = [(comment, "") for comment in replies_in(post.get("comments"), where)]
    for (
        comment,
        _,
    ) in comments:  # the list grows: replies are looked through like the comments before them
        comments += [
            (reply, "t1_" + str(comment.get("id")))
            for reply in replies_in(comment.get("replies"), where)
        ]
    if not comments:
        raise DataError(
            f'{where}: the post {post["id"]} has no comments; remove the line or complete its "comments"'
        )
    root, texts, parents = "t3_" + post["id"], {}, {}
    for comment, within in comments:
        name, body = comment.get("id"), comment.get("body")
        if not isinstance(name, str) or not name or not isinstance(body, str | None):
            raise DataError(
                f'{where}: a comment without an "id" and a "body" of text; complete it or remove it'
            )
        if "t1_" + name in texts:
            raise DataError(f"{where}: two comments have the id {name}; remove one of them")
        parent = str(comment.get("parent_id") or within or root)
        if not comment.get("parent_id") and not within:
            left_out["comments without a parent_id, taken as replies to the post"] += 1
        texts["t1_" + name], parents["t1_" + name] = clean(body or ""), parent
    children = {name: [] for name in (root, *texts)}
    for name, parent in parents.items():
        if parent not in children:
            raise DataError(
                f"{where}: the comment {name[3:]} answers {parent[:40]}, which is neither t3_{post['id']} nor "
                "t1_ and the id of one of its comments; correct its parent_id, or leave it empty for a reply "
                "to the post"
            )
        children[parent].append(name)

    order = [root]
    for name in order:
        order += children[name]
    if len(order) <= len(texts):
        first = next(name for name in texts if name not in set(order))
        raise DataError(
            f"{where}: the comment {first[3:]} does not lead up to the post: its parents form a cycle; "
            "correct their parent_id"
        )
    tree, index = (
        Tree([clean("\n".join(str(post.get(part) or "") for part in ("title", "selftext")))], [-1]),
        {root: 0},
    )
    for name in order[1:]:
        if texts[name] in DELETED:
            index[name] = index[parents[name]]  # so that its replies find the next one above
            left_out["deleted or empty comments"] += 1
        else:
            index[name] = len(tree.texts)
            tree.texts.append(texts[name])
            tree.parents.append(index[parents[name]])
    return tree


def replies_in(listing, where):
    """The comments of a `comments` or `replies` entry, [] where it has none: a list, or Reddit's {"data": {"children": [...]}}.

    Ids in it say which comments of the flat list are replies; so do their parent_ids, and these are used. Raises DataError.
    """
    if isinstance(listing, dict):
        listing = listing.get("data", listing)
        listing = listing.get("children") if isinstance(listing, dict) else listing
    found = []
    for entry in listing if isinstance(listing, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict):
            if entry.get("kind") == "more":  # "load more comments"
                continue
            entry = entry["data"]
        if isinstance(entry, dict):
            found.append(entry)
    if (
        listing
        and not isinstance(listing, list)
        or not all(isinstance(entry, (dict, str)) for entry in listing or [])
    ):
        raise DataError(
            f'{where}: "comments" and "replies" must be lists of comments; correct the line'
        )
    return found


def clean(text):
    """A post's or comment's text as the model reads it, on one line; "" for what was deleted."""
    lines = [line for line in html.unescape(text).splitlines() if not line.lstrip().startswith(">")]
    text = re.sub(r"\[([^\[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*\)", r"\1", "\n".join(lines))
    # JSON can hold half of a character
    text = (
        " ".join(re.sub(r"(?:https?://|www\.)\S+", "URL", text).split())
        .encode("utf-8", "replace")
        .decode()
    )
    return "" if text in DELETED else text


def split(tree, max_size, n_ancestors):
    """A tree as pieces of at most max_size comments: one thread down to a comment, then that comment's whole subtree.

    Yields (context, targets), lists of indices without the post: targets are to be predicted, and each comment is a target
    of exactly one piece; context are comments above them, at least the nearest n_ancestors of each target. A comment whose own
    subtree is too large is a target of the first piece below it. A tree that is small enough is one piece without a context.
    Sizes of subtrees may differ widely, and so do those of the pieces. Raises ValueError unless max_size > n_ancestors > 0.

        0 ── 1 ── 2 ── 3        with max_size=3, n_ancestors=2:  ([], [1, 2, 3]), ([1, 2], [4]), ([], [5])
                  └── 4
        └── 5
    """
    if not max_size > n_ancestors > 0:
        raise ValueError(
            f"a piece of max_size={max_size} comments must have room for a comment and its "
            f"n_ancestors={n_ancestors}"
        )
    children, size = [[] for _ in tree.parents], [1] * len(tree.parents)
    for i in range(len(tree.parents) - 1, 0, -1):
        size[tree.parents[i]] += size[i]
        children[tree.parents[i]].append(i)
    above = tree.ancestors(n_ancestors)
    if size[0] - 1 <= max_size:
        yield [], list(range(1, len(tree.parents)))
        return
    waiting, begun = (
        list(children[0]),
        [],
    )  # begun: the comments right above the next that no piece has as targets yet
    while waiting:
        i = waiting.pop()
        context = [a for a in reversed(above[(begun + [i])[0]]) if a]
        used = len(context) + len(begun)
        if used + size[i] <= max_size or used + 1 == max_size:
            whole, subtree = used + size[i] <= max_size, [i]
            for j in subtree if whole else ():
                subtree += reversed(children[j])
            yield context, begun + subtree
            begun = []
            if whole:
                continue
        else:
            begun = [*begun, i]
        waiting += children[i]
