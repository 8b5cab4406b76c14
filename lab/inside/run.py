"""A trained run in Python: `run = lab.load_run("out/lm-toy-alibi-0")`.

Methods take texts as they are typed and read them as training did: [BOS] in front, cut to
--block-size where the model cannot read more, unknown words as [UNK]. Notes on stdout say so.
A list or a pandas Series is several texts; a tuple of two strings is a pair.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import torch

from data.batching import generator
from data.files import UserError
from data.tokenizer import MASK, token_strings
from lab.figures import name_positions
from lab.inside.attention import record
from lab.inside.hooked import to_hooked
from lab.inside.live import LivePage
from lab.inside.losses import word_losses
from lab.inside.maps import check_number
from lab.inside.measure import attentions, switch_off
from lab.inside.positions import draw_positions
from lab.inside.texts import (
    are_several,
    encode_texts,
    inputs_of_ancestors,
    list_texts,
    nearest_ancestors,
    padded_batches,
)
from lab.inside.writing import Sampler, continue_text, next_logits, rewrite_text, top_words
from lab.load import LoadedRun, read_metrics, read_result
from lab.predictions import read_predictions
from nets.classifier import pool_tokens

KIND_NAMES = {
    "lm": "causal LM",
    "mlm": "masked LM",
    "seq2seq": "encoder-decoder",
    "thread": "thread reader",
}


def of_each_text(method):
    """Let a method that reads one text read each text of a list, and return a list."""

    @wraps(method)
    def read(self, text="", *args, **options):
        answers = [method(self, single, *args, **options) for single in list_texts(self, [text])]
        if are_several(text):
            return answers
        return answers[0]

    return read


@dataclass(repr=False, eq=False)
class OpenRun(LoadedRun):
    """A trained run, without gradients and in evaluation mode. Methods raise UserError for a text
    that the run cannot read, and if this kind of run cannot do what is asked."""

    def __post_init__(self):
        self.model.requires_grad_(False)
        body = self.model.body
        self.half = getattr(body, "decoder", body)  # the Transformer whose states become answers
        self.block_size = body.config.block_size
        self.anchor = bool(self.config["flags"].get("anchor"))  # see train_lm.py --anchor
        self.first_gap = self.tokenizer.token_to_id("[S0]")  # None if the run does not fill gaps

    def __repr__(self):
        return f"<{self.folder}: {self.describe()}>"

    def describe(self):
        """Return the model and its data in a few words, for headings."""
        body = self.model.body
        positions = name_positions(body.config)
        if not getattr(body, "causal", False):  # an encoder has several forms of ALiBi
            positions = positions.replace("ALiBi", f"ALiBi ({body.config.alibi})")
        words = [self.kind_name(), positions]
        members = getattr(self.model, "members", ())
        if members:
            words.append(f"first of {len(members)} members")
        data = self.config["flags"].get("data")
        if data:
            words.append(f"trained on {Path(data).name}")
        if self.weights_of:
            words.append(self.weights_of)
        return ", ".join(words)

    def note(self, text):
        """Print a note about how texts are read."""
        print(f"note: {text}")

    def kind_name(self):
        return KIND_NAMES.get(self.kind, self.kind)

    def require_kind(self, kinds, task, scripts):
        """Raise UserError unless this run is of one of the kinds, which can do the task. scripts:
        which train them."""
        if self.kind not in kinds:
            problem = f"a {self.kind_name()} cannot {task}"
            raise UserError(f"{self.folder}: {problem}; load a run of {scripts}")

    @property
    def result(self):
        """result.json: {name: number}."""
        return read_result(self.folder)

    @property
    def metrics(self):
        """metrics.jsonl: [{"step": 0, name: number}, ...]."""
        return read_metrics(self.folder)

    # --------------------------------------------------------------------------- Inside the model
    def attention(self, *texts):
        """Return the `AttentionView` of a text, of several texts a list. For an encoder-decoder or
        a thread reader: {"encoder", "decoder", "cross": AttentionView}.
        The texts of a thread are the post, its replies, and last the comment; the encoder's is that
        of the text which the comment answers."""
        listed = list_texts(self, texts)
        if self.kind != "thread" and (len(texts) > 1 or are_several(texts[0])):
            return [self.attention(text) for text in listed]
        views = {view.part: view for view in record(self, listed)}  # the last of each part
        return views.get("", views)

    def live(self, text="", beside=None):
        """Return a `LivePage`, which a notebook shows: it reads what is typed into it. beside:
        another run to compare with. In Python without a notebook, open its `address`."""
        runs = [self]
        if beside is not None:
            runs.append(beside)
        return LivePage(runs, text)

    @contextmanager
    def without_head(self, layer, head, part=""):
        """Switch off a head in a `with` block: zeros take the place of its output. Layers and heads
        count from 1. part: encoder, decoder or cross, if the run has several attentions. Of an
        ensemble, it is a head of the first member."""
        of_parts = {}  # part: its attentions, layer by layer
        for name, _, attention in attentions(self.model.body):
            of_parts.setdefault(name, []).append(attention)
        if part not in of_parts:
            raise UserError(f"part: {list(of_parts)}, not {part!r}")
        check_number("layer", layer, len(of_parts[part]))
        attention = of_parts[part][layer - 1]
        check_number("head", head, attention.n_head)
        with switch_off(attention, head):
            yield self

    def positions(self):
        """Return a figure of what the position encoding does, or None if there is none."""
        return draw_positions(self.half, self.describe())

    def hooked(self):
        """Return the run as a TransformerLens model; see `to_hooked`. For causal models."""
        self.require_kind(["lm"], "become a HookedTransformer", "train_lm.py")
        return to_hooked(self)

    # ----------------------------------------------------------------------------- Language models
    @of_each_text
    def next_words(self, text="", n=10):
        """Return the n likeliest next words, [(word, probability)], no special tokens. For causal
        models."""
        self.require_kind(["lm"], "continue a text", "train_lm.py")
        (ids,) = encode_texts(self, [text.rstrip()], masked=False).ids
        return self.best_words(next_logits(self, ids), n)

    def fill(self, *texts, n=10):
        """Return [(word, probability)], the n likeliest words, for each [MASK], as if the others
        stayed. For masked LMs and thread readers (the post, replies, and last the comment to fill).
        Of a masked LM, a list of texts gets a list."""
        if self.kind == "mlm" and len(texts) == 1 and are_several(texts[0]):
            return [self.fill(single, n=n) for single in list_texts(self, texts)]
        return [self.best_words(logits, n) for logits in self.mask_logits(*texts)]

    def mask_logits(self, *texts):
        """Return the logits (M, V) of each [MASK], see `fill`."""
        self.require_kind(["mlm", "thread"], "fill a [MASK] with words", "train_mlm.py")
        *above, text = list_texts(self, texts)
        (ids,) = encode_texts(self, [text], masked=True).ids
        inputs = {"idx": ids[None]}  # (1, T)
        if above:
            self.require_kind(["thread"], "read a post and replies", "beyond.train_context")
            nearest = nearest_ancestors(self, above)
            inputs |= inputs_of_ancestors(self, encode_texts(self, nearest, self.block_size).ids)
        h = self.model.body(**inputs)[0]  # (T, C)
        return self.model.head(h[ids == MASK])

    def best_words(self, logits, n):
        """Return the n best words of logits (V,), [(word, probability)], named as in figures."""
        ids, probabilities = top_words(logits)
        names = token_strings(self.tokenizer, ids[:n])
        return list(zip(names, probabilities[:n].tolist()))

    @of_each_text
    def sample(self, text="", n=3, tokens=40, temperature=0.8, top_k=50, seed=0):
        """Return the text continued, filled or translated n times. For lm and seq2seq runs.

        tokens: most tokens to write. temperature: below 1, likelier words; 0: the likeliest, once.
        top_k: words to choose from, None: all. Each sample has random numbers of its own."""
        scripts = "train_lm.py or beyond.train_seq2seq"
        self.require_kind(["lm", "seq2seq"], "write text", scripts)
        text = text.rstrip()
        (ids,) = encode_texts(self, [text], masked=self.first_gap is not None).ids
        if temperature == 0:
            n = 1
        samples = []
        for number in range(n):
            sampler = Sampler(temperature, top_k, generator(seed, "sample", number))
            if self.kind == "lm":
                written = continue_text(self, text, ids, tokens, sampler)
            else:
                written = rewrite_text(self, ids, tokens, sampler)
            samples.append(written.strip())
        return samples

    def translate(self, *texts):
        """Return the greedy translation of each text. For runs that translate."""
        kinds = ["seq2seq"]
        if self.first_gap is not None:
            kinds = []  # an encoder-decoder that fills gaps
        self.require_kind(kinds, "translate", "beyond.train_seq2seq --task translate")
        translations = []
        for text in list_texts(self, texts):
            translations += self.sample(text, tokens=self.block_size, temperature=0)
        return translations

    @of_each_text
    def losses(self, text):
        """Return the loss of each word in nats, [(word, loss)]. For causal and masked LMs. A causal
        model predicts each word from those before it, in blocks as in training. A masked
        LM predicts each known word, as in training, with this word masked and all others seen."""
        scripts = "train_lm.py or train_mlm.py"
        self.require_kind(["lm", "mlm"], "tell the loss of a text", scripts)
        lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
        ids = encode_texts(self, lines).ids
        if not lines or any(MASK in ids_of_line for ids_of_line in ids):
            raise UserError("losses: give a text of words, without [MASK]")
        return word_losses(self, lines)

    @of_each_text
    def perplexity(self, text):
        """Return the perplexity per token: the exponential of the mean of `losses`. A masked LM's
        is lower than in result.json, since only one word at a time is unseen here."""
        losses = torch.tensor([loss for _, loss in self.losses(text)], dtype=torch.float64)
        return losses.mean().exp().item()

    # --------------------------------------------------------------------------------- Classifiers
    def classify(self, *texts):
        """Return {class: probability} of each text or pair (a, b), likeliest first; or score."""
        self.require_kind(["classifier"], "classify", "train_classifier.py")
        logits = [self.model(**batch) for batch in padded_batches(self, list_texts(self, texts))]
        logits = torch.cat(logits)  # (N, n_class)
        if not self.config["classes"]:
            return [{"score": score} for score in logits[:, 0].tolist()]
        answers = []
        for shares in logits.softmax(-1).tolist():
            pairs = zip(self.config["classes"], shares)
            answers.append(dict(sorted(pairs, key=lambda pair: -pair[1])))
        return answers

    def errors(self, n=5):
        """Return the n most confident errors of a classifier on the test rows: dictionaries of
        text, gold, predicted, probability, and seen (whether the row is in the training data)."""
        self.require_kind(["classifier"], "classify", "train_classifier.py")
        if not self.config["classes"]:
            raise UserError(f"{self.folder}: gives scores, not classes; see its scatter.png")
        table = read_predictions(self.folder)
        columns = {
            "text": table.texts,
            "gold": table.gold,
            "predicted": table.predicted,
            "probability": [max(shares) for shares in table.probabilities],
            "seen": table.seen,
        }
        rows = [dict(zip(columns, cells)) for cells in zip(*columns.values())]
        wrong = [row for row in rows if row["gold"] != row["predicted"]]
        return sorted(wrong, key=lambda row: -row["probability"])[:n]

    # ------------------------------------------------------------------------------------- Vectors
    def embed(self, *texts):
        """Return a vector per text, a numpy array (N, C): the mean of the final states, or what a
        classifier's head reads."""
        model = self.model
        body = model.body
        if self.kind == "seq2seq":
            body = body.encoder
        vectors = []
        for batch in padded_batches(self, list_texts(self, texts)):
            if self.kind == "classifier":
                vectors.append(model.project(model.features(**batch)))
            else:
                vectors.append(pool_tokens(body(**batch), batch["mask"], "mean"))
        return torch.cat(vectors).cpu().numpy()
