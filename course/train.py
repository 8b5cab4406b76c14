"""Train with your own functions in place of ours, in a run of train_lm.py or train_mlm.py.

    python -m course.train answers/ [train_mlm.py] --pos alibi --data speeches

All flags are the script's. Where no function of yours runs, the course's solution does.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import model
import nets.attention
import train_lm
import train_mlm
from course.cases import EXERCISES, solutions
from course.judge import judge, load
from lab.flags import main, require


def train(folder, script, flags):
    paths, yours = {name: folder / path.name for name, path in EXERCISES.items()}, {}
    for name, verdicts in judge({n: path for n, path in paths.items() if path.exists()}).items():
        for function, verdict in verdicts.items():
            if verdict.status in ("done", "mistake", "difference"):
                yours[function] = getattr(load(paths[name])[0], function)
                print(f"  {function:<12} yours: {verdict.message or 'done'}")
    require(yours, f"{folder}: no function here runs yet; write one (python -m course.start)")
    right = {function: f for name in EXERCISES for function, f in solutions(name).items()}
    put_in(SimpleNamespace(**right | yours))
    flags.out = flags.out or str(folder / f"{script.__name__}-{flags.pos}-{flags.seed}")
    print("  note: the run is opened and resumed with our functions; yours are not kept in it")
    script.train(flags)


def put_in(course):
    """Let the model and the scripts compute with other functions, which may use float64."""

    def heads(layer, x, memory=None):
        parts = layer.qkv(x).chunk(3, dim=-1)
        return tuple(course.split_heads(part, layer.n_head).to(x.dtype) for part in parts)

    def attention(q, k, v, bias, dropout, causal):
        if bias is None and causal:
            bias = q.new_full((q.size(2), k.size(2)), -torch.inf).triu(1)
        y, _ = course.attend(q, k, v, None, bias, dropout)
        y = course.join_heads(y.to(q.dtype)).to(q.dtype)  # (B, T, C)
        return y.unflatten(2, (q.size(1), -1)).transpose(1, 2)  # as the layer expects

    def block(layer, x, cross=None, picked=None, **args):
        parts = layer.norm2, layer.feed_forward, layer.dropout
        y = course.block(x, layer.norm1, lambda x: layer.attention(x, **args)[0], *parts)
        return y.to(x.dtype) if picked is None else y.to(x.dtype).flatten(0, 1)[picked], None

    def bias(alibi, q, k, i, j):
        if alibi.form == "causal":
            return course.causal_bias(len(alibi.slopes), len(j))[None]
        return course.encoder_bias(len(alibi.slopes), len(j), alibi.form == "offset")[None]

    def loss(lm, idx, targets, mask=None, smoothing=0.0):
        mean = course.loss(lm(idx, mask), targets.contiguous())
        return mean * (targets != -100).sum()  # ours is a sum

    model.Attention.heads, nets.attention.fused = heads, attention
    model.Block.forward, model.LanguageModel.loss = block, loss
    model.ALiBi.bias = bias
    model.sinusoids = lambda i, C: course.sinusoids(len(i), C)
    train_mlm.mask_tokens = lambda idx, V, gen, rate, *_: course.mask_words(idx, V, rate, gen)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv.pop(1))
    script = train_mlm if "train_mlm.py" in sys.argv else train_lm
    sys.argv = [word for word in sys.argv if word not in ("train_lm.py", "train_mlm.py")]
    main(lambda flags: train(folder, script, flags), script.Flags)
