"""What train_mlm.py and train_classifier.py start from: a run, or RoBERTa's weights."""

from pathlib import Path

import lab.load
from lab.flags import require, spelled
from nets.roberta import load_roberta


def open_encoder(flags, kinds, head=True):
    """Return what to start from as a LoadedRun: the run of --init-from or --encoder, a model of one
    of the kinds, or the RoBERTa of --init (head: whether with its head); None without these flags.
    Raises UserError for flags that contradict it."""
    flag = "encoder" if hasattr(flags, "encoder") else "init_from"
    source, causal = lab.load.open_source(flags, flag, kinds), getattr(flags, "causal", False)
    if flags.init:
        asked = source or causal or flags.vocab_size or getattr(flags, "vocab_from", "")
        problem = f"--init {flags.init}: brings an encoder and its vocabulary"
        require(not asked, f"{problem}; leave {spelled(flag)}, --causal and --vocab-... out")
        model, tokenizer = load_roberta(flags.init, head)
        config = model.body.config
        for name in sorted(vars(config).keys() & vars(flags).keys() - {"vocab_size"}):
            asked, default, used = (getattr(of, name) for of in (flags, type(flags), config))
            problem = f"{spelled(name)} {asked}: --init {flags.init} has {used}; leave it out"
            require("dropout" in name or asked in (default, used), problem)
            setattr(flags, name, used if asked == default else asked)
        return lab.load.LoadedRun(Path(flags.init), "roberta", {}, model, tokenizer)
    if source:
        one = source.config["build"].get("members", 1) == 1
        require(one, f"{source.folder}: is an ensemble; give a run of one model")
        fits = source.model.body.causal or not causal
        require(fits, f"--causal: {source.folder} is an encoder; leave --causal out")
    return source


def say_unknown(run, name, share, source):
    """Print a note if the vocabulary lacks over a tenth of the words of a set."""
    vocabulary = "the vocabulary; try --tokenizer bpe"
    if source:
        vocabulary = f"{source.folder}; pretrain it on text of the same kind"
    if share > 0.1:
        run.say(f"  note: {share:.0%} of the {name} words are unknown to {vocabulary}")
