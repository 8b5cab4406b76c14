"""Write a pretrained encoder as a folder that Hugging Face's transformers loads as RoBERTa.

    python train_mlm.py --pos learned --no-norm-first --head roberta --out out/encoder
    python -m beyond.export out/encoder --out my-roberta

Only RoBERTa's architecture can be exported, so the run needs the flags of the first command.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tyro.conf import Positional

from data.files import UserError
from data.leaks import read_hashes, write_hashes
from data.tokenizer import frame
from lab.flags import Folder, RunFolder, main
from lab.load import read_run
from nets.build import Options
from nets.roberta import FIXED, NAMES, OURS, import_transformers, paired_layers, rename_tokens

# Options that may differ from RoBERTa's, or do not matter
FREE = (*NAMES, "vocab_size", "block_size", "alibi", "mask_id")


@dataclass
class Flags:
    run: Positional[RunFolder]  # run folder of train_mlm.py
    out: Folder = ""  # folder to write; '': roberta/ in the run folder


def export(flags):
    run = read_run(flags.run, ["mlm"])
    folder = run.folder / "roberta"
    if flags.out:
        folder = Path(flags.out).expanduser()
    transformers = import_transformers()
    check_architecture(run)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--out {folder}: is not empty; choose another folder")

    # Tokens in RoBERTa's order, and their ids here
    ids = run.tokenizer.get_vocab()
    special_names = {ours: theirs for theirs, ours in OURS.items()}
    words = sorted(ids.keys() - special_names.keys(), key=ids.get)
    tokens = ["[BOS]", "[PAD]", "[EOS]", "[UNK]", *words, "[MASK]"]
    rows = torch.tensor([ids[token] for token in tokens])  # (V,)

    model = to_roberta(run.model, rows, transformers)
    check_logits(run, model, rows)
    frames = ["<s>", "$A"]
    if len(frame(run.tokenizer, [])) > 1:  # it adds [EOS] too
        frames.append("</s>")
    tokenizer = rename_tokens(run.tokenizer, tokens, special_names, frames)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=run.model.body.config.block_size,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    ).save_pretrained(folder)
    for path in folder.iterdir():  # safetensors lets only the owner read a file
        shutil.copymode(folder / "config.json", path)
    write_hashes(folder, [read_hashes(run.folder)])
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    print(f"{folder}: {names}; in Python:")
    print(f"  transformers.AutoModelForMaskedLM.from_pretrained({str(folder)!r})")
    print(f"  transformers.AutoTokenizer.from_pretrained({str(folder)!r})")


def check_architecture(run):
    """Raise UserError unless the model of a run has RoBERTa's architecture."""
    config = run.model.body.config
    free = {name: getattr(config, name) for name in FREE}
    roberta = asdict(Options(**free, **FIXED))  # the nearest that RoBERTa can be
    differences = []
    for name, value in asdict(config).items():
        if value != roberta[name]:
            differences.append(f"{name}={value}")
    if run.model.body.causal:
        differences.append("a decoder")
    if differences:
        problem = f"RoBERTa does not have {', '.join(differences)}"
        remedy = "train with --pos learned --no-norm-first --head roberta and without other options"
        raise UserError(f"{run.folder}: {problem}; {remedy}")


def to_roberta(model, rows, transformers):
    """Return a RobertaForMaskedLM with our weights. rows (V,): our ids of its words."""
    config = model.body.config
    sizes = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    roberta = transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.block_size + 2,  # the first two rows are never read
            type_vocab_size=1,
            **sizes,
        )
    )
    embeddings = roberta.roberta.embeddings
    with torch.no_grad():
        embeddings.word_embeddings.weight.copy_(model.body.embedding.weight[rows])
        embeddings.position_embeddings.weight[2:] = model.body.positions.vectors.weight
        embeddings.token_type_embeddings.weight.zero_()
        roberta.lm_head.decoder.weight.copy_(model.head.words.weight[rows])
        roberta.lm_head.bias.copy_(model.head.bias[rows])
        roberta.lm_head.decoder.bias.copy_(model.head.bias[rows])  # another one without --tie
        for layer, parts in paired_layers(model, roberta):
            copy_layer(layer, parts)
    return roberta


@torch.no_grad()
def check_logits(run, roberta, rows):
    """Raise UserError unless both models give the same logits: an edited model.py would not."""
    n_words = len(rows) - 5  # without special tokens, of which four come first there
    places = torch.arange(run.model.body.config.block_size)
    ids = 4 + (places % n_words)[None]  # (1, T)
    ours = run.model(rows[ids])[:, :, rows]  # (1, T, V), in the order there
    if not torch.allclose(roberta.eval()(ids).logits, ours, atol=1e-3):
        raise UserError(f"{run.folder}: gives other logits as a RoBERTa; it has edits of model.py")


def copy_layer(layer, parts):
    """Copy the weight and the bias of our layer to the layers there that it stacks."""
    weights = layer.weight.chunk(len(parts))
    biases = layer.bias.chunk(len(parts))
    for part, weight, bias in zip(parts, weights, biases):
        part.weight.copy_(weight)
        part.bias.copy_(bias)


if __name__ == "__main__":
    main(export, Flags)
