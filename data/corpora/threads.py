"""Posts with nested comments: read them, clean their text, and link every comment to its parent.

A file has one post per line, as JSON:

    {"id", "title", "selftext", "comments": [{"id", "parent_id", "body"}, ...]}

The comments are in one flat list, or each is in the `replies` of its parent, as in Reddit's own
files. A parent_id is t3_ and the post's id, or t1_ and that of a comment of the same post.
Imperfect data:

    deleted, removed or empty comment    left out; its replies become replies of its parent
    no parent_id (lost in collecting)    a reply to the comment it is listed in, else to the post
    unknown parent_id, a cycle           DataError
    a post whose id is ""                accepted, if none of its comments refers to it
    no comments at all                   DataError; if all are deleted, the post is left out
    quotes, lines that begin with >      left out: they repeat an ancestor's words
    links                                [text](address) becomes its text, an address the word URL
    a post without text                  kept as the root of its tree; the model reads [BOS] alone
"""

import html
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from data.corpora import toy_threads
from data.files import DataError, parse_json, read_lines

DELETED = ("[deleted]", "[removed]")


@dataclass
class Tree:
    """A post and its comments, parents before their replies. Text 0 is the post, its parent -1."""

    texts: list[str]
    parents: list[int]

    def depths(self):
        """Return how many steps each text is below the post, whose own depth is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    def ancestors(self, n):
        """Return for each text the indices of its nearest n ancestors, its parent first."""
        found = [[]]
        for parent in self.parents[1:]:
            found.append([parent, *found[parent]][:n])
        return found

    def text(self):
        """Return all texts as one, to tell whether two trees are the same."""
        return "\n".join(self.texts)


@dataclass
class Threads:
    name: str
    trees: list[Tree]
    # What was left out or repaired -> how often
    left_out: Counter = field(default_factory=Counter)


def load_threads(name):
    """Return the Threads called toy (see toy_threads.py), or in a .jsonl of one post per line."""
    path = Path(name)
    if name == "toy":
        return Threads("toy", [Tree(*tree) for tree in toy_threads.generate()])
    if path.suffix != ".jsonl" and path.exists():
        raise DataError(
            f"--data {name}: threads are read from .jsonl files, a post per line; convert the file"
        )
    if path.suffix != ".jsonl":
        raise DataError(
            f"--data {name}: no such threads or file; give toy or a .jsonl of one post per line"
        )
    trees, left_out, line_of = [], Counter(), {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            post = parse_post(line)
            if post["id"] and post["id"] in line_of:
                problem = f"the post {post['id']} is already in line {line_of[post['id']]}"
                raise DataError(f"{problem}; remove one of them")
            line_of[post["id"]] = number
            tree = read_tree(post, left_out)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        if len(tree.texts) > 1:
            trees.append(tree)
        else:
            left_out["posts without a comment that has text"] += 1
    if not trees:
        raise DataError(
            f'{path}: no post has a comment with text in its "body"; give a file of such posts'
        )
    return Threads(path.stem, trees, left_out)


# The functions below raise DataError without the place of the error, which load_threads adds.


def parse_post(line):
    """Return the JSON object of a line."""
    try:
        post = parse_json(line)
    except ValueError as error:
        problem = f"not JSON ({str(error)[:60]})"
        raise DataError(f"{problem}; each line must be one post as a JSON object") from None
    if not isinstance(post, dict) or not isinstance(post.get("id"), str):
        parts = 'an "id" (text, not a number), a "title" or "selftext", and "comments"'
        raise DataError(f"not a post; each line must be a JSON object with {parts}")
    return post


def read_tree(post, left_out):
    """Return a post as a Tree, and count in `left_out` what was left out."""
    root = "t3_" + post["id"]
    texts, parents = read_comments(post, root, left_out)
    children = {name: [] for name in (root, *texts)}
    for name, parent in parents.items():
        if parent not in children:
            raise DataError(
                f"the comment {name[3:]} answers {parent[:40]}, which is neither {root} nor t1_ "
                "and the id of one of its comments; "
                "correct its parent_id, or leave it empty for a reply to the post"
            )
        children[parent].append(name)
    order = [root]
    for name in order:  # the list grows: parents before their replies
        order += children[name]
    if len(order) <= len(texts):
        reached = set(order)
        lost = next(name for name in texts if name not in reached)
        raise DataError(
            f"the comment {lost[3:]} does not lead up to the post, "
            "since its parents form a cycle; correct their parent_id"
        )

    title = " ".join(clean(str(post.get(part) or "")) for part in ("title", "selftext")).strip()
    tree, index = Tree([title], [-1]), {root: 0}
    for name in order[1:]:
        if not texts[name]:
            index[name] = index[parents[name]]  # so that its replies get the next text above
            left_out["deleted or empty comments"] += 1
        else:
            index[name] = len(tree.texts)
            tree.texts.append(texts[name])
            tree.parents.append(index[parents[name]])
    return tree


def read_comments(post, root, left_out):
    """Return {name: text} and {name: name of the parent} of all comments."""
    comments = [(comment, root) for comment in list_replies(post.get("comments"))]
    for comment, _ in comments:  # the list grows: replies are searched for replies, too
        inside = "t1_" + str(comment.get("id"))
        comments += [(reply, inside) for reply in list_replies(comment.get("replies"))]
    if not comments:
        problem = f"the post {post['id']} has no comments"
        raise DataError(f'{problem}; remove the line or complete its "comments"')
    texts, parents = {}, {}
    for comment, listed_in in comments:
        name, body = comment.get("id"), comment.get("body")
        if not isinstance(name, str) or not name or not isinstance(body, str | None):
            raise DataError(
                'a comment without an "id" and a "body" of text; complete it or remove it'
            )
        if "t1_" + name in texts:
            raise DataError(f"two comments have the id {name}; remove one of them")
        if not comment.get("parent_id") and listed_in == root:
            left_out["comments without a parent_id, taken as replies to the post"] += 1
        texts["t1_" + name] = clean(body or "")
        parents["t1_" + name] = str(comment.get("parent_id") or listed_in)
    return texts, parents


def list_replies(listing):
    """Return the comments in a `comments` or `replies` entry.

    The entry is a list, Reddit's {"data": {"children": [...]}}, or missing. Ids in it are skipped:
    the comments they name are in the flat list and have a parent_id.
    """
    if isinstance(listing, dict):
        listing = listing.get("data", listing)
        listing = listing.get("children") if isinstance(listing, dict) else listing
    listing = listing or []
    if not isinstance(listing, list) or not all(isinstance(e, (dict, str)) for e in listing):
        raise DataError('"comments" and "replies" must be lists of comments; correct the line')
    found = []
    for entry in listing:
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict):
            if entry.get("kind") == "more":  # "load more comments"
                continue
            entry = entry["data"]
        if isinstance(entry, dict):
            found.append(entry)
    return found


def clean(text):
    """Return a text on one line as the model reads it, "" if it was deleted."""
    lines = [line for line in html.unescape(text).splitlines() if not line.lstrip().startswith(">")]
    text = re.sub(r"\[([^\[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*\)", r"\1", "\n".join(lines))
    text = " ".join(re.sub(r"(?:https?://|www\.)\S+", "URL", text).split())
    text = text.encode("utf-8", "replace").decode()  # JSON can hold half of a character
    return "" if text in DELETED else text
