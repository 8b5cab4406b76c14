"""The course's verdicts: right answers of many kinds pass, and each mistake is told apart."""

import functools
import inspect
import math
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import ROOT
from torch import einsum

import model
from course.cases import CHECKS
from course.exercises import EXERCISES, solutions
from course.known import MISTAKES, expect, read_mistakes
from course.observe import observe_answer
from course.start import CHECK
from data import batching

RIGHT = {function: right for name in EXERCISES for function, right in solutions(name).items()}


def verdict_on(function, name, seed=0):
    """Return the Verdict on a function in place of the one with this name."""
    return verdict_on_new(lambda: function, name, seed)


def verdict_on_new(make, name, seed=0):
    """Return the Verdict on a function that is made anew when its file is loaded."""

    def load():
        return SimpleNamespace(**{name: make()})

    answer = SimpleNamespace(path="ex.py", module=load(), load=load)
    expected = expect(name, seed)
    observation = observe_answer(answer, name, CHECKS[name], expected.cases)
    return expected.judge(observation)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RIGHT)
def test_a_known_mistake_gets_its_own_diagnosis(name, seed):
    assert verdict_on(RIGHT[name], name, seed).status == "done"
    known = expect(name, seed).mistakes
    for row, message in enumerate(known.messages):
        if message.startswith("as in "):  # a helper's mistake can be one of this function's own
            continue
        verdict = verdict_on(known.function(row), name, seed)
        assert (verdict.status, verdict.message) == ("mistake", f"{name}: {message}")


def test_every_function_has_mistakes_and_together_more_than_two_hundred():
    entries = {name: read_mistakes(name) for name in RIGHT}
    assert len(RIGHT) == 27 and all(entries.values())
    messages = sum(map(list, entries.values()), [])
    assert len(messages) > 200 and all(message.endswith((".", "?)")) for message in messages)
    text = MISTAKES.read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == list(RIGHT)
    assert text.count("\n- ") == len(messages)
    page = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    assert f"[{len(messages)} known" in page


def test_code_of_a_handout_has_no_answers():
    text = ""
    for name in CHECK:
        text += (ROOT / "course" / f"{name}.py").read_text(encoding="utf-8")
    for answer in ("triu", "tril", "arange(T) <", "F.normalize", "softmax("):
        assert answer not in text, answer


@pytest.mark.slow
def test_two_mistakes_at_once_are_both_named():
    def attend(q, k, v, mask=None, bias=None, dropout=0.0):
        weights = (q @ k.mT).softmax(-2)
        return F.dropout(weights, dropout) @ v, weights

    message = verdict_on(attend, "attend").message
    assert "not divided by sqrt(D)" in message and "Also: the softmax is over the qu" in message

    def mask_words(idx, vocab_size, rate, gen):
        chosen = torch.rand(idx.shape, generator=gen) < rate
        dice = torch.rand(idx.shape, generator=gen)
        words = torch.randint(0, vocab_size, idx.shape, generator=gen)
        inputs = torch.where(chosen & (dice < 0.8), 2, idx)
        inputs = torch.where(chosen & (dice > 0.9), words, inputs)
        return inputs, idx.masked_fill(~chosen, -100)

    message = verdict_on(mask_words, "mask_words").message
    assert "special tokens are masked" in message and "can be special tokens" in message


def test_a_mistake_of_a_function_that_another_calls_is_named_in_both():
    def loss(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten().clamp(min=0))

    def perplexity(batches):
        n = [(targets != -100).sum() for _, targets in batches]
        return (sum(loss(*batch) * k for batch, k in zip(batches, n)) / sum(n)).exp()

    message = verdict_on(perplexity, "perplexity").message
    assert message.startswith("perplexity: as in loss: targets of -100 are predicted as 0")


def test_arguments_are_those_of_the_solutions():
    for name, right in RIGHT.items():
        assert list(inspect.signature(right).parameters) == CHECKS[name].arguments.split()
    assert list(RIGHT) == list(CHECKS)


def test_solutions_agree_with_the_library():
    q, k, v, bias = torch.randn(4, 2, 3, 5, 5)
    weights = (q @ k.mT / math.sqrt(q.size(-1)) + bias).softmax(-1)
    torch.testing.assert_close(RIGHT["attend"](q, k, v, None, bias), (weights @ v, weights))
    for n in range(1, 17):
        torch.testing.assert_close(RIGHT["slopes"](n), model.alibi_slopes(n))
    torch.testing.assert_close(RIGHT["sinusoids"](9, 6), model.sinusoids(torch.arange(9), 6))
    ids = torch.randint(9, (14,))
    for mine, theirs in zip(RIGHT["next_words"](ids, 4), batching.consecutive_blocks(ids, 4)):
        assert torch.equal(mine, theirs)


def pad_as_list(sequences):
    T = max(map(len, sequences))
    rows = [s.tolist() + [0] * (T - len(s)) for s in sequences]
    return [torch.tensor(rows), torch.tensor(rows).bool()]


def attend_by_einsum(q, k, v, mask=None, bias=None, dropout=0.0):
    scores = einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    return einsum("bhts,bhsd->bhtd", F.dropout(weights, dropout), v), weights


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


def classify_by_hand(x, w1, b1, w2, b2, dropout, training, n=None):
    hidden = torch.addmm(b1, x, w1.t()).relu()
    if training:
        hidden = hidden * (torch.rand_like(hidden[:, :n]) > dropout) / (1 - dropout)
    return F.linear(hidden, w2, b2)


def embed_by_division(idx, table, mask_id, least=1e-6):
    vectors = table / table.norm(dim=1, keepdim=True).clamp(min=least)
    return torch.where(idx[..., None] == mask_id, 0, vectors[idx])


def logits_by_division(h, table, beta):
    return (beta * h).double() @ table.double().t() / table.double().norm(dim=1)


def generate_reading_all(model, ids, n, temperature, top_k, gen):
    """Write a text; the model also reads the last token, which is not needed."""
    logits, past = model(ids, None)
    for _ in range(n):
        p = RIGHT["next_probabilities"](logits[:, -1], temperature, top_k)
        new = torch.multinomial(p, 1, generator=gen)
        ids = torch.cat([ids, new], 1)
        logits, past = model(new, past)
    return ids


def keep_a_pair(q, k, v, past):
    """Return the cache as the pair that the next call gets."""
    output, k, v = RIGHT["attend_with_cache"](q, k, v, past)
    return output, (k, v)


VARIANTS = [
    ("pad", pad_as_list),
    ("pad", lambda sequences: (RIGHT["pad"](sequences)[0], RIGHT["pad"](sequences)[0] != 0)),
    ("generate", generate_reading_all),
    ("attend_with_cache", keep_a_pair),
    ("attend", attend_by_einsum),
    ("attend", lambda q, k, v, *more: attend_by_einsum(q.double(), k.double(), v.double(), *more)),
    ("split_heads", lambda x, n: torch.stack([part.double() for part in x.chunk(n, -1)], 1)),
    ("sinusoids", sinusoids_by_phase),
    ("slopes", slopes_in_float64),
    ("causal_bias", causal_by_triangle),
    ("next_words", batching.consecutive_blocks),
    ("loss", lambda x, y: F.cross_entropy(x.double().flatten(0, 1), y.flatten())),
    ("mask_words", mask_an_exact_share),
    ("classify", classify_by_hand),
    ("embed", embed_by_division),
    ("logits", logits_by_division),
]


@pytest.mark.parametrize("name, function", VARIANTS)
def test_right_answers_of_other_kinds_pass(name, function):
    for seed in (0, 1):
        assert verdict_on(function, name, seed).status == "done", verdict_on(function, name, seed)


def cut_block(x, norm1, attention, norm2, feed_forward, dropout):
    x = x + dropout(attention(norm1(x))).detach()
    return x + dropout(feed_forward(norm2(x)))


CUT = [
    ("block", "x[0, 0, 0]", cut_block),
    ("classify", "w1[0, 0]", lambda x, w1, *rest: classify_by_hand(x, w1.data, *rest)),
    ("logits", "beta", lambda h, table, beta: logits_by_division(h, table, beta.item())),
]


def test_numpy_is_not_to_be_detached():
    def logits(h, table, beta):
        return torch.tensor(RIGHT["logits"](h, table, beta).numpy())

    said = verdict_on(logits, "logits").message
    assert said.endswith("numpy has no gradients, which must flow here. Compute with torch instead")


@pytest.mark.parametrize("name, place, function", CUT)
def test_a_gradient_that_is_cut_is_found(name, place, function):
    said = f"{name}: the numbers are right, but the gradient of {place} is "
    assert verdict_on(function, name).message.startswith(said)


def next_zero(ids, T):
    inputs, targets = batching.consecutive_blocks(ids, T)
    return inputs, targets.masked_fill(targets == 0, -100)


def masking(choose=lambda r, rate: r, turn=lambda r: r, word=lambda r, idx, V: 5 + (V - 5) * r):
    """A mask_words that makes its numbers and its words from r, independent ones in [0, 1)."""

    def mask_words(idx, vocab_size, rate, gen):
        r = torch.rand(3, *idx.shape, generator=gen)
        chosen, dice = (choose(r[0], rate) < rate) & (idx >= 5), turn(r[1])
        words = word(r[2], idx, vocab_size).long()
        inputs = torch.where(chosen & (dice < 0.1), words, idx)
        return inputs.masked_fill(chosen & (dice >= 0.2), 2), idx.masked_fill(~chosen, -100)

    return mask_words


def mean_of_two(r, idx, V):
    """Words in the middle of the vocabulary more often than others."""
    return 5 + (V - 5) * (r + r.roll(1)) / 2


def keep(x, p):
    return (torch.rand(x.shape) >= p) / (1 - p)


def attending(scale=None, dim=-1, mask_with_bias=False, bias_with_mask=False, dropped="weights"):
    """An attention with mistakes in some of the cases."""

    def attend(q, k, v, mask, bias, p):
        size = q.size(-1) * (q.size(1) if scale and (scale == "always" or bias is None) else 1)
        m = None if mask_with_bias and bias is None else mask
        b = None if bias_with_mask and mask is None else bias
        q = F.dropout(q, p) if dropped == "q" else q
        scores = q @ k.mT / size**0.5 + (0 if b is None else b)
        if m is not None:
            scores = scores.masked_fill(~m[:, None, None], -torch.inf)
        weights = scores.softmax(dim).nan_to_num()
        p = {"never": 0.0, "few": 1 - p if p else 0.0}.get(dropped, p)
        if dropped == "small":
            return weights * (weights >= weights.quantile(p, -1, True)) / (1 - p) @ v, weights
        if callable(dropped):
            return dropped(weights, p) @ v, weights
        if dropped == "v":
            return weights @ F.dropout(v, p), weights
        return F.dropout(weights, p) @ v, weights

    return attend


def attend_hiding(score):
    """An attention that gives padding this score."""

    def attend(q, k, v, mask, bias, p):
        hiding = torch.zeros(len(k), 1, 1, k.size(2))
        if mask is not None:
            hiding = hiding.masked_fill(~mask[:, None, None], score)
        scores = q @ k.mT / q.size(-1) ** 0.5
        if bias is not None:
            scores = scores + bias
        weights = torch.where(hiding < 0, hiding, scores).softmax(-1)
        return F.dropout(weights, p) @ v, weights

    return attend


def attend_masking_first(q, k, v, mask, bias, p):
    """An attention that gives padding a score of 1e-9, to which the bias is added."""
    scores = q @ k.mT / q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], 1e-9)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(-1)
    return F.dropout(weights, p) @ v, weights


WRONG = [
    ("next_words", next_zero, "targets of 0 become -100"),
    ("attend", attending(mask_with_bias=True), "padding is attended to"),
    ("attend", attending(bias_with_mask=True), "the bias is ignored"),
    ("attend", attending("sometimes", dropped="never"), "sqrt(n_embd)"),
    ("attend", attending("always", dropped="never"), "sqrt(n_embd)"),
    ("attend", attending(dim=-2, dropped="never"), "over the queries"),
    ("attend", attending(dim=-2), "over the queries"),
    ("attend", attending(dropped="never"), "dropout is never applied"),
    ("attend", attending(dropped="few"), "share of weights that become 0"),
    ("attend", attending(dropped="v"), "applied to the values"),
    pytest.param("attend", attending(dropped="q"), "mean square", marks=pytest.mark.slow),
    ("mask_words", masking(word=lambda r, idx, V: 0 * r + 5), "always the same one"),
    ("mask_words", masking(word=lambda r, idx, V: 5 + (V - 5) * r[:1, :1]), "the whole batch"),
    ("mask_words", masking(word=lambda r, idx, V: 5 + (V - 5) * r[:, :1]), "for each row"),
    ("mask_words", masking(word=lambda r, idx, V: 5 + (idx - 4) % (V - 5)), "id + 1"),
    ("mask_words", masking(word=lambda r, idx, V: idx.roll(1)), "their neighbours"),
    ("mask_words", masking(word=lambda r, idx, V: 5 + (V / 2 - 5) * r), "from the lower half"),
    ("mask_words", masking(word=lambda r, idx, V: 5 + (V - 6) * r), "the first or the last"),
    ("mask_words", masking(lambda r, rate: r[:1]), "rows hide the same positions"),
    ("mask_words", masking(lambda r, rate: r.repeat_interleave(2, 1)[:, : r.size(1)]), "in pairs"),
    ("mask_words", masking(lambda r, rate: (rate * torch.arange(160) + r[:, :1]) % 1), "evenly"),
    ("mask_words", masking(turn=lambda r: r[:1]), "the same in a whole column"),
    ("mask_words", masking(turn=lambda r: (torch.arange(160) * 0.1 + r[:, :1]) % 1), "become"),
    ("attend", attending(dropped=lambda w, p: w * keep(w[:, :1], p)), "all heads share"),
    ("attend", attending(dropped=lambda w, p: w * keep(w[:1], p)), "all texts share"),
    ("attend", attending(dropped=lambda w, p: F.normalize(F.dropout(w, p), 1, -1)), "by their sum"),
    ("attend", attending(dropped="small"), "removes the smallest"),
    ("classify", functools.partial(classify_by_hand, n=1), "whole rows"),
    ("mask_words", masking(word=lambda r, idx, V: 5 + (V - 5) * r**2), "more often"),
    pytest.param("mask_words", masking(word=mean_of_two), "more often", marks=pytest.mark.slow),
    ("mask_words", lambda *x: [t.float() for t in RIGHT["mask_words"](*x)], "as torch.float32"),
    ("mask_words", lambda idx, V, *x: RIGHT["mask_words"](idx, 30, *x), "has 30 words"),
    ("join_heads", lambda y: y.transpose(1, 2).view(y.size(0), y.size(2), -1), "reshape(...)"),
    ("join_heads", lambda y: (y.transpose(1, 2).flatten(2),), "returns a tuple, expected one"),
    ("slopes", lambda n_head: [0.5] * n_head, "returns a list, expected one torch.Tensor"),
    (
        "sinusoids",
        lambda T, C: RIGHT["sinusoids"](64, C)[:T],
        "has shape (64, 6), expected (70, 6)",
    ),
    ("sinusoids", lambda T, C: RIGHT["sinusoids"](32, C)[:T], "at most 32 positions"),
    ("causal_bias", lambda n, T: RIGHT["causal_bias"](n, 32)[:, :T, :T], "at most 32 positions"),
    ("next_words", lambda ids, T: RIGHT["next_words"](ids, 4), "blocks have 4 tokens"),
    ("loss", lambda x, y: F.cross_entropy(x.view(-1, 9), y.view(-1)), "loss: "),
    ("loss", lambda x, y: F.nll_loss((x.softmax(-1) + 1e-8).log().mT, y), "use log_softmax"),
    ("loss", lambda x, y: F.nll_loss((x.exp() / x.exp().sum(-1, True)).log().mT, y), "is NaN"),
    ("attend", attend_masking_first, "1e-9"),
    ("attend", attend_hiding(-5), "numbers differ"),
    ("attend", attend_hiding(-25), "real scores can be lower"),
    ("embed", lambda idx, table, m: RIGHT["embed"](idx, table, len(table) - 1), "the last id"),
    ("embed", lambda idx, table, m: embed_by_division(idx, table, m, 1), "short vectors"),
]


@pytest.mark.parametrize("name, function, said", WRONG)
def test_wrong_answers_of_other_kinds(name, function, said):
    assert said in verdict_on(function, name).message


def caching(name, *kept):
    """Return a maker of the right function with a cache; only the arguments `kept` are its key."""

    def make():
        cache = {}

        def function(*arguments):
            key = tuple(arguments[i] for i in kept)
            return cache.setdefault(key, RIGHT[name](*arguments))

        return function

    return make


def counting():
    calls = []

    def slopes(n_head):
        calls.append(n_head)
        return RIGHT["slopes"](n_head) / len(calls)

    return slopes


STATE = [
    ("slopes", counting),
    ("causal_bias", caching("causal_bias", 0)),
    ("causal_bias", caching("causal_bias", 1)),
    ("encoder_bias", caching("encoder_bias", 0, 1)),
    ("encoder_bias", caching("encoder_bias", 1, 2)),
    ("encoder_bias", caching("encoder_bias", 0, 2)),
    ("sinusoids", caching("sinusoids", 0)),
    ("sinusoids", caching("sinusoids", 1)),
]


@pytest.mark.parametrize("name, make", STATE)
def test_a_function_that_keeps_something_between_calls(name, make):
    said = verdict_on_new(make, name).message
    assert said.startswith(f"{name} gives another result after other calls.")


def test_a_cache_with_all_arguments_is_right():
    assert verdict_on_new(caching("encoder_bias", 0, 1, 2), "encoder_bias").status == "done"


@pytest.mark.parametrize("kept, said", [(0, "whatever gen is"), (1, "or keeps something")])
def test_a_first_random_choice_that_is_kept(kept, said):
    def make():
        cache = {}

        def mask_words(idx, vocab_size, rate, gen):
            numbers = {}
            for i in range(2):
                numbers[i] = cache.get(idx.shape) if i == kept else None
                if numbers[i] is None:
                    numbers[i] = torch.rand(idx.shape, generator=gen)
            cache[idx.shape] = numbers[kept]
            chosen = (numbers[0] < rate) & (idx >= 5)
            words = torch.randint(5, vocab_size, idx.shape, generator=gen)
            inputs = torch.where(chosen & (numbers[1] < 0.8), 2, idx)
            inputs = torch.where(chosen & (numbers[1] > 0.9), words, inputs)
            return inputs, idx.masked_fill(~chosen, -100)

        return mask_words

    verdict = verdict_on_new(make, "mask_words")
    assert verdict.status == "error" and said in verdict.message


@pytest.mark.parametrize("seed, said", [(None, "without gen"), (3, "the same words whatever gen")])
def test_every_random_number_comes_from_the_generator(seed, said):
    def mask_words(idx, vocab_size, rate, gen):
        if seed:
            torch.manual_seed(seed)
        chosen = (torch.rand(idx.shape) < rate) & (idx >= 5)
        return idx.masked_fill(chosen, 2), idx.masked_fill(~chosen, -100)

    assert said in verdict_on(mask_words, "mask_words").message


def test_random_results_of_another_shape():
    said = verdict_on(lambda idx, *_: (idx[0], idx), "mask_words").message
    assert said == "mask_words returns inputs of shape (160,), expected (64, 160)"
