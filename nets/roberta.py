"""Read RoBERTa from a Hugging Face folder into an Encoder and its head, and write it back.

    model, tokenizer = load_roberta("path/to/distilroberta-base")
    export_roberta(read_run("out/mlm-toy-learned-0"), "folder")
    # transformers: RobertaForMaskedLM.from_pretrained("folder")

RoBERTa (Liu et al. 2019) is the post-norm encoder of model.py with learned positions and the head
"roberta". Only the storage differs ("there" is in RoBERTa's files, "here" is in model.py):

- There, q, k and v are three matrices. Here they are stacked in one.
- There, positions count from pad_token_id + 1, and earlier rows are never read. Here they count
  from 0. Padding must be on the right.
- There, each token also gets the vector of its token type. RoBERTa uses only the first type, so
  here each position's row contains it.
- Special tokens have other names and places. All other tokens keep their order. The rows of the
  word vectors and of the output bias move along.

      theirs   <s> 0   <pad> 1   </s> 2   <unk> 3   words from 4     <mask> last
      ours    [PAD] 0  [UNK] 1  [MASK] 2  [BOS] 3   [EOS] 4   words from 5

A sentence is <s> words </s> there. The returned tokenizer frames sentences in the same way (see
`frame` in data/tokenizer.py).
"""

from pathlib import Path

import torch

from data.files import DataError
from data.tokenizer import frame
from model import Config, Encoder, LanguageModel
from nets.roberta_files import (
    THEIRS,
    Tensors,
    read_config,
    read_tokenizer,
    renamed,
    require_safetensors,
    write_files,
)

# Options that have a name in their config.json, and others that may differ or do not matter
NAMES = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_ffn": "intermediate_size",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attn_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
}
FREE = (*NAMES, "vocab_size", "block_size", "tie", "alibi", "mask_id")
FIXED = {"pos": "learned", "norm_first": False, "head": "roberta"}
UNUSED = 2  # first rows of an exported position table, never read because <pad> has id 1


def load_roberta(path, head=True):
    """Return (LanguageModel in evaluation mode, tokenizer with our special tokens) of a folder.

    The folder has config.json, model.safetensors and tokenizer.json, or vocab.json and merges.txt
    instead of the latter. Rows of the vocabulary without a token are left out.
    head=False: the folder needs no lm_head, and the head of the model is random.
    Raises DataError naming the file if one is missing or corrupt, if the architecture is not
    RoBERTa's, or if a tensor is missing, unknown, not finite, or of another shape or type.
    """
    require_safetensors()
    folder = Path(path)
    described = read_config(folder)
    tokenizer, rows = read_tokenizer(folder, described)  # rows (V,): their ids in our order
    tensors = Tensors(folder)
    tie = not head or tensors.tied()
    try:
        config = Config(
            vocab_size=len(rows),
            block_size=described["max_position_embeddings"] - described["pad_token_id"] - 1,
            tie=tie,
            **{ours: described[theirs] for ours, theirs in NAMES.items()},
            **FIXED,
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: {error}; restore the file") from None
    tensors.check_layers(config.n_layer)
    # Only the shapes: a wrong config.json must not take memory before the tensors match it
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in LanguageModel(Encoder(config)).named_parameters()}
    V, C, take = described["vocab_size"], config.n_embd, tensors.take
    n_position, n_type = described["max_position_embeddings"], described["type_vocab_size"]
    words = take("roberta.embeddings.word_embeddings.weight", V, C)
    positions = take("roberta.embeddings.position_embeddings.weight", n_position, C)
    types = take("roberta.embeddings.token_type_embeddings.weight", n_type, C)
    state = {
        "body.embedding.weight": words[rows],
        "body.positions.weight": positions[-config.block_size :] + types[0],
    }
    for ours, theirs in modules(config.n_layer, head):
        for end in (".weight", ".bias"):
            length, *width = shapes[ours + end]
            parts = [take(name + end, length // len(theirs), *width) for name in theirs]
            state[ours + end] = torch.cat(parts)
    if head:
        untied = "lm_head.decoder.bias" in tensors.left
        bias = take("lm_head.decoder.bias" if untied else "lm_head.bias", V)
        state["head.bias"] = bias[rows]
    if not tie:
        state["head.words.weight"] = take("lm_head.decoder.weight", V, C)[rows]
    tensors.check_all_taken(config.n_layer)
    model = LanguageModel(Encoder(config))
    model.load_state_dict(state, strict=False)  # tied word vectors have two names
    return model.eval(), tokenizer


def modules(n_layer, head=True):
    """Return [(our module, their modules it is made of)]; each has a weight and a bias."""
    pairs = [("body.embedding_norm", ["roberta.embeddings.LayerNorm"])]
    for i in range(n_layer):
        ours, theirs = f"body.blocks.{i}.", f"roberta.encoder.layer.{i}."
        qkv = [theirs + "attention.self." + name for name in ("query", "key", "value")]
        pairs += [
            (ours + "attention.qkv", qkv),
            (ours + "attention.out", [theirs + "attention.output.dense"]),
            (ours + "norm1", [theirs + "attention.output.LayerNorm"]),
            (ours + "feed_forward.up", [theirs + "intermediate.dense"]),
            (ours + "feed_forward.down", [theirs + "output.dense"]),
            (ours + "norm2", [theirs + "output.LayerNorm"]),
        ]
    if head:
        pairs += [("head.transform.0", ["lm_head.dense"])]
        pairs += [("head.transform.2", ["lm_head.layer_norm"])]
    return pairs


def export_roberta(run, path):
    """Write a LoadedRun of train_mlm.py as a folder that transformers reads.

    Raises DataError for a run that RoBERTa cannot represent, and for a folder that is not empty.
    """
    require_safetensors()
    folder, config, state = Path(path), run.model.body.config, run.model.state_dict()
    nearest = Config(**{name: getattr(config, name) for name in FREE}, **FIXED)
    differing = [
        f"{name}={value}" for name, value in vars(config).items() if value != getattr(nearest, name)
    ]
    if differing or run.model.body.causal:
        raise DataError(
            f"{run.folder}: RoBERTa does not have {', '.join(differing) or 'a decoder'}; "
            "train with --pos learned --no-norm-first --head roberta and without other options"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"--out {folder}: is not empty; choose another folder")

    ids = run.tokenizer.get_vocab()
    words = sorted(ids.keys() - THEIRS.keys(), key=ids.get)
    tokens = ["[BOS]", "[PAD]", "[EOS]", "[UNK]", *words, "[MASK]"]
    rows = torch.tensor([ids[token] for token in tokens])
    ends = len(frame(run.tokenizer, [])) > 1
    tokenizer = renamed(run.tokenizer, tokens, THEIRS, "<s>", "</s>" * ends)

    C, embeddings = config.n_embd, "roberta.embeddings."
    tensors = {
        embeddings + "word_embeddings.weight": state["body.embedding.weight"][rows],
        embeddings + "position_embeddings.weight": torch.cat(
            [torch.zeros(UNUSED, C), state["body.positions.weight"].cpu()]
        ),
        embeddings + "token_type_embeddings.weight": torch.zeros(1, C),
        "lm_head.bias": state["head.bias"][rows],
    }
    if not config.tie:
        tensors |= {
            "lm_head.decoder.weight": state["head.words.weight"][rows],
            "lm_head.decoder.bias": state["head.bias"][rows],
        }
    for ours, theirs in modules(config.n_layer):
        for end in (".weight", ".bias"):
            parts = state[ours + end].chunk(len(theirs))
            tensors |= {name + end: part for name, part in zip(theirs, parts)}
    described = {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": config.vocab_size,
        **{theirs: getattr(config, ours) for ours, theirs in NAMES.items()},
        "max_position_embeddings": config.block_size + UNUSED,
        "type_vocab_size": 1,
        "tie_word_embeddings": config.tie,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.block_size,
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": "<s>",
        "cls_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    write_files(folder, tensors, tokenizer, {"tokenizer_config": about, "config": described})
