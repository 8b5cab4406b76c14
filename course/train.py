"""Train with your own functions in place of ours, in a run of a training script.

    python -m course.train answers/ --pos alibi --data speeches
    python -m course.train answers/ train_mlm.py --data speeches
    python -m course.train answers/ train_classifier.py --data speeches

All flags are the script's. Where no function of yours runs, the course's solution does. At the end
stands which of yours the run has used.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import data.text
import model
import nets.classifier
import train_classifier
import train_lm
import train_mlm
from course.exercises import EXERCISES, solutions
from course.judge import judge
from course.observe import Answer, settings_kept
from lab.flags import main, require

SCRIPTS = {f"{script.__name__}.py": script for script in (train_lm, train_mlm, train_classifier)}
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
    used = [name for name, answer in answers.items() if answer.n_calls]
    unused = [name for name in answers if name not in used]
    print(f"your functions in this run: {', '.join(used) or 'none'}")
    if unused:
        print(f"not used in this run: {', '.join(unused)}")


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.n_calls = 0

    def __call__(self, *arguments):
        self.n_calls += 1
        return self.function(*arguments)


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
                    answers[function] = Counted(getattr(Answer(paths[name]).module, function))
                print(f"  {function:<18} yours: {verdict.message or 'done'}")
    return answers


# ------------------------------------------------- where each function enters; it may use float64


def put_in(course):
    """Let the model and the scripts compute with the functions of the course."""
    model.split_heads = split_heads_with(course.split_heads)
    model.Attention.attend = attend_with(course.attend, course.join_heads)
    model.Block.forward = block_with(course.block, course.layer_norm)
    model.ALiBi.bias = bias_with(course.causal_bias, course.encoder_bias)
    model.sinusoids = sinusoids_with(course.sinusoids)
    model.LanguageModel.loss = loss_with(course.loss)
    model.Rotary.turn = turn_with(course.angles, course.rotate)
    model.ClapHead.forward = clap_with(course.logits)
    data.text.consecutive_blocks = blocks_with(course.next_words)
    train_lm.evaluate = evaluate_with(course.perplexity)
    train_mlm.mask_tokens = masking_with(course.mask_words)
    nets.classifier.pool_tokens = pool_with(course.mean_pool)
    nets.classifier.Classifier.forward = classify_with(course.classify)


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


def block_with(block, layer_norm):
    """Return a method for model.Block.forward."""

    def forward(layer, x, where, picked=None):
        def attention(x):
            return layer.attention(x, where)

        def norm1(x):
            return layer_norm(x, layer.norm1.weight, layer.norm1.bias, layer.norm1.eps)

        def norm2(x):
            return layer_norm(x, layer.norm2.weight, layer.norm2.bias, layer.norm2.eps)

        y = block(x, norm1, attention, norm2, layer.feed_forward, layer.dropout)
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


def turn_with(angles, rotate):
    """Return a method for model.Rotary.turn."""

    def turn(rotary, q, k, i, j):
        q = rotate(q, angles(i, rotary.D)).to(q.dtype)
        return q, rotate(k, angles(j, rotary.D)).to(k.dtype)

    return turn


def clap_with(logits):
    """Return a method for model.ClapHead.forward."""

    def forward(head, h):
        return logits(h, head.words.weight, head.beta).to(h.dtype)  # (B, T, V)

    return forward


def blocks_with(next_words):
    """Return a function for data.text.consecutive_blocks, without --anchor and --eval-stride."""

    def consecutive_blocks(ids, block_size, *_):
        return next_words(ids.long(), block_size)

    return consecutive_blocks


def evaluate_with(perplexity):
    """Return a function for train_lm.evaluate."""

    def evaluate(lm, inputs, targets, *_):
        lm.eval()
        batches = []
        with torch.no_grad():
            for x, y in zip(inputs.split(64), targets.split(64)):
                batches.append((lm(x), y))
        lm.train()
        return float(perplexity(batches))

    return evaluate


def pool_with(mean_pool):
    """Return a function for nets.classifier.pool_tokens."""
    pool_tokens = nets.classifier.pool_tokens

    def pool(h, mask, how):
        if how == "mean":
            return mean_pool(h, mask).to(h.dtype)  # (B, C)
        return pool_tokens(h, mask, how)

    return pool


def classify_with(classify):
    """Return a method for Classifier.forward, of a classifier with a hidden layer."""

    def forward(classifier, idx, mask=None):
        x = classifier.project(classifier.features(idx, mask))
        first, _, dropout, last = classifier.head
        weights = first.weight, first.bias, last.weight, last.bias
        return classify(x, *weights, dropout.p, classifier.training).to(x.dtype)

    return forward


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
    if len(sys.argv) > 1 and sys.argv[1] in SCRIPTS:
        script = SCRIPTS[sys.argv.pop(1)]

    def run(flags):
        train(folder, script, flags)

    main(run, script.Flags)
