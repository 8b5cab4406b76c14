"""Write a pretrained encoder as a folder that Hugging Face's transformers reads as RoBERTa.

    python -m beyond.export out/mlm-toy-learned-0 --out my-roberta

Only a run of RoBERTa's architecture can be: train_mlm.py --pos learned --no-norm-first --head roberta.
"""

from dataclasses import dataclass
from pathlib import Path

from lab.command import main
from lab.flags import flag
from lab.load import load_run
from lab.parameters import count_parameters
from nets.roberta import export_roberta


@dataclass
class Flags:
    run: str = flag("", "run folder of train_mlm.py", positional=True)
    out: str = flag("", "folder to write; empty: roberta/ in the run's folder")


def export(flags):
    run = load_run(flags.run, ("mlm",))
    out, config = Path(flags.out) if flags.out else run.folder / "roberta", run.model.body.config
    export_roberta(run, out)
    print(
        f"{config.n_layer} layers, {config.n_embd} wide, {config.vocab_size:,} tokens, "
        f"{count_parameters(run.model)['total']:,} parameters: "
        + ", ".join(sorted(path.name for path in out.iterdir()))
    )
    print(
        f"in Python: transformers.AutoModelForMaskedLM.from_pretrained({str(out)!r}), and AutoTokenizer likewise"
    )


if __name__ == "__main__":
    main(export, Flags, __doc__.split("\n")[0])
