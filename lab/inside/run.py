"""A trained run in Python: `run = lab.load_run("out/lm-toy-alibi-0")`.

Each method takes texts as they are typed. It reads them as training did: [BOS] in front, cut to
--block-size where the model cannot read more, unknown words as [UNK]. Notes on stdout name what is
unknown and what is truncated.
"""

from dataclasses import dataclass

import torch

from data import batching, spans
from data.files import non_empty_lines
from data.tokenizer import MASK, detokenize, token_strings
from lab.errors import UserError, require
from lab.inside import answers
from lab.inside.attention import readings_of
from lab.inside.describe import KINDS, describe
from lab.inside.lens import writer
from lab.inside.positions import draw_positions
from lab.inside.texts import encode, require_text, unknown_words
from lab.load import SCRIPTS, LoadedRun
from lab.predictions import read_predictions
from lab.records import read_metrics, read_result
from nets.classifier import pool_tokens
from nets.device import send_all
from nets.thread_reader import ancestor_inputs

BATCH = 256  # texts that are classified at once


@dataclass(repr=False, eq=False)
class OpenRun(LoadedRun):
    """A trained run, without gradients and in evaluation mode.

    folder, kind, config (config.json), model, tokenizer: as in LoadedRun. Methods raise UserError
    for a text that the run cannot read, and if this kind of run cannot do what is asked.
    """

    def __post_init__(self):
        self.model.requires_grad_(False)
        self.anchor = bool(self.config["flags"].get("anchor"))  # see train_lm.py --anchor

    def __repr__(self):
        return f"<{self.folder}: {describe(self)}>"

    @property
    def result(self):
        """The final numbers, {name: number}: result.json. UserError before the run has ended."""
        return read_result(self.folder)

    @property
    def metrics(self):
        """The numbers of each evaluation, [{"step": 0, name: number}]: metrics.jsonl."""
        return read_metrics(self.folder)

    # ------------------------------------------------------------------------ attention

    def attention(self, *texts):
        """Return the `AttentionView` of one text.

        For an encoder-decoder or a thread reader: {"encoder", "decoder", "cross": AttentionView}.
        The texts of a thread are the post, its replies, and last the comment; the encoder's is that
        of the text which the comment answers.
        """
        one = len(texts) == 1 or texts and self.kind == "thread"
        require((one, "attention: give one text; only a thread has several"))
        readings = readings_of(self, texts)
        views = {reading.part: reading.views[-1] for reading in readings}
        return views.get("", views)

    def positions(self):
        """Return a figure of the position encoding. Raises UserError for NoPE."""
        figure = draw_positions(writer(self.model.body), describe(self))
        require((figure, f"{self.folder}: NoPE has no position encoding to draw"))
        return figure

    # ------------------------------------------------------------------------ words

    def next_words(self, text="", n=10):
        """Return the n likeliest next words, [(word, probability)]. For causal models.

        Special tokens are left out; the probabilities of all other words sum to 1.
        """
        self.can("continue a text", "lm")
        _, ids = self.read(text)
        words, probabilities = answers.next_words(self.model, ids, anchor=self.anchor)
        return self.named(words[:n], probabilities[:n])

    def fill(self, *texts, n=10):
        """Return the n likeliest words for each [MASK], a list of [(word, probability)] per mask.

        For masked LMs and thread readers. Each mask is filled as if the others stayed masked. The
        texts of a thread are the post, its replies, and last the comment to fill.
        """
        self.can("fill a [MASK] with words", "mlm", "thread")
        one = len(texts) == 1 or texts and self.kind == "thread"
        require((one, "fill: give one text; a thread also has a post and replies before it"))
        *above, text = texts
        _, ids = self.read(text, above)
        more = self.ancestors(above) if above else {}
        found = answers.fill(self.model, ids, **more)
        return [self.named(words[:n], probabilities[:n]) for words, probabilities in found]

    def sample(self, text="", n=3, tokens=40, temperature=0.8, top_k=50, seed=0):
        """Return the text continued, filled or translated n times. For lm and seq2seq runs.

        tokens: most tokens to write. temperature: below 1, likelier words; 0: the likeliest, once.
        top_k: words to choose from, None: all. Each sample has random numbers of its own.
        """
        self.can("write text", "lm", "seq2seq")
        require(
            (temperature >= 0, f"temperature {temperature}: must be at least 0"),
            (top_k is None or top_k >= 1, f"top_k {top_k}: must be at least 1"),
        )
        shown, ids = self.read(text)
        write = self.continued if self.kind == "lm" else self.rewritten
        return [
            write(shown, ids, tokens, temperature, top_k, batching.generator(seed, "sample", i))
            for i in range(n if temperature else 1)
        ]

    def translate(self, *texts):
        """Return the greedy translation of each text. For runs that translate."""
        if self.config["flags"].get("task") != "translate":
            raise self.cannot("translate", "beyond.train_seq2seq --task translate")
        tokens = self.model.body.config.block_size
        return [self.sample(text, tokens=tokens, temperature=0)[0] for text in texts]

    def continued(self, text, ids, *how):
        """Return a text continued as `answers.write` does."""
        start = len(detokenize(self.tokenizer, ids[1:]))
        written = answers.write(self.model, ids, *how, self.anchor)
        return (text + detokenize(self.tokenizer, written[1:])[start:]).strip()

    def rewritten(self, text, source, tokens, *how):
        """Return a text with its gaps filled, or translated, as `answers.rewrite` does."""
        config, first = self.model.body.config, self.config.get("first_sentinel")
        tokens = min(tokens, config.block_size) if config.pos == "learned" else tokens
        written = answers.rewrite(self.model, source, first, tokens, *how)
        if first is not None:  # [MASK] stays where `tokens` did not reach
            whole = spans.restore(source[1:].tolist(), written, first)
            written = [MASK if i >= first else i for i in whole]
        return detokenize(self.tokenizer, written).strip()

    # ------------------------------------------------------------------------ numbers

    def losses(self, text):
        """Return the loss of each word in nats, [(word, loss)]. For causal and masked LMs.

        A causal model predicts each word from those before it, in blocks as in training. A masked
        LM predicts each word with this word masked and all others seen.
        """
        self.can("tell the loss of a text", "lm", "mlm")
        block_size = self.model.body.config.block_size
        require_text(text)
        lines = non_empty_lines(text)
        require((lines, "losses: the text contains no words"))
        problem = "losses: the text contains [MASK], for which no word is right; leave it out"
        require((MASK not in self.tokenizer.encode(text).ids, problem))
        self.note_unknown(text)
        if self.kind == "lm":
            ids = batching.stream(self.tokenizer, lines)
            stride = min(self.config["flags"].get("eval_stride", 0), block_size)
            blocks = batching.consecutive_blocks(ids, block_size, stride, self.anchor)
            losses = answers.losses_of_blocks(self.model, *blocks)
            words = token_strings(self.tokenizer, ids[1:].tolist())
        else:
            parts, _ = batching.sentences(self.tokenizer, lines, block_size, split=True)
            found = [answers.losses_of_masked(self.model, ids) for ids in parts]
            asked, losses = map(torch.cat, zip(*found))
            words = token_strings(self.tokenizer, asked.tolist())
        require((len(losses), "losses: the text contains no words"))
        return list(zip(words, losses.tolist()))

    def perplexity(self, text):
        """Return the perplexity per token: the exponential of the mean of `losses`.

        That of a run of train_lm.py is comparable with result.json. A masked LM's is not: training
        masks many words at once, and here only one word is unseen at a time.
        """
        losses = torch.tensor([loss for _, loss in self.losses(text)], dtype=torch.float64)
        return losses.mean().exp().item()

    def classify(self, *texts):
        """Return {class: probability} for each text, the likeliest first. For classifiers."""
        self.can("classify", "classifier")
        require((texts, "classify: no text; give one or more"))
        for text in texts:
            encode(self, text)  # raises UserError if the text has no words
        shares = torch.cat([self.model(*batch).softmax(-1) for batch in self.batches(texts)])
        named = (zip(self.config["classes"], row) for row in shares.tolist())
        return [dict(sorted(row, key=lambda pair: -pair[1])) for row in named]

    def errors(self, n=5):
        """Return the n most confident errors on the test rows, for classifiers: dictionaries of
        text, gold, predicted, probability, and seen (whether the row is in the training data)."""
        self.can("classify", "classifier")
        names = ("text", "gold", "predicted", "probability", "seen")
        rows = [dict(zip(names, row)) for row in read_predictions(self.folder)]
        wrong = [row for row in rows if row["gold"] != row["predicted"]]
        return sorted(wrong, key=lambda row: -row["probability"])[:n]

    def embed(self, *texts):
        """Return one vector per text, a numpy array (N, C): the final hidden states, averaged over
        the tokens with [BOS]. A classifier's are the features that its head reads, (N, n_features),
        or the log-likelihood of each class."""
        require((texts, "embed: no text; give one or more"))
        return torch.cat([self.vectors(*batch) for batch in self.batches(texts)]).cpu().numpy()

    def vectors(self, idx, mask):
        """idx, mask (B, T) -> (B, C), as `embed` says."""
        if self.kind == "classifier":
            return self.model.project(self.model.features(idx, mask))
        body = self.model.body
        h = (body.encoder if self.kind == "seq2seq" else body)(idx, mask)  # (B, T, C)
        return pool_tokens(h, mask, "mean")

    # ------------------------------------------------------------------------ reading texts

    def can(self, what, *kinds):
        """Raise UserError unless a run of this kind can do `what`."""
        if self.kind not in kinds:
            raise self.cannot(what, " or ".join(SCRIPTS[kind] for kind in kinds))

    def cannot(self, what, scripts):
        kind = "an encoder-decoder" if self.kind == "seq2seq" else f"a {KINDS[self.kind]}"
        return UserError(f"{self.folder}: {kind} cannot {what}; load a run of {scripts}")

    def read(self, text, above=()):
        """Return a text as it is shown and its ids (T,); print a note of unknown words."""
        shown, ids = encode(self, text)
        self.note_unknown(*above, text)
        return shown, ids

    def note_unknown(self, *texts):
        unknown = [word for text in texts for word in unknown_words(self, text)]
        if unknown:
            more = f" and {len(unknown) - 30:,} more" if len(unknown) > 30 else ""
            print(f"note: unknown words, read as [UNK]: {' '.join(unknown[:30])}{more}")

    def batches(self, texts):
        """Yield idx, mask (B, T) of texts, cut to --block-size as in training, with notes."""
        block_size = self.model.body.config.block_size
        self.note_unknown(*texts)
        sequences, n_long = batching.sentences(self.tokenizer, texts, block_size)
        if n_long:
            print(
                f"note: only the first {block_size} tokens count, as in training "
                f"({n_long:,} of {len(texts):,} texts are longer)"
            )
        for start in range(0, len(sequences), BATCH):
            idx, mask = batching.pad(sequences[start : start + BATCH])
            yield idx.to(self.device), mask.to(self.device)

    def ancestors(self, texts):
        """Return what a thread reader reads of the texts above a comment, the post first."""
        nearest = texts[-self.config["reader"]["n_ancestors"] :]
        block_size = self.model.body.config.block_size
        ids, _ = batching.sentences(self.tokenizer, nearest, block_size)
        return send_all(ancestor_inputs(*batching.pad(ids)), self.device)

    def named(self, ids, probabilities):
        """Return [(word, probability)] of ids and probabilities (n,), the words as in figures."""
        return list(zip(token_strings(self.tokenizer, ids), probabilities.tolist()))
