"""Compare the vectors of one word in two sentences, layer by layer.

    python train_mlm.py --data wikitext2 --out out/mlm
    python -m studies.contextual out/mlm --word record --text "a new record" "they record songs"

word2vec has one vector per word, so its similarity with itself is 1. The embeddings of a model
differ by their positions at most; each block mixes in what stands around the word.
"""

from dataclasses import dataclass

import torch
import tyro

from lab import load_run, tables
from lab.flags import main, require
from lab.inside.measure import states_between_blocks
from lab.inside.texts import encode_texts


@dataclass
class Flags:
    run: tyro.conf.Positional[str]  # run folder of train_mlm.py or train_lm.py
    word: str = ""  # the word to compare, which stands in both texts
    text: tuple[str, str] = ("", "")  # two texts


def compare_word(flags):
    run = load_run(flags.run)
    run.require_kind(["lm", "mlm"], "compare a word", "train_mlm.py or train_lm.py")
    first, second = (vectors_of_word(run, text, flags.word) for text in flags.text)
    similarities = torch.cosine_similarity(first, second, dim=-1).tolist()  # n_layer + 1 numbers
    rows = []
    for layer, similarity in enumerate(similarities):
        name = "embedding" if layer == 0 else str(layer)
        rows.append([name, f"{similarity:.3f}"])
    print(tables.to_markdown(["layer", f"similarity of {flags.word}"], rows))


def vectors_of_word(run, text, word):
    """Return the states (n_layer + 1, C) of a word of a text, where it stands first. Raises
    UserError if it does not."""
    encoded = encode_texts(run, [text])
    (ids,), (words,) = encoded.ids, encoded.words
    require(word in words, f"--word {word}: not a word of {text!r} as the run reads it: {words}")
    states = states_between_blocks(run.model.body, run.half, {"idx": ids[None]})
    return torch.stack([h[0, words.index(word)] for h in states])  # of (1, T, C)


if __name__ == "__main__":
    main(compare_word, Flags)
