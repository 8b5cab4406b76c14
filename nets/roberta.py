"""RoBERTa (Liu et al. 2019): an Encoder with its weights, read and written through transformers.

    model, tokenizer = load_roberta("distilroberta-base")    a folder, or a name on the hub

It is the post-norm encoder of model.py with learned positions and the head "roberta". Only the
storage differs ("there" is in transformers, "here" is in model.py):

- There, q, k and v are three matrices. Here they are stacked in one.
- There, positions count from pad_token_id + 1, and earlier rows are never read. Here they count
  from 0. Padding must be on the right.
- There, each token also gets the vector of its token type. RoBERTa uses only the first type, so
  here each position's row contains it.
- Special tokens have other names and places. All other tokens keep their order. The rows of the
  word vectors and of the output bias move along.

      theirs   <s> 0   <pad> 1   </s> 2   <unk> 3   words from 4     <mask> last
      ours    [PAD] 0  [UNK] 1  [MASK] 2  [BOS] 3   [EOS] 4   words from 5
"""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, processors

from data.files import UserError, read_json
from data.tokenizer import SPECIAL
from model import Config, Encoder, LanguageModel

# Their special tokens in the order of our ids
OURS = dict(zip(("<pad>", "<unk>", "<mask>", "<s>", "</s>"), SPECIAL))
NAMES = {  # our options and theirs
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_ffn": "intermediate_size",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attn_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
    "tie": "tie_word_embeddings",
}
FIXED = {"pos": "learned", "norm_first": False, "head": "roberta"}
FILES = ["config.json", "model.safetensors", "tokenizer.json", "vocab.json", "merges.txt"]


def import_transformers():
    """Return the module. Raises UserError if it is not installed."""
    try:
        import transformers
    except ImportError:
        remedy = 'install the extra "beyond": pip install -e ".[beyond]"'
        raise UserError(f"RoBERTa's weights need the package transformers; {remedy}") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_roberta(name, head=True):
    """Return (LanguageModel in evaluation mode, tokenizer with our special tokens).

    name: a folder as save_pretrained writes it, or a model on the Hugging Face hub. Rows of the
    vocabulary without a token are left out. head=False: its lm_head is not needed; the head here
    is random if it is missing. Raises UserError if it is no RoBERTa or is not found.
    """
    transformers, folder = import_transformers(), Path(name).expanduser()
    if not folder.exists():
        from huggingface_hub import snapshot_download  # half a second

        try:
            folder = Path(snapshot_download(name, allow_patterns=FILES))
        except (OSError, ValueError) as error:  # no such name, or no network
            why = str(error).strip().split("\n")[0][:100]
            raise UserError(f"--init {name}: neither a folder nor on the hub ({why})") from None
    described = read_json(folder / "config.json")
    if described.get("model_type") != "roberta" or described.get("is_decoder"):
        remedy = "continue a run of this project with --init-from or --encoder"
        raise UserError(f"--init {name}: is not a RoBERTa encoder; {remedy}")
    masked_lm = transformers.RobertaForMaskedLM
    there, told = masked_lm.from_pretrained(folder, output_loading_info=True)
    missing = [key for key in told["missing_keys"] if head or not key.startswith("lm_head.")]
    if missing:
        remedy = "give a folder saved from RobertaForMaskedLM, or only classify with it"
        raise UserError(f"--init {name}: has no weights {min(missing)}; {remedy}")
    tokenizer, rows = read_tokenizer(folder, there.config.vocab_size)
    c, there = there.config, there.float()
    block_size = c.max_position_embeddings - c.pad_token_id - 1
    same = {ours: getattr(c, theirs) for ours, theirs in NAMES.items()}
    config = Config(vocab_size=len(rows), block_size=block_size, **same, **FIXED)
    model = LanguageModel(Encoder(config))
    embeddings, body = there.roberta.embeddings, model.body
    with torch.no_grad():
        body.embedding.weight.copy_(embeddings.word_embeddings.weight[rows])
        body.positions.vectors.weight.copy_(embeddings.position_embeddings.weight[-block_size:])
        body.positions.vectors.weight.add_(embeddings.token_type_embeddings.weight[0])
        model.head.words.weight.copy_(there.lm_head.decoder.weight[rows])
        model.head.bias.copy_(there.lm_head.decoder.bias[rows])
        for ours, theirs in paired_layers(model, there):
            for kind in ("weight", "bias"):
                getattr(ours, kind).copy_(torch.cat([getattr(part, kind) for part in theirs]))
    return model.eval(), tokenizer


def paired_layers(model, there):
    """Yield (our layer, their layers that it stacks); each has a weight and a bias."""
    yield model.body.embedding_norm, [there.roberta.embeddings.LayerNorm]
    for ours, theirs in zip(model.body.blocks, there.roberta.encoder.layer):
        attention = theirs.attention.self
        yield ours.attention.qkv, [attention.query, attention.key, attention.value]
        yield ours.attention.out, [theirs.attention.output.dense]
        yield ours.norm1, [theirs.attention.output.LayerNorm]
        yield ours.feed_forward.up, [theirs.intermediate.dense]
        yield ours.feed_forward.down, [theirs.output.dense]
        yield ours.norm2, [theirs.output.LayerNorm]
    yield model.head.transform[0], [there.lm_head.dense]
    yield model.head.transform[2], [there.lm_head.layer_norm]


def read_tokenizer(folder, vocab_size):
    """Return (tokenizer with our special tokens, (V,) ids of its tokens in the folder)."""
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:  # vocab.json and merges.txt
        tokenizer = import_transformers().AutoTokenizer.from_pretrained(folder).backend_tokenizer
    ids = tokenizer.get_vocab()
    if not OURS.keys() <= ids.keys() or max(ids.values()) >= vocab_size:
        problem = f"its tokenizer lacks one of {' '.join(OURS)} or does not belong to its weights"
        raise UserError(f"--init {folder}: {problem}; restore the files of one model")
    tokens = [*OURS, *sorted(ids.keys() - OURS.keys(), key=ids.get)]
    ends = tokenizer.num_special_tokens_to_add(False) > 1  # beyond.export also writes <s> alone
    around = ["[BOS]", "$A", "[EOS]"] if ends else []
    return renamed(tokenizer, tokens, OURS, around), torch.tensor([ids[token] for token in tokens])


def renamed(tokenizer, tokens, names, around):
    """Return the tokenizer with the vocabulary `tokens`, in that order.

    names: new names of the special tokens. around: what a sentence becomes, [] for itself.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    file = json.loads(tokenizer.to_str())
    file["model"]["vocab"] = {names.get(token, token): i for token, i in ids.items()}
    file["model"]["unk_token"] = names.get(file["model"]["unk_token"], file["model"]["unk_token"])
    others = [token for token in file["added_tokens"] if token["content"] not in names]
    file["added_tokens"] = [token | {"id": ids[token["content"]]} for token in others]
    file |= {"truncation": None, "padding": None, "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    mask = names.get("<mask>", "<mask>")
    special = [AddedToken(name, special=True, lstrip=name == mask) for name in names.values()]
    tokenizer.add_special_tokens(special)
    if around:
        pieces = [(name, tokenizer.token_to_id(name)) for name in around if name != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=around, pair=[*around, *around[2:], "$B:0", *around[2:]], special_tokens=pieces
        )
    return tokenizer
