"""Measure a causal model's perplexity without the words that WikiText writes as <unk>.

    python -m studies.without_unknown out/lm-wikitext2-alibi-0

WikiText-2 has <unk> in place of each rare word; data/corpora/wikitext.py reads it as [UNK]. With
BPE several tokens spell it, and all but the first are nearly certain, which lowers the perplexity.
Here these tokens are read but not counted, and neither are words missing from the model's
vocabulary.

The last column is per word with any tokenizer: the loss of all tokens over the number of words and
line ends. Published tables count somewhat more words, since WikiText splits "a @-@ b" in three, and
their models read longer contexts.
"""

import re
from dataclasses import dataclass

import torch

from data import batching
from data.tokenizer import UNK
from lab import tables
from lab.command import main
from lab.errors import require
from lab.flags import flag
from lab.inside.answers import losses_of_blocks
from lab.optim import perplexity
from studies.probes import ProbeFlags, measure_runs


@dataclass
class Flags(ProbeFlags):
    out: str = flag("", "folder of the results (default: unknown/ in the first run's folder)")


def study(flags):
    measured = measure_runs(flags, ("lm",), "unknown", measure)
    print(write_table(measured))
    measured.finish("unknown.md", "unknown.tex")


def measure(run, corpus, flags):
    """Return numbers over all test sets together: perplexities, and the share of <unk>."""
    trained = run.config["flags"]
    require((corpus.tests, f"--data {corpus.name}: has no test set; give another corpus"))
    T, stride = run.model.body.config.block_size, trained.get("eval_stride", 0)
    nats, known_nats, tokens, known_tokens, words = 0.0, 0.0, 0, 0, 0
    for lines in corpus.tests.values():
        ids, known = encode(run.tokenizer, lines)  # (N + 1,), (N,)
        x, y = batching.consecutive_blocks(ids, T, stride, trained.get("anchor", False))  # (n, T)
        losses = losses_of_blocks(run.model, x, y).double()  # (N,)
        nats, known_nats = nats + losses.sum().item(), known_nats + losses[known].sum().item()
        tokens, known_tokens = tokens + len(known), known_tokens + int(known.sum())
        words += sum(len(line.split()) + 1 for line in lines)
    return {
        "perplexity": perplexity(nats, tokens),
        "without": perplexity(known_nats, known_tokens),
        "share": 1 - known_tokens / tokens,
        "per word": perplexity(nats, words),
    }


def encode(tokenizer, lines):
    """Return the stream of lines (N + 1,) as `batching.stream` does, and for each of its N tokens
    whether it is a known word's (N,)."""
    known = []
    for line in lines:
        encoding = tokenizer.encode(line + "\n", add_special_tokens=False)
        unknown = [match.span() for match in re.finditer(r" ?(?:<unk>|\[UNK\])", line)]
        for i, (begin, end) in zip(encoding.ids, encoding.offsets):
            inside = any(a < end and begin < b for a, b in unknown)
            known.append(i != UNK and not inside)
    return batching.stream(tokenizer, lines), torch.tensor(known)


def write_table(measured):
    """Write unknown.md and unknown.tex, and return the Markdown."""
    header = ["model", "perplexity", "without <unk>", "share of <unk> (%)", "per word"]
    rows = [
        [
            label,
            tables.spread(r["perplexity"], 2),
            tables.spread(r["without"], 2),
            f"{100 * r['share'][0]:.1f}",
            tables.spread(r["per word"], 2),
        ]
        for label, r in measured.results.items()
    ]
    caption = f"Perplexity per token on the test sets of {measured.corpora}, with and without <unk>"
    return tables.write(measured.out / "unknown", header, rows, caption + measured.spread + ".")


if __name__ == "__main__":
    main(study, Flags, __doc__)
