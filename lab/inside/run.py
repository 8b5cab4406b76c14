"""A trained run in Python: `run = lab.load_run("out/lm-toy-alibi-0")`.

Methods take texts as they are typed and read them as training did: [BOS] in front, cut to
--block-size where the model cannot read more, unknown words as [UNK]. Notes on stdout say so.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from data import batching, spans
from data.corpus import PAIR
from data.files import UserError
from data.tokenizer import BOS, EOS, MASK, SPECIAL, UNK, detokenize, frame, token_strings
from lab.figures import name_positions
from lab.inside import lens, maps
from lab.inside.attention import record
from lab.inside.hooked import to_hooked
from lab.load import LoadedRun, read_metrics, read_result
from lab.predictions import read_predictions
from nets.cached import CachedReader
from nets.classifier import pool_tokens
from nets.ensemble import members_of
from nets.seq2seq import ancestor_inputs, generate

KINDS = dict(lm="causal LM", mlm="masked LM", seq2seq="encoder-decoder", thread="thread reader")


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
        body, words = self.model.body, [KINDS.get(self.kind, self.kind)]
        form = "" if getattr(body, "causal", False) else f" ({body.config.alibi})"
        words.append(name_positions(body.config).replace("ALiBi", f"ALiBi{form}"))
        if members := getattr(self.model, "members", ()):
            words.append(f"first of {len(members)} members")
        if data := self.config["flags"].get("data"):
            words.append(f"trained on {Path(data).name}")
        return ", ".join(words + [self.weights_of] * bool(self.weights_of))

    result = property(lambda self: read_result(self.folder))  # result.json: {name: number}
    metrics = property(lambda self: read_metrics(self.folder))  # [{"step": 0, name: number}, ...]

    def attention(self, *texts):
        """Return the `AttentionView` of a text. For an encoder-decoder or a thread reader:
        {"encoder", "decoder", "cross": AttentionView}.
        The texts of a thread are the post, its replies, and last the comment; the encoder's is that
        of the text which the comment answers."""
        views = {view.part: view for view in record(self, texts)}  # the last of each part
        return views.get("", views)

    @contextmanager
    def without_head(self, layer, head, part=""):
        """Switch off a head in a `with` block: zeros take the place of its output. Layers and heads
        count from 1. part: encoder, decoder or cross, if the run has several attentions. Of an
        ensemble, it is a head of the first member."""
        found = {(name, i): attention for name, i, attention in lens.attentions(self.model.body)}
        with lens.switch_off(found[part, layer], head):
            yield self

    def positions(self):
        """Return a figure of what the position encoding does, or None if there is none."""
        return maps.draw_positions(self.half, self.describe())

    def hooked(self):
        """Return the run as a TransformerLens model; see `to_hooked`. For causal models."""
        self.must_be("lm", "become a HookedTransformer", "train_lm.py")
        return to_hooked(self)

    def next_words(self, text="", n=10):
        """Return the n likeliest next words, [(word, probability)], no special tokens. For causal
        models."""
        self.must_be("lm", "continue a text", "train_lm.py")
        (ids,), _ = self.read(text.rstrip(), masked=False)
        return self.best(self.next_logits(ids), n)

    def fill(self, *texts, n=10):
        """Return [(word, probability)], the n likeliest words, for each [MASK], as if the others
        stayed. For masked LMs and thread readers (the post, replies, and last the comment to fill).
        """
        self.must_be("mlm thread", "fill a [MASK] with words", "train_mlm.py")
        *above, text = texts
        (ids,), _ = self.read(text, masked=True)
        inputs = {"idx": ids[None]}
        if above:
            self.must_be("thread", "read a post and replies", "beyond.train_context")
            nearest, _ = self.read(*above[-self.config["build"]["n_ancestors"] :], cut=True)
            inputs |= batching.send_all(ancestor_inputs(*batching.pad(nearest)), self.device)
        logits = self.model.head(self.model.body(**inputs)[0, ids == MASK])  # (M, V)
        return [self.best(of_mask, n) for of_mask in logits]

    def sample(self, text="", n=3, tokens=40, temperature=0.8, top_k=50, seed=0):
        """Return the text continued, filled or translated n times. For lm and seq2seq runs.

        tokens: most tokens to write. temperature: below 1, likelier words; 0: the likeliest, once.
        top_k: words to choose from, None: all. Each sample has random numbers of its own."""
        self.must_be("lm seq2seq", "write text", "train_lm.py or beyond.train_seq2seq")
        text, first, written = text.rstrip(), self.first_gap, []
        (ids,), _ = self.read(text, masked=first is not None)
        for i in range(n if temperature else 1):
            how = tokens, temperature, top_k, batching.generator(seed, "sample", i)
            if self.kind == "lm":
                start, more = len(detokenize(self.tokenizer, ids[1:])), self.write(ids, *how)[1:]
                written.append(text + detokenize(self.tokenizer, more)[start:])
            else:
                target = self.rewrite(source := self.number_gaps(ids), *how)
                if first is not None:  # [MASK] stays where `tokens` did not reach
                    whole = spans.restore(source[1:].tolist(), target, first)
                    target = [MASK if i >= first else i for i in whole]
                written.append(detokenize(self.tokenizer, target))
        return [one.strip() for one in written]

    def translate(self, *texts):
        """Return the greedy translation of each text. For runs that translate."""
        kind = "seq2seq" if self.first_gap is None else ""
        self.must_be(kind, "translate", "beyond.train_seq2seq --task translate")
        return [self.sample(text, tokens=self.block_size, temperature=0)[0] for text in texts]

    def losses(self, text):
        """Return the loss of each word in nats, [(word, loss)]. For causal and masked LMs. A causal
        model predicts each word from those before it, in blocks as in training. A masked
        LM predicts each known word, as in training, with this word masked and all others seen."""
        self.must_be("lm mlm", "tell the loss of a text", "train_lm.py or train_mlm.py")
        lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
        if not lines or any(MASK in ids for ids in self.read(*lines)[0]):
            raise UserError("losses: give a text of words, without [MASK]")
        words, blocks, losses, n_unknown = [], [], [], 0
        if self.kind == "lm":
            ids = batching.stream(self.tokenizer, lines)
            stride = min(self.config["flags"].get("eval_stride", 0), self.block_size)
            words = [ids[1:]]
            blocks = [batching.consecutive_blocks(ids, self.block_size, stride, self.anchor)]
        else:
            for ids in batching.sentences(self.tokenizer, lines, self.block_size, split=True)[0]:
                places = (ids >= len(SPECIAL)).nonzero()  # (N, 1)
                n_unknown += int((ids == UNK).sum())
                if len(places):
                    here = torch.arange(len(ids)) == places  # (N, T), the masked word of each row
                    words.append(ids[places[:, 0]])
                    blocks.append((torch.where(here, MASK, ids), torch.where(here, ids, -100)))
        if n_unknown:
            print(f"note: {n_unknown:,} unknown words are not predicted, so they are left out")
        if not words:
            raise UserError("losses: no word of the text is known; give other words")
        for inputs, targets in blocks:  # (n, T)
            for x, y in zip(inputs.split(64), targets.split(64)):
                losses += self.model.losses(x.to(self.device), y).tolist()
        return list(zip(token_strings(self.tokenizer, torch.cat(words)), losses))

    def perplexity(self, text):
        """Return the perplexity per token: the exponential of the mean of `losses`. A masked LM's
        is lower than in result.json, since only one word at a time is unseen here."""
        losses = torch.tensor([loss for _, loss in self.losses(text)], dtype=torch.float64)
        return losses.mean().exp().item()

    def classify(self, *texts):
        """Return {class: probability} of each text or pair (a, b), likeliest first; or score."""
        self.must_be("classifier", "classify", "train_classifier.py")
        if not self.config["classes"]:
            scores = torch.cat([self.model(**batch)[:, 0] for batch in self.batches(texts)])
            return [{"score": score} for score in scores.tolist()]
        shares = torch.cat([self.model(**batch).softmax(-1) for batch in self.batches(texts)])
        named = (zip(self.config["classes"], row) for row in shares.tolist())
        return [dict(sorted(row, key=lambda pair: -pair[1])) for row in named]

    def errors(self, n=5):
        """Return the n most confident errors of a classifier on the test rows: dictionaries of
        text, gold, predicted, probability, and seen (whether the row is in the training data)."""
        if not self.config["classes"]:
            raise UserError(f"{self.folder}: gives scores, not classes; see its scatter.png")
        names = ("text", "gold", "predicted", "probability", "seen")
        _, *columns, probabilities, seen = read_predictions(self.folder)
        rows = [dict(zip(names, row)) for row in zip(*columns, map(max, probabilities), seen)]
        wrong = [row for row in rows if row["gold"] != row["predicted"]]
        return sorted(wrong, key=lambda row: -row["probability"])[:n]

    def embed(self, *texts):
        """Return a vector per text, a numpy array (N, C): the mean of the final states, or what a
        classifier's head reads."""
        model, vectors = self.model, []
        body = model.body.encoder if self.kind == "seq2seq" else model.body
        for batch in self.batches(texts):
            if self.kind == "classifier":
                vectors.append(model.project(model.features(**batch)))
            else:
                vectors.append(pool_tokens(body(**batch), batch["mask"], "mean"))
        return torch.cat(vectors).cpu().numpy()

    @torch.no_grad()
    def next_logits(self, ids):
        """Return the logits (V,) of the word after ids (T,). Learned positions see only the last
        block_size tokens; with an anchor, [BOS] comes before them."""
        if self.half.positions.ends and len(ids) > self.block_size:
            ids = torch.cat([ids[: self.anchor], ids[self.anchor - self.block_size :]])
        return self.model(ids[None])[0, -1]

    @torch.no_grad()
    def write(self, ids, n_tokens, temperature, top_k, gen):
        """Return ids (T,) continued by n_tokens."""
        members, n_read = members_of(self.model), 0
        readers = [CachedReader(member.body) for member in members]
        for _ in range(n_tokens):
            if self.half.positions.ends and len(ids) > self.block_size:  # all positions change
                logits = self.next_logits(ids)
            else:
                unread, n_read = ids[None, n_read:], len(ids)
                h = [reader.read(unread)[0, -1] for reader in readers]  # of each member (C,)
                logs = [member.head(x).log_softmax(-1) for member, x in zip(members, h)]
                logits = torch.stack(logs).logsumexp(0)
            ids = torch.cat([ids, draw_word(logits, temperature, top_k, gen)])
        return ids

    def rewrite(self, source, n_tokens, temperature=0, top_k=None, gen=None):
        """Return what an encoder-decoder writes for source (S,) up to [EOS], a list of ids.

        Whatever ends a gap, a sentinel or [EOS], leads to the next gap of the source. Every gap
        gets a word, as in training."""
        first, is_empty = self.first_gap, False  # the gap that is being filled
        ends = [] if first is None else [*source[source >= first].tolist(), EOS]  # of each gap

        def choose(logits):  # (1, V) -> (1,)
            nonlocal is_empty
            logits = logits[0]
            if ends:
                any_end = torch.tensor([EOS, *range(first, len(logits))], device=logits.device)
                end = logits[any_end].logsumexp(0)
                logits[slice(None) if ends[0] == first else any_end] = -torch.inf
                logits[ends[0]] = -torch.inf if is_empty else end
            word = draw_word(logits, temperature, top_k, gen, first=EOS)
            if is_empty := bool(ends) and word.item() == ends[0]:
                ends.pop(0)
            return word

        n_tokens = min(n_tokens, self.block_size) if self.half.positions.ends else n_tokens
        ids = generate(self.model, source[None], None, n_tokens, choose)[0].tolist()
        return ids[: ids.index(EOS)] if EOS in ids else ids

    def best(self, logits, n):
        """Return the n best words of logits (V,), [(word, probability)], named as in figures."""
        ids, probabilities = top_words(logits)
        return list(zip(token_strings(self.tokenizer, ids[:n]), probabilities[:n].tolist()))

    def number_gaps(self, ids):
        """Return ids (T,) with [S0], [S1], ... in place of each [MASK] if the run fills gaps."""
        gaps, first = ids == MASK, self.first_gap or 0
        if self.first_gap and (ids >= first).any():
            raise UserError("text: [S0], [S1], ... number the gaps; write [MASK] for each gap")
        if gaps.sum() > (most := self.model.body.config.vocab_size - first):
            raise UserError(f"{self.folder}: was trained with {most} gaps; use fewer [MASK]s")
        return ids.masked_scatter(gaps, first + torch.arange(len(ids), device=ids.device))

    def read(self, *texts, cut=False, masked=None):
        """Return the ids (T,) that the run reads of each text, and the words as they are shown.

        A star marks an unknown word, which is shown as it was typed; … ends a text that is cut to
        --block-size. masked: whether the texts must have a [MASK] or must not, to be answered."""
        around = len(frame(self.tokenizer, []))  # [BOS], and for RoBERTa [EOS]
        room, sequences, shown, unknown, n_long = self.block_size - around, [], [], [], 0
        ends = masked is not None and self.half.positions.ends and self.kind != "lm"
        texts = [text if isinstance(text, str) else PAIR.join(text) for text in texts]
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
            for n, (start, end) in enumerate(encoding.offsets):
                if ids[n] == UNK and text[start:end] != "[UNK]":
                    words[n] = text[start:end] + "*"
                    unknown.append(text[start:end])
            if cut and len(ids) > room:
                ids, words, n_long = ids[:room], words[:room], n_long + 1
                words[-1] += " …"
            sequences.append(torch.tensor(frame(self.tokenizer, ids), device=self.device))
            shown.append(["[BOS]", *words, *["[EOS]"] * (around - 1)])
        if unknown:
            more = ["…"] * (len(unknown) > 30)
            print("note: unknown words, read as [UNK]:", *unknown[:30], *more)
        if n_long:
            print(f"note: {n_long:,} of {len(texts):,} texts are cut to {self.block_size} tokens")
        return sequences, shown

    def batches(self, texts):
        """Yield {"idx": (B, T), "mask": (B, T)} of texts, cut to --block-size as in training."""
        ids, _ = self.read(*texts, cut=True)
        for i in range(0, len(ids), 256):
            batch = dict(zip(("idx", "mask"), batching.pad(ids[i : i + 256])))
            yield batching.send_all(batch, self.device)

    def must_be(self, kinds, what, scripts):
        """Raise UserError unless this run is of one of the kinds, which can do `what`."""
        if self.kind not in kinds.split():
            kind = KINDS.get(self.kind, self.kind)
            raise UserError(f"{self.folder}: a {kind} cannot {what}; load a run of {scripts}")


def top_words(logits, temperature=1.0, top_k=None, first=EOS + 1):
    """Return the k best words of logits (V,) and their probabilities; at temperature 0 only the
    best. Ids before `first`, the special tokens, and words at -inf are left out."""
    logits = logits[first:]
    n_word = int(logits.isfinite().sum())
    values, words = logits.topk(min(top_k or n_word, n_word) if temperature else 1)
    # Dividing by less than 1e-6 would give infinite scores.
    return first + words, (values / max(temperature, 1e-6)).softmax(-1)


def draw_word(logits, temperature, top_k, gen, **more):
    """Draw one of `top_words` (1,). gen is on the CPU, so all devices draw the same numbers."""
    words, probabilities = top_words(logits, temperature, top_k, **more)
    return words[torch.multinomial(probabilities.cpu(), 1, generator=gen).to(words.device)]
