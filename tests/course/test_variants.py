"""The course: right answers of many kinds pass, and each known mistake is told apart."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import einsum

from course import watch
from course.exercises import EXERCISES, STUBS, make_sheet
from course.judge import judge_function
from data import tokenizer

TASKS = [(exercise, task) for exercise, tasks in EXERCISES.items() for task in tasks]
SHEETS = {}


def verdict_on(function, exercise, task, seed=0):
    if (exercise, seed) not in SHEETS:
        SHEETS[exercise, seed] = make_sheet(exercise, seed)
    return judge_function(Path("ex.py"), function, task, SHEETS[exercise, seed][task], seconds=20)


@pytest.mark.parametrize("exercise, task", TASKS)
def test_a_reference_passes_its_own_check(exercise, task):
    reference = EXERCISES[exercise][task][0]
    for seed in (0, 1):
        assert verdict_on(reference, exercise, task, seed).status == "done"


@pytest.mark.parametrize("exercise, task", TASKS)
def test_a_known_mistake_gets_its_own_diagnosis(exercise, task):
    mistakes = EXERCISES[exercise][task][3]
    for seed in (0, 1):
        for diagnosis, function in zip(mistakes[::2], mistakes[1::2]):
            verdict = verdict_on(function, exercise, task, seed)
            assert (verdict.status, verdict.message) == ("mistake", f"{task}: {diagnosis}")


def test_the_judge_and_the_stub_know_the_ids_of_the_tokenizer():
    assert (watch.MASK, watch.N_SPECIAL) == (tokenizer.MASK, len(tokenizer.SPECIAL))
    assert "MASK, N_SPECIAL = 2, 5" in (STUBS / "ex08_masking.py").read_text(encoding="utf-8")


def test_more_than_a_hundred_mistakes_have_a_sentence():
    found = [
        diagnosis for tasks in EXERCISES.values() for t in tasks.values() for diagnosis in t[3]
    ]
    diagnoses = [text for text in found if isinstance(text, str)]
    assert len(diagnoses) == len(found) / 2 > 100
    assert all(text.endswith(".") and len(text) < 170 for text in diagnoses)


# --------------------------------------------------------------------------------- 1. padding


def pad_as_list(sequences):
    T = max(map(len, sequences))
    rows = [s.tolist() + [0] * (T - len(s)) for s in sequences]
    return [torch.tensor(rows), torch.tensor(rows).bool()]


# ------------------------------------------------------------------------ 2. and 3. attention


def hidden(scores, mask, bias):
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
    return scores


def attend_by_einsum(q, k, v, mask=None, bias=None, dropout=0.0):
    scores = einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
    weights = torch.softmax(hidden(scores, mask, bias), -1)
    return einsum("bhts,bhsd->bhtd", F.dropout(weights, dropout), v), weights


def attend_in_float64(q, k, v, mask=None, bias=None, dropout=0.0):
    return attend_by_einsum(q.double(), k.double(), v.double(), mask, bias, dropout)


def split_by_loop(x, n_head):
    D = x.size(-1) // n_head
    out = x.new_empty(len(x), n_head, x.size(1), D).double()
    for h in range(n_head):
        out[:, h] = x[:, :, h * D : (h + 1) * D]
    return out


def join_by_flatten(y):
    return y.permute(0, 2, 1, 3).flatten(2).double()


# ------------------------------------------------------------------------ 4. and 5. positions


def sinusoids_by_phase(T, n_embd):
    c = torch.arange(n_embd)
    angles = torch.outer(torch.arange(T), 10000.0 ** -((c // 2 * 2) / n_embd))
    return torch.sin(angles + (c % 2) * math.pi / 2)


def slopes_in_float64(n_head):
    power = 1
    while power * 2 <= n_head:
        power *= 2
    first = torch.arange(1, power + 1, dtype=torch.float64) * 8 / power
    second = torch.arange(1, 2 * power, 2, dtype=torch.float64) * 4 / power
    return 2.0 ** -torch.cat([first, second])[:n_head]


def causal_by_triangle(n_head, T):
    t = torch.arange(T)
    future = torch.ones(T, T).triu(1).bool()
    return (slopes_in_float64(n_head).view(-1, 1, 1) * (t - t[:, None])).masked_fill(future, -1e9)


def encoder_by_loop(n_head, T, offset):
    rows = [
        [[-m * (abs(i - j) - 0.5 * (offset and j > i)) for j in range(T)] for i in range(T)]
        for m in slopes_in_float64(n_head).tolist()
    ]
    return torch.tensor(rows)


# ------------------------------------------------------------------------ 6., 9. and 10. layers


def block_in_float64(x, norm1, attention, norm2, feed_forward, dropout):
    y = dropout(attention(norm1(x))).double()
    y += x
    return y + dropout(feed_forward(norm2(y.float())))


def block_in_place(x, norm1, attention, norm2, feed_forward, dropout):
    x = x.clone()
    x += dropout(attention(norm1(x)))
    x += dropout(feed_forward(norm2(x)))
    return x


def attend_with_mask_in_place(q, k, v, mask=None, bias=None, dropout=0.0):
    output, weights = attend_by_einsum(q, k, v, mask, bias, dropout)
    if mask is not None:
        weights.mul_(mask[:, None, None])
    return output, weights


def test_a_change_in_place_that_stops_the_backward_pass_is_found():
    for function, exercise in (("block", "block"), ("attend", "attention")):
        wrong = {"block": block_in_place, "attend": attend_with_mask_in_place}[function]
        verdict = verdict_on(wrong, exercise, function)
        assert verdict.status == "error" and "is changed in place, by x += y" in verdict.message
        assert "(RuntimeError: one of the variables needed for gradient" in verdict.message


def test_a_gradient_that_is_cut_is_found():
    def block(x, norm1, attention, norm2, feed_forward, dropout):
        x = x + dropout(attention(norm1(x))).detach()
        return x + dropout(feed_forward(norm2(x)))

    def classify(x, w1, b1, w2, b2, dropout, training):
        return classify_by_matmul(x, w1.data, b1, w2, b2, dropout, training)

    def logits(h, table, beta):
        return beta.item() * h @ F.normalize(table, dim=-1).T

    for function, exercise, place in (
        (block, "block", "x[0, 0, 0]"),
        (classify, "classifier", "w1[0, 0]"),
        (logits, "clap", "beta"),
    ):
        told = verdict_on(function, exercise, function.__name__).message
        assert f": the numbers are right, but the gradient of {place} is " in told


def pool_by_einsum(h, mask):
    weights = mask.double() / mask.double().sum(1, keepdim=True)
    return einsum("btc,bt->bc", h.double(), weights)


def classify_by_matmul(x, w1, b1, w2, b2, dropout, training):
    return F.dropout((x @ w1.T + b1).clamp(min=0), dropout, training) @ w2.T + b2


def classify_by_hand(x, w1, b1, w2, b2, dropout, training):
    hidden = torch.addmm(b1, x, w1.t()).relu()
    if training:
        hidden = hidden * (torch.rand_like(hidden) > dropout) / (1 - dropout)
    return F.linear(hidden, w2, b2)


WRONG_DROPOUT = [
    lambda x, w1, b1, w2, b2, p, on: F.dropout(F.linear(F.linear(x, w1, b1).relu(), w2, b2), p, on),
    lambda x, w1, b1, w2, b2, p, on: F.linear(F.linear(F.dropout(x, p, on), w1, b1).relu(), w2, b2),
    lambda x, w1, b1, w2, b2, p, on: F.linear(
        F.dropout(F.linear(x, w1, b1).relu(), 0.5, on), w2, b2
    ),
    lambda x, w1, b1, w2, b2, p, on: (
        torch.randn(len(x), len(w2)) if on else classify_by_matmul(x, w1, b1, w2, b2, p, on)
    ),
]


@pytest.mark.parametrize("function", WRONG_DROPOUT)
def test_dropout_elsewhere_or_of_another_share_is_wrong(function):
    assert verdict_on(function, "classifier", "classify").status in ("mistake", "difference")


def test_an_embedding_that_ignores_the_id_of_the_mask_is_wrong():
    def embed(idx, table, mask_id):
        return F.normalize(table[idx], dim=-1) * (idx != 2)[..., None]

    assert verdict_on(embed, "clap", "embed").status == "difference"


def embed_by_where(idx, table, mask_id):
    x = F.embedding(idx, F.normalize(table.double(), dim=1))
    return torch.where((idx == mask_id)[:, :, None], 0.0, x)


def logits_by_division(h, table, beta):
    return (beta * h).double() @ table.double().t() / table.double().norm(dim=1)


# --------------------------------------------------------------------------- 7. and 8. words


def next_by_padding(ids, T):
    n = math.ceil((len(ids) - 1) / T)
    missing = n * T - (len(ids) - 1)
    x = F.pad(ids[:-1], (0, missing), value=0).view(n, T)
    return x, F.pad(ids[1:], (0, missing), value=-100).view(n, T)


def loss_by_gather(logits, targets):
    keep = targets >= 0
    log_p = logits.double().log_softmax(-1)[keep]
    return -log_p.gather(1, targets[keep][:, None]).mean()


def perplexity_at_once(batches):
    logits = torch.cat([x.flatten(0, 1) for x, _ in batches])
    return F.cross_entropy(logits, torch.cat([y.flatten() for _, y in batches])).exp()


def mask_by_dice(idx, vocab_size, rate, gen):
    chosen = (torch.rand(idx.shape, generator=gen) < rate) & (idx >= 5)
    dice = torch.rand(idx.shape, generator=gen)
    inputs, labels = idx.clone(), torch.where(chosen, idx, -100)
    inputs[chosen & (dice < 0.8)] = 2
    swap = chosen & (dice >= 0.9)
    inputs[swap] = torch.randint(5, vocab_size, (swap.sum().item(),), generator=gen)
    return inputs, labels


def mask_an_exact_share(idx, vocab_size, rate, gen):
    inputs, labels = idx.clone(), torch.full_like(idx, -100)
    for b, row in enumerate(idx):
        words = (row >= 5).nonzero().squeeze(1)
        order = words[torch.randperm(len(words), generator=gen)][: round(rate * len(words))]
        labels[b, order] = row[order]
        n = len(order)
        inputs[b, order[: round(0.8 * n)]] = 2
        others = order[round(0.8 * n) : round(0.9 * n)]
        inputs[b, others] = torch.randint(5, vocab_size, (len(others),), generator=gen)
    return inputs, labels


VARIANTS = {
    "pad": [pad_as_list],
    "attend": [attend_by_einsum, attend_in_float64],
    "split_heads": [split_by_loop],
    "join_heads": [join_by_flatten],
    "sinusoids": [sinusoids_by_phase],
    "slopes": [slopes_in_float64],
    "causal_bias": [causal_by_triangle],
    "encoder_bias": [encoder_by_loop],
    "block": [block_in_float64],
    "next_words": [next_by_padding],
    "loss": [loss_by_gather],
    "perplexity": [perplexity_at_once],
    "mask_words": [mask_by_dice, mask_an_exact_share],
    "mean_pool": [pool_by_einsum],
    "classify": [classify_by_matmul, classify_by_hand],
    "embed": [embed_by_where],
    "logits": [logits_by_division],
}


@pytest.mark.parametrize("exercise, task", TASKS)
def test_right_answers_of_other_kinds_pass(exercise, task):
    for variant in VARIANTS[task]:
        for seed in (0, 1, 2):
            verdict = verdict_on(variant, exercise, task, seed)
            assert verdict.status == "done", (variant.__name__, verdict)
