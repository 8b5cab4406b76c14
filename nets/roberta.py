"""RoBERTa (Liu et al. 2019): an Encoder with its weights, read and written through transformers.

    model, tokenizer = load_roberta("distilroberta-base")    a folder, or a name on the hub

It is the post-norm encoder of model.py with learned positions and the head "roberta". Only the
storage differs ("there" is in transformers, "here" is in model.py):

- There, q, k and v are three matrices. Here they are stacked in one.
- There, positions count from pad_token_id + 1. Here they count from 0; padding is on the right.
- There, each token also gets the vector of its type, the first. Here each position's row has it.
- Special tokens have other names and places; all others keep their order. Word vectors and the
  output bias move along.

      theirs   <s> 0   <pad> 1   </s> 2   <unk> 3   words from 4     <mask> last
      ours    [PAD] 0  [UNK] 1  [MASK] 2  [BOS] 3   [EOS] 4   words from 5
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, normalizers, processors

from data.files import UserError
from data.tokenizer import SPECIAL
from model import Encoder, LanguageModel
from nets.build import Options

# Their special tokens in the order of our ids
OURS = dict(zip(("<pad>", "<unk>", "<mask>", "<s>", "</s>"), SPECIAL))
# Our options and theirs
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
    "tie": "tie_word_embeddings",
}
FIXED = {"pos": "learned", "norm_first": False, "head": "roberta"}


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
    there, their_tokenizer = open_roberta(name, head)
    ids = their_tokenizer.get_vocab()
    tokens = [*OURS, *sorted(ids.keys() - OURS.keys(), key=ids.get)]
    rows = torch.tensor([ids[token] for token in tokens])  # (V,), of their word vectors
    around = []  # what stands around a sentence; beyond.export also writes <s> alone
    if their_tokenizer.num_special_tokens_to_add(False) > 1:
        around = ["[BOS]", "$A", "[EOS]"]
    tokenizer = rename_tokens(their_tokenizer, tokens, OURS, around)
    shape = there.config
    options = {ours: getattr(shape, theirs) for ours, theirs in NAMES.items()}
    options["block_size"] = shape.max_position_embeddings - shape.pad_token_id - 1
    config = Options(vocab_size=len(rows), **options, **FIXED)
    model = LanguageModel(Encoder(config))
    copy_weights(model, there, rows)
    return model.eval(), tokenizer


def open_roberta(name, head):
    """Return transformers' model and its tokenizer. Raises UserError."""
    transformers = import_transformers()
    folder = str(Path(name).expanduser())  # or a name on the hub
    try:
        kind = transformers.AutoConfig.from_pretrained(folder).model_type
        if kind != "roberta":
            raise ValueError(f"it is a {kind}")
        open_model = transformers.RobertaForMaskedLM.from_pretrained
        there, report = open_model(folder, output_loading_info=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except (OSError, ValueError) as error:  # no such name, no such files, or no network
        reason = str(error).strip().split("\n")[0][:100]
        problem = f"--init {name}: is no RoBERTa ({reason})"
        raise UserError(f"{problem}; a run goes to --init-from or --encoder") from None
    missing = report["missing_keys"]
    if not head:
        missing = [key for key in missing if not key.startswith("lm_head.")]
    if missing:
        remedy = "give one saved from RobertaForMaskedLM, or only classify with it"
        raise UserError(f"--init {name}: has no weights {min(missing)}; {remedy}")
    return there.float(), tokenizer


@torch.no_grad()
def copy_weights(model, there, rows):
    """Give a LanguageModel the weights of transformers' model. rows (V,): of their word vectors."""
    body = model.body
    embeddings = there.roberta.embeddings
    T = body.config.block_size
    positions = embeddings.position_embeddings.weight[-T:]
    body.embedding.weight.copy_(embeddings.word_embeddings.weight[rows])
    body.positions.vectors.weight.copy_(positions + embeddings.token_type_embeddings.weight[0])
    model.head.words.weight.copy_(there.lm_head.decoder.weight[rows])
    model.head.bias.copy_(there.lm_head.decoder.bias[rows])
    for ours, theirs in paired_layers(model, there):
        ours.weight.copy_(torch.cat([part.weight for part in theirs]))
        ours.bias.copy_(torch.cat([part.bias for part in theirs]))


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


def rename_tokens(tokenizer, tokens, names, around):
    """Return the tokenizer with the vocabulary `tokens`, in that order.

    names: new names of the special tokens. around: what a sentence becomes, [] for itself.
    """
    ids = {token: n for n, token in enumerate(tokens)}
    file = json.loads(tokenizer.to_str())
    unknown = file["model"]["unk_token"]
    file["model"]["vocab"] = {names.get(token, token): n for token, n in ids.items()}
    file["model"]["unk_token"] = names.get(unknown, unknown)
    for token in file["added_tokens"]:
        content = token["content"]
        token["id"] = ids[content]
        token["content"] = names.get(content, content)
        if token["content"] == "[EOS]":  # of pairs; found after the normalizer
            token.update(lstrip=True, rstrip=True, normalized=True)
    file.update(truncation=None, padding=None, post_processor=None)
    tokenizer = Tokenizer.from_str(json.dumps(file))
    if around:
        pieces = [(name, tokenizer.token_to_id(name)) for name in around if name != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(around, special_tokens=pieces)
    if "[EOS]" in around:  # RoBERTa separates the sentences of a pair twice
        steps = [normalizers.Replace(" [EOS] ", "[EOS][EOS]")]
        if tokenizer.normalizer:
            steps.insert(0, tokenizer.normalizer)
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer
