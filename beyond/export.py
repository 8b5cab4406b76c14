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
import tyro

from data.corpus import read_hashes, write_hashes
from data.files import UserError
from data.tokenizer import frame
from lab.flags import main
from lab.load import read_run
from model import Config
from nets.roberta import FIXED, NAMES, OURS, import_transformers, paired_layers, renamed

FREE = (*NAMES, "vocab_size", "block_size", "alibi", "mask_id")  # may differ, or do not matter


@dataclass
class Flags:
    run: tyro.conf.Positional[str]  # run folder of train_mlm.py
    out: str = ""  # folder to write (default: roberta/ in the run folder)


def export(flags):
    run = read_run(flags.run, ["mlm"])
    folder = Path(flags.out).expanduser() if flags.out else run.folder / "roberta"
    transformers, model, config = import_transformers(), run.model, run.model.body.config
    nearest = asdict(Config(**{name: getattr(config, name) for name in FREE}, **FIXED))
    differing = [f"{name}={v}" for name, v in asdict(config).items() if v != nearest[name]]
    if differing or model.body.causal:
        problem = f"RoBERTa does not have {', '.join(differing) or 'a decoder'}"
        remedy = "train with --pos learned --no-norm-first --head roberta and without other options"
        raise UserError(f"{run.folder}: {problem}; {remedy}")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--out {folder}: is not empty; choose another folder")

    theirs, ids = {ours: token for token, ours in OURS.items()}, run.tokenizer.get_vocab()
    words = sorted(ids.keys() - theirs.keys(), key=ids.get)
    tokens = ["[BOS]", "[PAD]", "[EOS]", "[UNK]", *words, "[MASK]"]  # in their order
    rows = torch.tensor([ids[token] for token in tokens])
    described = transformers.RobertaConfig(
        vocab_size=config.vocab_size,
        max_position_embeddings=config.block_size + 2,  # the first two rows are never read
        type_vocab_size=1,
        **{name: getattr(config, ours) for ours, name in NAMES.items()},
    )
    there = transformers.RobertaForMaskedLM(described)
    embeddings = there.roberta.embeddings
    with torch.no_grad():
        embeddings.word_embeddings.weight.copy_(model.body.embedding.weight[rows])
        embeddings.position_embeddings.weight[2:] = model.body.positions.vectors.weight
        embeddings.token_type_embeddings.weight.zero_()
        there.lm_head.decoder.weight.copy_(model.head.words.weight[rows])
        there.lm_head.bias.copy_(model.head.bias[rows])
        there.lm_head.decoder.bias.copy_(model.head.bias[rows])  # another one without --tie
        for ours, parts in paired_layers(model, there):
            for kind in ("weight", "bias"):
                for part, values in zip(parts, getattr(ours, kind).chunk(len(parts))):
                    getattr(part, kind).copy_(values)

    ends = ["</s>"] if len(frame(run.tokenizer, [])) > 1 else []
    tokenizer = renamed(run.tokenizer, tokens, theirs, ["<s>", "$A", *ends])
    special = dict(bos="<s>", cls="<s>", eos="</s>", sep="</s>", unk="<unk>", pad="<pad>")
    there.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=config.block_size,
        mask_token="<mask>",
        **{f"{name}_token": token for name, token in special.items()},
    ).save_pretrained(folder)
    for path in folder.iterdir():  # safetensors lets only the owner read a file
        shutil.copymode(folder / "config.json", path)
    write_hashes(folder, [read_hashes(run.folder)])
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}; in Python:")
    for kind in ("ModelForMaskedLM", "Tokenizer"):
        print(f"  transformers.Auto{kind}.from_pretrained({str(folder)!r})")


if __name__ == "__main__":
    main(export, Flags)
