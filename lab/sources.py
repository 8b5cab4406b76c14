"""Open what a run starts from: the encoder or decoder of another run, or RoBERTa's weights."""

from pathlib import Path

from lab.flags import require, spelled
from lab.load import LoadedRun, open_source
from nets.roberta import load_roberta


def open_encoder(flags, flag, kinds, head=True):
    """Return what to start from as a LoadedRun: the RoBERTa of --init (head: whether with its
    head), or the run of --init-from or --encoder (flag), a model of one of the kinds; None without
    these flags. Raises UserError for flags that contradict it."""
    if flags.init:
        return open_roberta(flags, flag, head)
    source = open_source(flags, flag, kinds)
    if source:
        members = source.config["build"].get("members", 1)
        require(members == 1, f"{source.folder}: is an ensemble; give a run of one model")
        if getattr(flags, "causal", False):
            problem = f"--causal: {source.folder} is an encoder; leave --causal out"
            require(source.model.body.causal, problem)
    return source


def open_roberta(flags, flag, head):
    """Return the RoBERTa of --init as a LoadedRun, and give the flags of its architecture the
    values that it has. Raises UserError for flags that contradict it."""
    contradictions = (
        getattr(flags, flag),
        getattr(flags, "causal", False),
        flags.vocab_size,
        getattr(flags, "vocab_from", ""),
    )
    problem = f"--init {flags.init}: brings an encoder and its vocabulary"
    remedy = f"leave {spelled(flag)}, --causal and --vocab-... out"
    require(not any(contradictions), f"{problem}; {remedy}")
    model, tokenizer = load_roberta(flags.init, head)
    architecture = vars(model.body.config)
    for name in sorted(architecture.keys() & vars(flags).keys() - {"vocab_size"}):
        value = getattr(flags, name)
        if value == getattr(type(flags), name):  # not typed: the default
            setattr(flags, name, architecture[name])
        elif "dropout" not in name:  # any other dropout is possible
            problem = f"{spelled(name)} {value}: --init {flags.init} has {architecture[name]}"
            require(value == architecture[name], f"{problem}; leave it out")
    return LoadedRun(Path(flags.init), "roberta", {}, model, tokenizer)
