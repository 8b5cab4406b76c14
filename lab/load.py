"""Load finished and unfinished runs."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch

from data.files import printable
from data.tokenizer import load_tokenizer
from lab import processes
from lab.checkpoint import check_weights, read_checkpoint
from lab.errors import UserError, require
from lab.limits import make_config
from lab.records import read_config
from model import Decoder, LanguageModel
from nets.classifier import Classifier
from nets.device import device_of
from nets.encoder_decoder import EncoderDecoder
from nets.ensemble import Ensemble
from nets.generative import GenerativeClassifier
from nets.thread_reader import ThreadReader
from nets.two_languages import make_encoder

SCRIPTS = {
    "lm": "train_lm.py",
    "mlm": "train_mlm.py",
    "classifier": "train_classifier.py",
    "seq2seq": "beyond.train_seq2seq",
    "thread": "beyond.train_thread",
}
MOST_ANCESTORS = 100_000  # that a thread run can have been trained with


@dataclass(eq=False)
class LoadedRun:
    """A run, opened to look inside or to start from. It can be the key of a dictionary."""

    folder: Path
    kind: str
    config: dict  # config.json
    model: torch.nn.Module
    tokenizer: tokenizers.Tokenizer
    weights_of: str = ""  # which weights, unless the final ones: "step 100", "unfinished: epoch 3"

    @property
    def device(self):
        return device_of(self.model)


def read_run(folder, kinds=tuple(SCRIPTS), device="cpu", flag_name="", step=None):
    """Load a run: its model in evaluation mode with the best weights, and its tokenizer.

    kinds: which runs are accepted. flag_name: the flag that named the folder, for messages. step:
    load the weights of this step, which --keep kept. Raises UserError and DataError if the folder
    is no such run or its parts do not fit together.
    """
    folder, where = Path(folder), f"{flag_name} {folder}".strip()
    config = read_config(folder, where)
    kind = config.get("kind")
    if kind not in kinds:
        scripts = " or ".join(SCRIPTS[k] for k in kinds)
        problem = f"is a run of kind {kind[:40]!r}" if kind else "its config.json has no kind"
        raise UserError(f"{where}: {problem}; give a folder written by {scripts}")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    weights = folder / ("best.pt" if step is None else f"step-{step}.pt")
    if not weights.exists():
        remedy = "finish the run with --resume"
        if step is not None:
            kept = ", ".join(f"step-{kept}.pt" for kept in kept_steps(folder))
            it = f"it has {kept}" if kept else "it kept none"
            remedy = f"{it}; train with --keep {step}"
        raise UserError(f"{where}: no {weights.name}; {remedy}")
    checkpoint = read_checkpoint(weights)
    model = build_model(folder, kind, config, tokenizer, weights, checkpoint["model"])
    weights_of = "" if step is None else f"step {step}"
    if not (folder / "result.json").exists():
        unit = "epoch" if "epochs" in config["flags"] else "step"
        when = f"{unit} {checkpoint.get('step', '?')}"
        weights_of = f"unfinished: {when}"
        if processes.is_rank_0():
            note = f"note: the run in {folder} has not ended; its weights are those of {when}"
            print(printable(note), file=sys.stderr)
    return LoadedRun(folder, kind, config, model.to(device).eval(), tokenizer, weights_of)


def kept_steps(folder):
    """Return the steps whose weights a run has kept (--keep), in order."""
    names = [re.fullmatch(r"step-(\d+)\.pt", path.name) for path in folder.iterdir()]
    return sorted(int(name[1]) for name in names if name)


def build_model(folder, kind, described, tokenizer, saved, weights):
    """Return the model of a config.json with the weights of the file `saved`.

    The file may ask for any size. The model takes memory only when the weights have proved to be
    those of such a model. Raises UserError and DataError.
    """
    path = folder / "config.json"
    try:
        config = make_config(described["model"])
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: does not describe a model ({error}); train again") from None
    entries = tokenizer.get_vocab_size()
    if entries != config.vocab_size:
        raise UserError(
            f"{folder / 'tokenizer.json'}: has {entries} entries but the checkpoint's model "
            f"{config.vocab_size}; they are of different runs, restore the right one"
        )
    if kind == "thread":
        n, position = (described["reader"].get(k) for k in ("n_ancestors", "ancestor_positions"))
        known = position in ThreadReader.ANCESTOR_POSITIONS
        fits = known and type(n) is int and 0 < n <= MOST_ANCESTORS
        require((fits, f"{path}: does not describe a thread reader; restore the file"))
    members = described.get("members", 1)
    if kind == "classifier":
        head, n_class = described["classifier"], len(described["classes"])
        problem = f"{path}: names {n_class} classes, but the classifier has another number"
        require((n_class == head.get("n_class"), f"{problem}; restore the file"))
        if described.get("body") == "generative":
            each = head.get("members", 1)
            members = n_class * each if type(each) is int else each
    times = "" if members == 1 else f" × {members} members"
    layers = f"the {config.n_layer} layers of config.json{times}"
    n_tensors = len(weights) if isinstance(weights, dict) else 0
    problem = f"{saved}: holds {n_tensors} tensors, too few for {layers}"
    fits = type(members) is int and 0 < members * config.n_layer <= n_tensors
    require((fits, f"{problem}; restore the file"))
    try:
        with torch.device("meta"):
            model = make_model(kind, config, described)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        why = str(error)[:200]
        raise UserError(f"{path}: does not describe a model ({why}); train again") from None
    check_weights(model, weights, saved)
    model = make_model(kind, config, described)
    model.load_state_dict(weights)
    return model


def make_model(kind, config, described):
    """Return an untrained model of a kind, one of SCRIPTS."""
    if kind == "classifier" and described.get("body") == "generative":
        return GenerativeClassifier(config, **described["classifier"])
    if kind == "classifier":
        body = Decoder if described.get("body") == "decoder" else make_encoder
        return Classifier(body(config), **described["classifier"])
    if kind == "thread":
        return LanguageModel(ThreadReader(config, **described["reader"]))
    body = {"lm": Decoder, "mlm": make_encoder, "seq2seq": EncoderDecoder}[kind]
    members = [LanguageModel(body(config)) for _ in range(described.get("members", 1))]
    return Ensemble(members) if len(members) > 1 else members[0]
