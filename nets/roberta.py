"""RoBERTa in and out: a Hugging Face folder to our Encoder and head, and back (Liu et al. 2019).

    model, tokenizer = load_roberta("path/to/distilroberta-base")
    export_roberta(runs.load_run("out/mlm-toy-learned-0"), "folder")
    # transformers: RobertaForMaskedLM.from_pretrained("folder")

Both are the post-norm encoder of model.py with learned positions and RoBERTa's head.
What is told apart only by where it is kept:

- q, k and v are three matrices there and one here, stacked in that order.
- Positions count from pad_token_id + 1 there, whose earlier rows are never read, and from 0 here. Padding must be on the right.
- There each token also gets the vector of its token type. RoBERTa has only the first, so here each position's row holds it too.
- Special tokens have other names and places; all others keep their order.
  The rows of the word vectors and of the output bias move along.

      theirs   <s> 0   <pad> 1   </s> 2   <unk> 3   words from 4     <mask> last
      ours    [PAD] 0  [UNK] 1  [MASK] 2  [BOS] 3   [EOS] 4   words from 5

A sentence is <s> words </s> there. The tokenizer that is returned keeps that in mind (see data/tokenizer.py, `frame`).
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
except ImportError:  # optional: only this file needs it
    load_file = save_file = None

OURS = dict(
    zip(("<pad>", "<unk>", "<mask>", "<s>", "</s>"), SPECIAL)
)  # their special tokens in the order of our ids
THEIRS = {ours: theirs for theirs, ours in OURS.items()}
# What of a Config RoBERTa leaves open, and what does not matter with learned positions.
FREE = (
    "vocab_size",
    "block_size",
    "n_layer",
    "n_head",
    "n_embd",
    "n_ffn",
    "activation",
    "norm_eps",
    "dropout",
    "attn_dropout",
    "tie",
    "init_std",
    "alibi",
    "mask_id",
)
UNUSED = 2  # rows of an exported position table that no token reads: <pad> has id 1


def require_safetensors():
    """Raise DataError if safetensors is not installed."""
    if load_file is None:
        raise DataError(
            "RoBERTa's weights need safetensors, not installed; pip install safetensors"
        )


def load_roberta(path, head=True):
    """A folder with config.json, model.safetensors and the tokenizer (tokenizer.json, or vocab.json and merges.txt) as
    (LanguageModel in evaluation mode, tokenizer with our special tokens).
    Rows of the vocabulary that no token has are left out.

    head=False: for its body alone; the folder need not hold an lm_head, and the model's is random.
    Raises DataError that names the file for one that is missing or damaged, for an architecture other than RoBERTa's,
    and for a tensor that is missing, of another shape or type, not finite, or without a place.
    """
    require_safetensors()
    folder = Path(path)
    described = read_config(folder)
    tokenizer, rows = read_tokenizer(folder, described)  # rows (V,): their ids in the order of ours
    tensors, V = read_tensors(folder), described["vocab_size"]

    def take(name, *shape):
        if name not in tensors:
            advice = (
                "; to predict words it needs one, "
                "so give a folder saved from RobertaForMaskedLM (a classifier needs none)"
                if name.startswith("lm_head.")
                else "; restore the file, or save the model again with save_pretrained"
            )
            raise DataError(f"{folder / 'model.safetensors'}: holds no tensor {name}{advice}")
        if tensors[name].shape != shape:
            raise DataError(
                f"{folder / 'model.safetensors'}: {name} is {tuple(tensors[name].shape)}, "
                f"but {shape} by config.json; they are of different models, restore the right one"
            )
        if (
            tensors[name].dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
            or not tensors[name].isfinite().all()
        ):
            raise DataError(
                f"{folder / 'model.safetensors'}: {name} does not hold finite floating-point numbers; "
                "restore the file"
            )
        return tensors.pop(name).float()

    words, output = (
        tensors.get(name)
        for name in ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight")
    )
    tie = (
        not head
        or words is None
        or output is None
        or words.dtype == output.dtype
        and torch.equal(words, output)
    )
    try:
        config = make_config(described, len(rows), tie)
    except (TypeError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: {error}; restore the file") from None
    if config.n_layer > len(tensors):
        raise DataError(
            f"{folder / 'model.safetensors'}: holds {len(tensors)} tensors, "
            f"too few for the {config.n_layer:,} layers of config.json; restore the right one"
        )
    # The shapes alone: what config.json asks for takes no memory before the tensors prove to have them
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
            f"{folder / 'model.safetensors'}: {left[0]} has no place "
            f"in the {config.n_layer} layers of config.json; restore the right file"
        )
    model = LanguageModel(Encoder(config))
    model.load_state_dict(state, strict=False)  # tied words have two names
    return model.eval(), tokenizer


def modules(n_layer, head=True):
    """[(a module here, those of theirs that it is made of)]; each has a weight and a bias."""
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
    return (
        pairs
        + [("head.transform.0", ["lm_head.dense"]), ("head.transform.2", ["lm_head.layer_norm"])]
        * head
    )


# ---------------------------------------------------------------------------- reading


def read_config(folder):
    """config.json as a dictionary. DataError for what is no RoBERTa, and for a kind of it that model.py does not have."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; "
            "give one with config.json, model.safetensors and a tokenizer, as save_pretrained writes it"
        )
    path = folder / "config.json"
    described = read_json(path, "give the folder of a whole model, as save_pretrained writes it")
    if described.get("model_type") != "roberta":
        is_run = "kind" in described
        raise DataError(
            f"{path}: "
            + (
                "is of a run of this project; continue it with --init-from, or classify with --encoder"
                if is_run
                else f"model_type is {described.get('model_type')!r}; only 'roberta' can be read (RoBERTa, DistilRoBERTa)"
            )
        )
    for name, allowed in (
        ("hidden_act", ("gelu", "relu")),
        ("position_embedding_type", ("absolute",)),
        ("is_decoder", (False,)),
        ("add_cross_attention", (False,)),
    ):
        if described.get(name, allowed[0]) not in allowed:
            raise DataError(
                f"{path}: {name} is {described[name]!r}; only {' or '.join(map(repr, allowed))} can be read"
            )
    described = {"pad_token_id": 1, "type_vocab_size": 2} | described
    sizes = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "pad_token_id",
        "type_vocab_size",
    )
    wrong = [
        name
        for name in sizes
        if type(described.get(name)) is not int or described[name] < (name != "pad_token_id")
    ]
    if wrong:
        raise DataError(
            f"{path}: {', '.join(wrong)} must be a whole number, above 0 but for pad_token_id; restore the file"
        )
    if described["max_position_embeddings"] < described["pad_token_id"] + 4:
        raise DataError(
            f"{path}: max_position_embeddings {described['max_position_embeddings']} leave no room for a sentence; "
            f"RoBERTa's first {described['pad_token_id'] + 1} are never read"
        )
    return described


def make_config(described, vocab_size, tie):
    """Our Config from theirs. The defaults are those of transformers' RobertaConfig."""
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
        activation=described.get("hidden_act", "gelu"),
        norm_eps=described.get("layer_norm_eps", 1e-12),
        dropout=described.get("hidden_dropout_prob", 0.1),
        attn_dropout=described.get("attention_probs_dropout_prob", 0.1),
        init_std=described.get("initializer_range", 0.02),
    )


def read_tensors(folder):
    """{name: tensor}; a bare RobertaModel's get the prefix that they have in larger models."""
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
                f", only {others[0]}; load and save the model with transformers' save_pretrained, in one file"
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
    """(tokenizer with our special tokens, (V,) ids that its tokens have in the folder)."""
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
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
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
            "only BPE, as RoBERTa's, or WordLevel can be read"
        )
    if max(ids.values()) >= described["vocab_size"]:
        raise DataError(
            f"{path}: has ids up to {max(ids.values())}, "
            f"but config.json says vocab_size {described['vocab_size']}; they are of different models"
        )
    if ids["<pad>"] != described["pad_token_id"]:
        raise DataError(
            f"{path}: <pad> is {ids['<pad>']}, "
            f"but config.json says pad_token_id {described['pad_token_id']}; they are of different models"
        )
    tokens = [*OURS, *sorted(ids.keys() - OURS.keys(), key=ids.get)]
    ends = (
        tokenizer.num_special_tokens_to_add(False) != 1
    )  # only <s>: one that export_roberta wrote
    return renamed(tokenizer, tokens, OURS, *("[BOS]", "[EOS]") * ends), torch.tensor(
        [ids[token] for token in tokens]
    )


def renamed(tokenizer, tokens, names, begin="", end=""):
    """The tokenizer with `tokens` for its vocabulary, in that order; `names` says what the special ones are to be called.

    begin, end: what stands around a sentence, "" for nothing.
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
    """Write a run of train_mlm.py (see opened.load_run) as a folder that transformers reads: config.json,
    model.safetensors, tokenizer.json, tokenizer_config.json. Raises DataError for a run that RoBERTa has no place for,
    and for a folder that is not empty."""
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
            f"{run.folder}: {', '.join(differing) or 'a decoder'} is not RoBERTa; to export a run, "
            "train it with --pos learned --no-norm-first --head roberta, and leave out what else is named here"
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
