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

import json
import os
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from data.files import TOKENIZER_LIMIT, DataError, check_file, read_bytes, read_json
from data.tokenizer import SPECIAL, frame
from model import Config, Encoder, LanguageModel

try:
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
except ImportError:  # an extra that only this file needs
    load_file = save_file = None

# Their special tokens in the order of our ids, and the reverse
OURS = dict(zip(("<pad>", "<unk>", "<mask>", "<s>", "</s>"), SPECIAL))
THEIRS = {ours: theirs for theirs, ours in OURS.items()}
# Options that may differ between RoBERTas, or that do not matter with learned positions
FREE = (
    *("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "n_ffn", "activation"),
    *("norm_eps", "dropout", "attn_dropout", "tie", "init_std", "alibi", "mask_id"),
)
# Sizes in their config.json with the least value, and rates with the default of transformers
SIZES = {
    **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), 1),
    **dict.fromkeys(("intermediate_size", "max_position_embeddings", "type_vocab_size"), 1),
    "pad_token_id": 0,
}
LARGEST = 2**24  # upper limit of every size
RATES = {
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
UNUSED = 2  # first rows of an exported position table, never read because <pad> has id 1


def require_safetensors():
    """Raise DataError if safetensors is not installed."""
    if load_file is None:
        raise DataError(
            "RoBERTa's weights need safetensors; install it with: pip install safetensors"
        )


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
    tensors, V = read_tensors(folder), described["vocab_size"]
    weights = folder / "model.safetensors"
    floats = (torch.float, torch.half, torch.bfloat16, torch.double)

    def take(name, *shape):
        if name not in tensors:
            advice = "restore the file, or save the model again with save_pretrained"
            if name.startswith("lm_head."):
                advice = (
                    "a masked language model needs it; give a folder saved from RobertaForMaskedLM "
                    "(a classifier does not need it)"
                )
            raise DataError(f"{weights}: holds no tensor {name}; {advice}")
        if tensors[name].shape != shape:
            raise DataError(
                f"{weights}: {name} is {tuple(tensors[name].shape)}, "
                f"but {shape} in config.json; these are different models, restore the right file"
            )
        if tensors[name].dtype not in floats or not tensors[name].isfinite().all():
            raise DataError(
                f"{weights}: {name} does not hold finite floating-point numbers; restore the file"
            )
        return tensors.pop(name).float()

    words = tensors.get("roberta.embeddings.word_embeddings.weight")
    output = tensors.get("lm_head.decoder.weight")
    tie = True
    if head and words is not None and output is not None:
        tie = words.dtype == output.dtype and torch.equal(words, output)
    try:
        config = our_config(described, len(rows), tie)
    except (TypeError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: {error}; restore the file") from None
    if config.n_layer > len(tensors):
        raise DataError(
            f"{weights}: holds {len(tensors)} tensors, "
            f"too few for the {config.n_layer:,} layers of config.json; restore the right one"
        )
    # Only the shapes: a wrong config.json must not take memory before the tensors match it
    with torch.device("meta"):
        shapes = {
            name: parameter.shape
            for name, parameter in LanguageModel(Encoder(config)).named_parameters()
        }
    C = config.n_embd
    state = {"body.embedding.weight": take("roberta.embeddings.word_embeddings.weight", V, C)[rows]}
    positions = take(
        "roberta.embeddings.position_embeddings.weight", described["max_position_embeddings"], C
    )
    kinds = take("roberta.embeddings.token_type_embeddings.weight", described["type_vocab_size"], C)
    state["body.positions.weight"] = positions[-config.block_size :] + kinds[0]
    for ours, theirs in modules(config.n_layer, head):
        for end in (".weight", ".bias"):
            length, *width = shapes[ours + end]
            state[ours + end] = torch.cat(
                [take(name + end, length // len(theirs), *width) for name in theirs]
            )
    if head:
        state["head.bias"] = take(
            "lm_head.decoder.bias" if "lm_head.decoder.bias" in tensors else "lm_head.bias", V
        )[rows]
    if not tie:
        state["head.words.weight"] = take("lm_head.decoder.weight", V, C)[rows]
    left = [
        name
        for name in tensors
        if name.startswith(("roberta.embeddings.", "roberta.encoder."))
        and not name.endswith(".position_ids")
    ]
    if left:
        raise DataError(
            f"{weights}: {left[0]} has no place in the {config.n_layer} layers of config.json; "
            "restore the right file"
        )
    model = LanguageModel(Encoder(config))
    model.load_state_dict(state, strict=False)  # tied word vectors have two names
    return model.eval(), tokenizer


def modules(n_layer, head=True):
    """Return [(our module, their modules it is made of)]; each has a weight and a bias."""
    pairs = [("body.embedding_norm", ["roberta.embeddings.LayerNorm"])]
    for i in range(n_layer):
        ours, theirs = f"body.blocks.{i}.", f"roberta.encoder.layer.{i}."
        pairs += [
            (
                ours + "attention.qkv",
                [theirs + "attention.self." + name for name in ("query", "key", "value")],
            ),
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


# ---------------------------------------------------------------------------- reading


def read_config(folder):
    """Return config.json as a dictionary. Raises DataError unless it is a RoBERTa."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; give one written by save_pretrained, with config.json, "
            "model.safetensors and a tokenizer"
        )
    path = folder / "config.json"
    described = read_json(path, "give the folder of a whole model, as save_pretrained writes it")
    kind = described.get("model_type")
    if kind != "roberta" and "kind" in described:
        raise DataError(
            f"{path}: is from a run of this project; continue it with --init-from, "
            "or classify with --encoder"
        )
    if kind != "roberta":
        raise DataError(
            f"{path}: model_type is {kind!r}; only 'roberta' can be read (RoBERTa, DistilRoBERTa)"
        )
    for name, allowed in (
        ("hidden_act", ("gelu", "relu")),
        ("position_embedding_type", ("absolute",)),
        ("is_decoder", (False,)),
        ("add_cross_attention", (False,)),
    ):
        if described.get(name, allowed[0]) not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise DataError(f"{path}: {name} is {described[name]!r}; only {choices} can be read")
    described = {"pad_token_id": 1, "type_vocab_size": 2, "hidden_act": "gelu"} | RATES | described
    wrong = [
        f"{name} must be a whole number from {least} to {LARGEST:,}"
        for name, least in SIZES.items()
        if type(described.get(name)) is not int or not least <= described[name] <= LARGEST
    ]
    wrong += [
        f"{name} must be a number from 0 to below 1"
        for name in RATES
        if type(described[name]) not in (int, float) or not 0 <= described[name] < 1
    ]
    if wrong:
        raise DataError(f"{path}: {', '.join(wrong)}; restore the file")
    if described["max_position_embeddings"] < described["pad_token_id"] + 4:
        raise DataError(
            f"{path}: max_position_embeddings {described['max_position_embeddings']} are too few "
            f"for a sentence: RoBERTa never reads the first {described['pad_token_id'] + 1}; "
            "restore the file"
        )
    return described


def our_config(described, vocab_size, tie):
    """Return our Config from theirs. Raises ValueError for sizes that do not fit together."""
    return Config(
        vocab_size=vocab_size,
        block_size=described["max_position_embeddings"] - described["pad_token_id"] - 1,
        n_layer=described["num_hidden_layers"],
        n_head=described["num_attention_heads"],
        n_embd=described["hidden_size"],
        n_ffn=described["intermediate_size"],
        pos="learned",
        norm_first=False,
        head="roberta",
        tie=tie,
        activation=described["hidden_act"],
        norm_eps=described["layer_norm_eps"],
        dropout=described["hidden_dropout_prob"],
        attn_dropout=described["attention_probs_dropout_prob"],
        init_std=described["initializer_range"],
    )


def read_tensors(folder):
    """Return {name: tensor}. The tensors of a bare RobertaModel get the prefix "roberta."."""
    path = folder / "model.safetensors"
    if not path.is_file():
        others = [
            name
            for name in ("pytorch_model.bin", "model.safetensors.index.json")
            if (folder / name).exists()
        ]
        raise DataError(
            f"{path}: no such file"
            + (
                f", only {others[0]}; load the model with transformers and save_pretrained it again"
                if others
                else "; give the folder of a whole model"
            )
        )
    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: not a readable safetensors file ({' '.join(str(error).split())[:80]}); "
            "restore it or download it again"
        ) from None
    return {
        ("roberta." if name.startswith(("embeddings.", "encoder.")) else "") + name: tensor
        for name, tensor in tensors.items()
    }


def read_tokenizer(folder, described):
    """Return (tokenizer with our special tokens, (V,) ids of its tokens in the folder)."""
    path, vocabulary, merges = (
        folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
    )
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_str(
                read_bytes(path, TOKENIZER_LIMIT, "restore the file").decode("utf-8")
            )
        elif vocabulary.is_file() and merges.is_file():
            for path in (merges, vocabulary):
                check_file(path, TOKENIZER_LIMIT, "restore the file")
            tokenizer = Tokenizer(models.BPE.from_file(os.fspath(vocabulary), os.fspath(merges)))
            tokenizer.pre_tokenizer, tokenizer.decoder = (
                pre_tokenizers.ByteLevel(add_prefix_space=False),
                decoders.ByteLevel(),
            )
        else:
            raise DataError(
                f"{path}: no such file, nor vocab.json with merges.txt; "
                "a model can be used only with its tokenizer"
            )
    except DataError:
        raise
    except Exception as error:  # the library raises a bare Exception
        raise DataError(
            f"{path}: not a tokenizer file ({str(error)[:80]}); restore it or download it again"
        ) from None
    ids = tokenizer.get_vocab()
    missing = [token for token in OURS if token not in ids]
    if missing:
        raise DataError(
            f"{path}: has no token {', '.join(missing)}; RoBERTa's tokenizers have {' '.join(OURS)}"
        )
    if not isinstance(tokenizer.model, (models.BPE, models.WordLevel)):
        raise DataError(
            f"{path}: is of type {type(tokenizer.model).__name__}; "
            "only BPE, which RoBERTa uses, or WordLevel can be read"
        )
    if max(ids.values()) >= described["vocab_size"]:
        raise DataError(
            f"{path}: has ids up to {max(ids.values())}, "
            f"but config.json says vocab_size {described['vocab_size']}; "
            "the files are from different models, restore the right one"
        )
    if ids["<pad>"] != described["pad_token_id"]:
        raise DataError(
            f"{path}: <pad> is {ids['<pad>']}, "
            f"but config.json says pad_token_id {described['pad_token_id']}; "
            "the files are from different models, restore the right one"
        )
    tokens = [*OURS, *sorted(ids.keys() - OURS.keys(), key=ids.get)]
    # A tokenizer that export_roberta wrote may add <s> alone
    around = () if tokenizer.num_special_tokens_to_add(False) == 1 else ("[BOS]", "[EOS]")
    rows = torch.tensor([ids[token] for token in tokens])
    return renamed(tokenizer, tokens, OURS, *around), rows


def renamed(tokenizer, tokens, names, begin="", end=""):
    """Return the tokenizer with the vocabulary `tokens`, in that order.

    names: new names of the special tokens. begin, end: tokens around a sentence, "" for none.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    file = json.loads(tokenizer.to_str())
    file["model"]["vocab"] = {names.get(token, token): i for token, i in ids.items()}
    file["model"]["unk_token"] = names.get(file["model"]["unk_token"], file["model"]["unk_token"])
    file["added_tokens"] = [
        added | {"id": ids[added["content"]]}
        for added in file["added_tokens"]
        if added["content"] not in names
    ]
    file |= {"truncation": None, "padding": None, "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    mask = names.get("<mask>", "<mask>")
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, lstrip=name == mask) for name in names.values()]
    )
    if begin:
        one, two = [begin, "$A", end], [begin, "$A", end, end, "$B:0", end]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=list(filter(None, one)),
            pair=list(filter(None, two)),
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in (begin, end) if name],
        )
    return tokenizer


# ---------------------------------------------------------------------------- writing


def export_roberta(run, path):
    """Write a LoadedRun of train_mlm.py as a folder that transformers reads.

    Raises DataError for a run that RoBERTa cannot represent, and for a folder that is not empty.
    """
    require_safetensors()
    folder, config, state = Path(path), run.model.body.config, run.model.state_dict()
    nearest = Config(
        **{name: getattr(config, name) for name in FREE},
        pos="learned",
        norm_first=False,
        head="roberta",
    )
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
            tensors |= {
                name + end: part for name, part in zip(theirs, state[ours + end].chunk(len(theirs)))
            }
    described = {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": config.vocab_size,
        "hidden_size": C,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.n_ffn,
        "max_position_embeddings": config.block_size + UNUSED,
        "type_vocab_size": 1,
        "hidden_act": config.activation,
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attn_dropout,
        "initializer_range": config.init_std,
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

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.safetensors.partial"
    save_file(
        {name: tensor.cpu().clone() for name, tensor in tensors.items()}, partial, {"format": "pt"}
    )
    os.replace(partial, folder / "model.safetensors")
    tokenizer.save(os.fspath(folder / "tokenizer.json"))
    for name, value in (("tokenizer_config.json", about), ("config.json", described)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
