"""Train with your own functions in place of ours, in a run of train_lm.py or train_mlm.py.

    python -m course.train answers/ [train_mlm.py] --pos alibi --data speeches

All flags are the script's. Where no function of yours runs, the course's solution does.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import model
import train_lm
import train_mlm
from course.exercises import EXERCISES, solutions
from course.judge import judge
from course.observe import Answer, settings_kept
from lab.flags import main, require

RUNS = ("done", "mistake", "difference")  # the status of a function that runs, right or not


def train(folder, script, flags):
    functions = {}
    for name in EXERCISES:
        functions.update(solutions(name))
    answers = load_answers(folder)
    require(answers, f"{folder}: no function here runs yet; write one (python -m course.start)")
    functions.update(answers)
    put_in(SimpleNamespace(**functions))
    flags.out = flags.out or str(folder / f"{script.__name__}-{flags.pos}-{flags.seed}")
    print("  note: the run is opened and resumed with our functions; yours are not kept in it")
    script.train(flags)


def load_answers(folder):
    """Return {function: answer} of all answers that run, and print the verdict on each."""
    paths = {}
    for name, solution in EXERCISES.items():
        path = folder / solution.name
        if path.exists():
            paths[name] = path
    answers = {}
    for name, verdicts in judge(paths).items():
        for function, verdict in verdicts.items():
            if verdict.status in RUNS:
                with settings_kept():  # a file that turns gradients off does so for itself alone
                    answers[function] = getattr(Answer(paths[name]).module, function)
                print(f"  {function:<12} yours: {verdict.message or 'done'}")
    return answers


# ------------------------------------------------- where each function enters; it may use float64


def put_in(course):
    """Let the model and the scripts compute with the functions of the course."""
    model.split_heads = split_heads_with(course.split_heads)
    model.Attention.attend = attend_with(course.attend, course.join_heads)
    model.Block.forward = block_with(course.block)
    model.ALiBi.bias = bias_with(course.causal_bias, course.encoder_bias)
    model.sinusoids = sinusoids_with(course.sinusoids)
    model.LanguageModel.loss = loss_with(course.loss)
    train_mlm.mask_tokens = masking_with(course.mask_words)


def split_heads_with(split_heads):
    """Return a function for model.split_heads."""

    def split(x, n_head):
        return split_heads(x, n_head).to(x.dtype)  # (B, H, T, D)

    return split


def attend_with(attend, join_heads):
    """Return a method for model.Attention.attend."""

    def attend_in(layer, q, k, v, bias):
        dropout = layer.attn_dropout if layer.training else 0.0
        y, _ = attend(q, k, v, None, bias, dropout)
        y = join_heads(y.to(q.dtype)).to(q.dtype)  # (B, T, C)
        return y.unflatten(2, (layer.n_head, -1)).transpose(1, 2)  # (B, H, T, D)

    return attend_in


def block_with(block):
    """Return a method for model.Block.forward."""

    def forward(layer, x, where, picked=None):
        def attention(x):
            return layer.attention(x, where)

        y = block(x, layer.norm1, attention, layer.norm2, layer.feed_forward, layer.dropout)
        y = y.to(x.dtype)
        if picked is not None:
            y = y.flatten(0, 1)[picked]  # (N, C)
        return y

    return forward


def bias_with(causal_bias, encoder_bias):
    """Return a method for model.ALiBi.bias."""

    def bias(alibi, i, j):
        n_head = len(alibi.slopes)
        T = len(j)
        if alibi.form == "causal":
            return causal_bias(n_head, T)[None]  # (1, H, T, T)
        return encoder_bias(n_head, T, alibi.form == "offset")[None]

    return bias


def sinusoids_with(sinusoids):
    """Return a function for model.sinusoids."""

    def sinusoids_at(i, C):
        return sinusoids(len(i), C)  # i are 0, ..., T - 1

    return sinusoids_at


def loss_with(mean_loss):
    """Return a method for model.LanguageModel.loss, which is a sum."""

    def loss(lm, idx, targets, mask=None, smoothing=0.0):
        mean = mean_loss(lm(idx, mask), targets.contiguous())
        return mean * (targets != -100).sum()

    return loss


def masking_with(mask_words):
    """Return a function for train_mlm.mask_tokens, without its last arguments."""

    def mask_tokens(idx, vocab_size, gen, rate, *_):
        return mask_words(idx, vocab_size, rate, gen)

    return mask_tokens


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv.pop(1))
    script = train_lm
    if "train_mlm.py" in sys.argv:
        script = train_mlm
    sys.argv = [word for word in sys.argv if word not in ("train_lm.py", "train_mlm.py")]

    def run(flags):
        train(folder, script, flags)

    main(run, script.Flags)
