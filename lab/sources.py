"""What train_mlm.py and train_classifier.py start from: a run, or RoBERTa's weights."""

from pathlib import Path

from lab.flags import require, spelled
from lab.load import LoadedRun, read_run
from nets.roberta import load_roberta


def open_source(flags, kinds, head=True):
    """Return the run of --init-from or --encoder as a LoadedRun, or the RoBERTa of --init as if it
    were one; None without these flags.

    kinds: of runs that are accepted. head: whether RoBERTa's head is needed. Raises UserError for
    flags that ask for another vocabulary, for an ensemble, and for a run that has read the test
    sentences that --split removes.
    """
    flag = "encoder" if hasattr(flags, "encoder") else "init_from"
    folder = getattr(flags, flag)
    problem = f"--init {flags.init}: brings an encoder; leave {spelled(flag)} and --causal out"
    require(not (flags.init and (folder or flags.causal)), problem)
    if not (flags.init or folder):
        return None
    problem = f"{flags.init or folder}: brings its vocabulary; leave --vocab-size"
    given = flags.vocab_size or getattr(flags, "vocab_from", "")
    require(not given, f"{problem} and --vocab-from out")
    if flags.init:
        model, tokenizer = load_roberta(flags.init, head)
        adopt(flags, model.body.config)
        return LoadedRun(Path(flags.init), "roberta", {}, model, tokenizer)
    source = read_run(folder, kinds)
    members = source.config["build"].get("members", 1)
    require(members == 1, f"{spelled(flag)} {folder}: is an ensemble; give a run of one model")
    decoder = source.model.body.causal or not flags.causal
    require(decoder, f"--causal: {spelled(flag)} {folder} is an encoder; leave --causal out")
    then, data = source.config["flags"], Path(flags.data).expanduser().resolve()
    clean = flags.split in ("full", then.get("split", "full"))
    clean = clean or Path(then["data"]).expanduser().resolve() != data
    problem = f"--split {flags.split}: {folder} was pretrained on test sentences"
    require(clean, f"{problem}; pretrain it with --split {flags.split} too")
    return source


def adopt(flags, config):
    """Give the flags the architecture of RoBERTa. Raises UserError for one that asks for another;
    only dropouts may differ."""
    for name in sorted(vars(config).keys() & vars(flags).keys() - {"vocab_size"}):
        asked, default, used = (getattr(of, name) for of in (flags, type(flags), config))
        problem = f"{spelled(name)} {asked}: --init {flags.init} has {used}; leave the flag out"
        require("dropout" in name or asked in (default, used), problem)
        setattr(flags, name, used if asked == default else asked)


def without_flag(source, flags):
    """Return the options of a source's Config that no flag sets, such as norm_eps."""
    config = vars(source.model.body.config) if source else {}
    return {name: value for name, value in config.items() if not hasattr(flags, name)}


def say_unknown(run, name, share, source):
    """Print a note if the vocabulary lacks over a tenth of the words of a set."""
    vocabulary = "the vocabulary; try --tokenizer bpe"
    if source:
        vocabulary = f"{source.folder}; pretrain it on text of the same kind"
    if share > 0.1:
        run.say(f"  note: {share:.0%} of the {name} words are unknown to {vocabulary}")
