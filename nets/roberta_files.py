"""Read and write the files of a Hugging Face RoBERTa, with errors that name file and remedy.

nets/roberta.py turns their content into a model.
"""

import json
import os

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from data.files import TOKENIZER_LIMIT, DataError, read_bytes, read_json, write_json
from data.tokenizer import SPECIAL

try:
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
except ImportError:  # an extra that only RoBERTa's weights need
    load_file = save_file = None

# Their special tokens in the order of our ids, and the reverse
OURS = dict(zip(("<pad>", "<unk>", "<mask>", "<s>", "</s>"), SPECIAL))
THEIRS = {ours: theirs for theirs, ours in OURS.items()}
# Sizes in their config.json with the least value, and rates with the default of transformers
SIZES = dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), 1)
SIZES |= dict.fromkeys(("intermediate_size", "max_position_embeddings", "type_vocab_size"), 1)
SIZES |= {"pad_token_id": 0}
LARGEST = 2**24  # upper limit of every size
RATES = {
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
# Options of which only these values can be read; the first is the default of transformers
READABLE = {
    "hidden_act": ("gelu", "relu"),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
FLOATS = (torch.float, torch.half, torch.bfloat16, torch.double)


def require_safetensors():
    """Raise DataError if safetensors is not installed."""
    if load_file is None:
        install = "install it with: pip install safetensors"
        raise DataError(f"RoBERTa's weights need safetensors; {install}")


# ---------------------------------------------------------------------------- config.json


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
        remedy = "continue it with --init-from, or classify with --encoder"
        raise DataError(f"{path}: is from a run of this project; {remedy}")
    if kind != "roberta":
        remedy = "only 'roberta' can be read (RoBERTa, DistilRoBERTa)"
        raise DataError(f"{path}: model_type is {kind!r}; {remedy}")
    for name, values in READABLE.items():
        if described.get(name, values[0]) not in values:
            choices = " or ".join(map(repr, values))
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
    rows, unused = described["max_position_embeddings"], described["pad_token_id"] + 1
    if rows < unused + 3:
        problem = f"max_position_embeddings {rows} are too few for a sentence"
        why = f"RoBERTa never reads the first {unused}"
        raise DataError(f"{path}: {problem}: {why}; restore the file")
    return described


# ---------------------------------------------------------------------------- model.safetensors


class Tensors:
    """The tensors of a folder, under the names of RobertaForMaskedLM, which are taken one by one.

    Raises DataError if model.safetensors is missing or corrupt.
    """

    def __init__(self, folder):
        self.path = folder / "model.safetensors"
        if not self.path.is_file():
            others = ("pytorch_model.bin", "model.safetensors.index.json")
            found = [name for name in others if (folder / name).exists()]
            remedy = "; give the folder of a whole model"
            if found:
                again = "load the model with transformers and save_pretrained it again"
                remedy = f", only {found[0]}; {again}"
            raise DataError(f"{self.path}: no such file{remedy}")
        try:
            tensors = load_file(self.path)
        except (SafetensorError, ValueError, KeyError) as error:
            why = " ".join(str(error).split())[:80]
            remedy = "restore it or download it again"
            raise DataError(
                f"{self.path}: not a readable safetensors file ({why}); {remedy}"
            ) from None
        bare = ("embeddings.", "encoder.")  # of a RobertaModel without a head
        self.left = {
            "roberta." + name if name.startswith(bare) else name: tensor
            for name, tensor in tensors.items()
        }

    def take(self, name, *shape):
        """Return a tensor in float32. Raises DataError if it is missing, not finite, or of another
        shape or type."""
        tensor = self.left.pop(name, None)
        if tensor is None:
            advice = "restore the file, or save the model again with save_pretrained"
            if name.startswith("lm_head."):
                advice = (
                    "a masked language model needs it; give a folder saved from RobertaForMaskedLM "
                    "(a classifier does not need it)"
                )
            raise DataError(f"{self.path}: holds no tensor {name}; {advice}")
        if tensor.shape != shape:
            raise DataError(
                f"{self.path}: {name} is {tuple(tensor.shape)}, "
                f"but {shape} in config.json; these are different models, restore the right file"
            )
        if tensor.dtype not in FLOATS or not tensor.isfinite().all():
            problem = f"{name} does not hold finite floating-point numbers"
            raise DataError(f"{self.path}: {problem}; restore the file")
        return tensor.float()

    def tied(self):
        """Return whether the output layer shares the word embeddings."""
        words = self.left.get("roberta.embeddings.word_embeddings.weight")
        output = self.left.get("lm_head.decoder.weight")
        if words is None or output is None:
            return True
        return words.dtype == output.dtype and torch.equal(words, output)

    def check_layers(self, n_layer):
        """Raise DataError if the file has fewer tensors than layers."""
        if n_layer > len(self.left):
            problem = f"holds {len(self.left)} tensors, too few for the {n_layer:,} layers"
            raise DataError(f"{self.path}: {problem} of config.json; restore the right one")

    def check_all_taken(self, n_layer):
        """Raise DataError if the encoder has tensors that were not taken."""
        for name in self.left:
            encoder = name.startswith(("roberta.embeddings.", "roberta.encoder."))
            if encoder and not name.endswith(".position_ids"):
                extra = f"{name} has no place in the {n_layer} layers of config.json"
                raise DataError(f"{self.path}: {extra}; restore the right file")


# ---------------------------------------------------------------------------- the tokenizer


def read_tokenizer(folder, described):
    """Return (tokenizer with our special tokens, (V,) ids of its tokens in the folder)."""
    path, tokenizer = open_tokenizer(folder)
    ids = tokenizer.get_vocab()
    missing = [token for token in OURS if token not in ids]
    if missing:
        raise DataError(
            f"{path}: has no token {', '.join(missing)}; RoBERTa's tokenizers have {' '.join(OURS)}"
        )
    if not isinstance(tokenizer.model, (models.BPE, models.WordLevel)):
        remedy = "only BPE, which RoBERTa uses, or WordLevel can be read"
        raise DataError(f"{path}: is of type {type(tokenizer.model).__name__}; {remedy}")
    V, padding = described["vocab_size"], described["pad_token_id"]
    remedy = "the files are from different models, restore the right one"
    if max(ids.values()) >= V:
        problem = f"has ids up to {max(ids.values())}, but config.json says vocab_size {V}"
        raise DataError(f"{path}: {problem}; {remedy}")
    if ids["<pad>"] != padding:
        problem = f"<pad> is {ids['<pad>']}, but config.json says pad_token_id {padding}"
        raise DataError(f"{path}: {problem}; {remedy}")
    tokens = [*OURS, *sorted(ids.keys() - OURS.keys(), key=ids.get)]
    # A tokenizer that export_roberta wrote may add <s> alone
    around = () if tokenizer.num_special_tokens_to_add(False) == 1 else ("[BOS]", "[EOS]")
    rows = torch.tensor([ids[token] for token in tokens])
    return renamed(tokenizer, tokens, OURS, *around), rows


def open_tokenizer(folder):
    """Return (path, tokenizer) of tokenizer.json, or else of vocab.json and merges.txt."""
    path = folder / "tokenizer.json"
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    try:
        if path.is_file():
            text = read_bytes(path, TOKENIZER_LIMIT, "restore the file").decode("utf-8")
            return path, Tokenizer.from_str(text)
        if vocabulary.is_file() and merges.is_file():
            path = vocabulary
            tokenizer = Tokenizer(models.BPE.from_file(os.fspath(vocabulary), os.fspath(merges)))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            return path, tokenizer
    except DataError:
        raise
    except Exception as error:  # the library raises a bare Exception
        remedy = "restore it or download it again"
        raise DataError(f"{path}: not a tokenizer file ({str(error)[:80]}); {remedy}") from None
    raise DataError(
        f"{path}: no such file, nor vocab.json with merges.txt; "
        "a model can be used only with its tokenizer"
    )


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
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}".split(),
            pair=f"{begin} $A {end} {end} $B:0 {end}".split(),
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in (begin, end) if name],
        )
    return tokenizer


# ---------------------------------------------------------------------------- writing


def write_files(folder, tensors, tokenizer, described):
    """Write model.safetensors, tokenizer.json and {name: content} of further JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.safetensors.partial"
    save_file({name: t.cpu().clone() for name, t in tensors.items()}, partial, {"format": "pt"})
    os.replace(partial, folder / "model.safetensors")
    tokenizer.save(os.fspath(folder / "tokenizer.json"))
    for name, content in described.items():
        write_json(folder / f"{name}.json", content)
