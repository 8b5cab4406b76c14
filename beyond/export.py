"""Write a pretrained encoder as a folder that Hugging Face's transformers loads as RoBERTa.

    python train_mlm.py --pos learned --no-norm-first --head roberta --out out/encoder
    python -m beyond.export out/encoder --out my-roberta

Only RoBERTa's architecture can be exported, so the run needs the flags of the first command.
"""

from dataclasses import dataclass
from pathlib import Path

from lab.command import main
from lab.flags import flag
from lab.load import read_run
from lab.parameters import count_parameters
from nets.roberta import export_roberta


@dataclass
class Flags:
    run: str = flag("", "run folder of train_mlm.py", positional=True)
    out: str = flag("", "folder to write (default: roberta/ in the run folder)")


def export(flags):
    run = read_run(flags.run, ("mlm",))
    out = Path(flags.out) if flags.out else run.folder / "roberta"
    export_roberta(run, out)
    config, total = run.model.body.config, count_parameters(run.model)["total"]
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    print(f"{out}: {files}")
    print(
        f"{config.n_layer} layers, width {config.n_embd}, {config.vocab_size:,} tokens, "
        f"{total:,} parameters; load it in Python with"
    )
    print(f"  transformers.AutoModelForMaskedLM.from_pretrained({str(out)!r})")
    print(f"  transformers.AutoTokenizer.from_pretrained({str(out)!r})")


if __name__ == "__main__":
    main(export, Flags, __doc__)
