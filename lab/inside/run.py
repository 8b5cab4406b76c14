"""A trained run in Python: `run = lab.load_run("out/lm-toy-alibi-0")`.

Methods take texts as they are typed and read them as training did: [BOS] in front, cut to
--block-size where the model cannot read more, unknown words as [UNK]. Notes on stdout say so.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from data import batching, spans
from data.batching import send_all
from data.files import UserError
from data.tokenizer import BOS, EOS, MASK, UNK, detokenize, frame, token_strings
from lab.figures import name_positions
from lab.inside import answers
from lab.inside.attention import record
from lab.inside.lens import attentions, switch_off
from lab.inside.maps import draw_tables, position_tables
from lab.load import LoadedRun, read_metrics, read_result
from lab.predictions import read_predictions
from nets.classifier import pool_tokens
from nets.seq2seq import ancestor_inputs

KINDS = dict(lm="causal LM", mlm="masked LM", seq2seq="encoder-decoder", thread="thread reader")


@dataclass(repr=False, eq=False)
class OpenRun(LoadedRun):
    """A trained run, without gradients and in evaluation mode.

    Methods raise UserError for a text that the run cannot read, and if this kind of run cannot do
    what is asked.
    """

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
        body, data = self.model.body, self.config["flags"].get("data", "")
        positions, members = name_positions(body.config), getattr(self.model, "members", ())
        if not getattr(body, "causal", False):
            positions = positions.replace("ALiBi", f"ALiBi ({body.config.alibi})")
        of = f"first of {len(members)} members" if members else ""
        data = f"trained on {Path(data).name}" if data else ""
        words = [KINDS.get(self.kind, self.kind), positions, of, data, self.weights_of]
        return ", ".join(filter(None, words))

    result = property(lambda self: read_result(self.folder))  # result.json: {name: number}
    metrics = property(lambda self: read_metrics(self.folder))  # [{"step": 0, name: number}, ...]

    # ------------------------------------------------------------------------ attention

    def attention(self, *texts):
        """Return the `AttentionView` of one text.

        For an encoder-decoder or a thread reader: {"encoder", "decoder", "cross": AttentionView}.
        The texts of a thread are the post, its replies, and last the comment; the encoder's is that
        of the text which the comment answers.
        """
        views = {view.part: view for view in record(self, self.checked(texts))}  # last of each part
        return views.get("", views)

    @contextmanager
    def without_head(self, layer, head, part=""):
        """Switch off a head in a `with` block: zeros take the place of its output.

        layer, head: counted from 1. part: encoder, decoder or cross, if the run has several
        attentions. Of an ensemble, it is a head of the first member.
        """
        found = {(name, i): attention for name, i, attention in attentions(self.model.body)}
        with switch_off(found[part, layer], head - 1):
            yield self

    def positions(self):
        """Return a figure of what the position encoding does. Raises UserError if nothing."""
        tables = position_tables(self.half)
        if not tables:
            raise UserError(f"{self.folder}: has no position encoding to draw")
        return draw_tables(tables, self.describe())

    # ------------------------------------------------------------------------ words

    def next_words(self, text="", n=10):
        """Return the n likeliest next words, [(word, probability)]. For causal models.

        Special tokens are left out; the probabilities of all other words sum to 1.
        """
        self.must_be("lm", "continue a text", "train_lm.py")
        (ids,), _ = self.read(text.rstrip(), masked=False)
        return self.named(answers.next_words(self.model, ids, anchor=self.anchor), n)

    def fill(self, *texts, n=10):
        """Return the n likeliest words for each [MASK], a list of [(word, probability)] per mask.

        For masked LMs and thread readers (the post, its replies, and last the comment to fill).
        Each mask is filled as if the others stayed masked.
        """
        self.must_be("mlm thread", "fill a [MASK] with words", "train_mlm.py")
        *above, text = self.checked(texts)
        (ids,), _ = self.read(text, masked=True)
        inputs = {"idx": ids[None]}
        if above:
            nearest, _ = self.read(*above[-self.config["build"]["n_ancestors"] :], cut=True)
            inputs |= send_all(ancestor_inputs(*batching.pad(nearest)), self.device)
        logits = self.model.head(self.model.body(**inputs)[0, ids == MASK])  # (M, V)
        return [self.named(answers.top_words(x), n) for x in answers.no_specials(logits)]

    def sample(self, text="", n=3, tokens=40, temperature=0.8, top_k=50, seed=0):
        """Return the text continued, filled or translated n times. For lm and seq2seq runs.

        tokens: most tokens to write. temperature: below 1, likelier words; 0: the likeliest, once.
        top_k: words to choose from, None: all. Each sample has random numbers of its own.
        """
        self.must_be("lm seq2seq", "write text", "train_lm.py or beyond.train_seq2seq")
        text, first, written = text.rstrip(), self.first_gap, []
        (ids,), _ = self.read(text, masked=first is not None)
        for i in range(n if temperature else 1):
            how = tokens, temperature, top_k, batching.generator(seed, "sample", i)
            if self.kind == "lm":
                start = len(detokenize(self.tokenizer, ids[1:]))
                more = answers.write(self.model, ids, *how, self.anchor)
                written.append(text + detokenize(self.tokenizer, more[1:])[start:])
                continue
            source = self.number_gaps(ids)
            target = answers.rewrite(self.model, source, first, *how)
            if first is not None:  # [MASK] stays where `tokens` did not reach
                whole = spans.restore(source[1:].tolist(), target, first)
                target = [MASK if i >= first else i for i in whole]
            written.append(detokenize(self.tokenizer, target))
        return [one.strip() for one in written]

    def translate(self, *texts):
        """Return the greedy translation of each text. For runs that translate."""
        kinds = "seq2seq" if self.first_gap is None else "none"
        self.must_be(kinds, "translate", "beyond.train_seq2seq --task translate")
        return [self.sample(text, tokens=self.block_size, temperature=0)[0] for text in texts]

    # ------------------------------------------------------------------------ numbers

    def losses(self, text):
        """Return the loss of each word in nats, [(word, loss)]. For causal and masked LMs.

        A causal model predicts each word from those before it, in blocks as in training. A masked
        LM predicts each word with this word masked and all others seen.
        """
        self.must_be("lm mlm", "tell the loss of a text", "train_lm.py or train_mlm.py")
        lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
        if not lines or any(MASK in ids for ids in self.read(*lines)[0]):
            raise UserError("losses: give a text of words, without [MASK]")
        if self.kind == "lm":
            ids = batching.stream(self.tokenizer, lines)
            stride = min(self.config["flags"].get("eval_stride", 0), self.block_size)
            blocks = batching.consecutive_blocks(ids, self.block_size, stride, self.anchor)
            words, losses = ids[1:], answers.losses_of_blocks(self.model, *blocks)
        else:
            parts, _ = batching.sentences(self.tokenizer, lines, self.block_size, split=True)
            found = [answers.losses_of_masked(self.model, ids) for ids in parts]
            words, losses = map(torch.cat, zip(*found))
        return list(zip(token_strings(self.tokenizer, words), losses.tolist()))

    def perplexity(self, text):
        """Return the perplexity per token: the exponential of the mean of `losses`.

        A masked LM's is lower than in result.json, since only one word at a time is unseen here.
        """
        losses = torch.tensor([loss for _, loss in self.losses(text)], dtype=torch.float64)
        return losses.mean().exp().item()

    def classify(self, *texts):
        """Return {class: probability} for each text, the likeliest first. For classifiers."""
        self.must_be("classifier", "classify", "train_classifier.py")
        shares = torch.cat([self.model(**batch).softmax(-1) for batch in self.batches(texts)])
        named = (zip(self.config["classes"], row) for row in shares.tolist())
        return [dict(sorted(row, key=lambda pair: -pair[1])) for row in named]

    def errors(self, n=5):
        """Return the n most confident errors of a classifier on the test rows: dictionaries of
        text, gold, predicted, probability, and seen (whether the row is in the training data)."""
        names = ("text", "gold", "predicted", "probability", "seen")
        rows = [dict(zip(names, row)) for row in read_predictions(self.folder)]
        wrong = [row for row in rows if row["gold"] != row["predicted"]]
        return sorted(wrong, key=lambda row: -row["probability"])[:n]

    def embed(self, *texts):
        """Return a vector per text, a numpy array (N, C): the mean of the final states, or what a
        classifier's head reads: features, or the log-likelihood of each class."""
        model, vectors = self.model, []
        for batch in self.batches(texts):
            if self.kind == "classifier":
                vectors.append(model.project(model.features(**batch)))
            else:
                body = model.body.encoder if self.kind == "seq2seq" else model.body
                vectors.append(pool_tokens(body(**batch), batch["mask"], "mean"))
        return torch.cat(vectors).cpu().numpy()

    # ------------------------------------------------------------------------ reading texts

    def read(self, *texts, cut=False, masked=None):
        """Return the ids (T,) that the run reads of each text, and the words as they are shown.

        A star marks an unknown word, which is shown as it was typed; … ends a text that is cut to
        --block-size. masked: whether the texts must have a [MASK] or must not, to be answered.
        Raises UserError for a text that the run cannot read.
        """
        around = len(frame(self.tokenizer, []))  # [BOS], and for RoBERTa [EOS]
        room, sequences, shown, unknown, n_long = self.block_size - around, [], [], [], 0
        ends = masked is not None and self.half.positions.ends and self.kind != "lm"
        for text in texts:
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
            ids, words = encoding.ids, token_strings(self.tokenizer, encoding.ids)
            problem = ""
            if self.kind != "lm" and not set(ids) - {BOS, EOS}:
                problem = "contains no words; give a sentence"
            elif masked and MASK not in ids:
                problem = "no [MASK] found; put one where a word is missing"
            elif masked is False and MASK in ids:
                problem = "has a [MASK]; runs of train_mlm.py and beyond.train_seq2seq fill it"
            elif ends and not cut and len(ids) > room:
                problem = f"has {len(ids)} tokens, but learned positions end at {room}; shorten it"
            if problem:
                raise UserError(f"text {text[:80]!r}: {problem}")
            for n, (i, (start, end)) in enumerate(zip(ids, encoding.offsets)):
                if i == UNK and text[start:end] != "[UNK]":
                    words[n] = text[start:end] + "*"
                    unknown.append(text[start:end])
            if cut and len(ids) > room:
                ids, words, n_long = ids[:room], words[:room], n_long + 1
                words[-1] += " …"
            sequences.append(torch.tensor(frame(self.tokenizer, ids), device=self.device))
            shown.append(["[BOS]", *words, *["[EOS]"] * (around - 1)])
        if unknown:
            more = f" and {len(unknown) - 30:,} more" if len(unknown) > 30 else ""
            print(f"note: unknown words, read as [UNK]: {' '.join(unknown[:30])}{more}")
        if n_long:
            cut_to = f"cut to {self.block_size} tokens, as in training"
            print(f"note: {n_long:,} of {len(texts):,} texts are {cut_to}")
        return sequences, shown

    def number_gaps(self, ids):
        """Return ids (T,) with [S0], [S1], ... in place of each [MASK] if the run fills gaps."""
        gaps, first = ids == MASK, self.first_gap or 0
        if gaps.sum() > (most := self.model.body.config.vocab_size - first):
            raise UserError(f"{self.folder}: was trained with {most} gaps; use fewer [MASK]s")
        return ids.masked_scatter(gaps, first + torch.arange(len(ids), device=ids.device))

    def batches(self, texts):
        """Yield {"idx": (B, T), "mask": (B, T)} of texts, cut to --block-size as in training."""
        ids, _ = self.read(*texts, cut=True)
        for i in range(0, len(ids), 256):
            yield send_all(dict(zip(("idx", "mask"), batching.pad(ids[i : i + 256]))), self.device)

    def named(self, found, n):
        """Return n [(word, probability)] of ids and probabilities, the words as in figures."""
        ids, probabilities = found
        return list(zip(token_strings(self.tokenizer, ids[:n]), probabilities[:n].tolist()))

    def checked(self, texts):
        """Return texts. Raises UserError unless there is one, or several of a thread."""
        if len(texts) != 1 and not (texts and self.kind == "thread"):
            raise UserError("give one text; only a thread also has a post and replies before it")
        return texts

    def must_be(self, kinds, what, scripts):
        """Raise UserError unless this run is of one of the kinds, which can do `what`."""
        if self.kind not in kinds.split():
            kind = KINDS.get(self.kind, self.kind)
            raise UserError(f"{self.folder}: a {kind} cannot {what}; load a run of {scripts}")
