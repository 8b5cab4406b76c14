"""Classifier: pooling without padding, the layers that are pooled, and the PCA projection."""

import pytest
import torch

from data.labelled import Rows
from data.tokenizer import train_tokenizer
from nets.build import Options, build_body
from nets.classifier import Classifier, compute_logits, pool_tokens, read_states

POOLED = {  # the vectors (T, C) of a sentence without padding
    "mean": lambda h: h.mean(0),
    "max": lambda h: h.amax(0),
    "min": lambda h: h.amin(0),
    "first": lambda h: h[0],
    "last": lambda h: h[-1],
}


def body():
    torch.manual_seed(0)
    size = dict(vocab_size=30, block_size=12, n_layer=2, n_embd=16, n_ffn=20, init_std=0.3)
    return build_body(Options(**size), causal=False)


def test_the_head_has_one_hidden_layer_with_relu():
    head, x = Classifier(body(), 3).head, torch.randn(2, 16)
    first, last = head[0], head[-1]
    assert sum(p.numel() for p in head.parameters()) == 16 * 100 + 100 + 100 * 3 + 3
    hidden = (x @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(head(x), hidden @ last.weight.T + last.bias)


def test_a_linear_classifier_begins_without_an_opinion():
    model, idx = Classifier(body(), 3, n_hidden=0), torch.randint(5, 30, (2, 8))
    assert sum(p.numel() for p in model.head.parameters()) == 16 * 3 + 3
    assert torch.equal(model(idx), torch.zeros(2, 3))


@pytest.mark.parametrize("how", POOLED)
def test_pooling_leaves_padding_out(how):
    h, lengths = torch.randn(3, 6, 4), [6, 1, 4]
    h[1, 1:], h[2, 4:] = 1e6, -1e6
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    expected = torch.stack([POOLED[how](h[b, :n]) for b, n in enumerate(lengths)])
    torch.testing.assert_close(pool_tokens(h, mask, how), expected)


def test_features_of_all_layers_pool_embedding_to_output():
    model = Classifier(body(), 3, pool="mean+first", layers="all").eval()
    idx = torch.randint(5, 30, (2, 5))
    states = read_states(model.body, idx)
    states[-1] = model.body(idx)  # after the final norm
    parts = []
    for h in states:
        parts += [h.mean(1), h[:, 0]]
    torch.testing.assert_close(model.features(idx), torch.cat(parts, dim=1))


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_features_of_one_layer_are_its_states(layer):
    model = Classifier(body(), 3, layers=str(layer)).eval()
    idx = torch.randint(5, 30, (2, 5))
    h = read_states(model.body, idx)[layer]
    if layer == 2:
        h = model.body(idx)
    torch.testing.assert_close(model.features(idx), h.mean(1))


def test_projected_features_are_the_principal_components():
    features = 5 + torch.randn(40, 4) @ torch.randn(4, 16)  # 4 directions
    features[:, 3] = 2.0  # a constant column must not become NaN
    standard = (features - features.mean(0)) / features.std(0).clamp(min=1e-5)
    model = Classifier(body(), 3, n_component=4)
    model.fit_projection(features)
    out = model.project(features)
    lengths = torch.linalg.svdvals(standard)[:4]
    torch.testing.assert_close(out.norm(dim=0), lengths, atol=1e-3, rtol=1e-3)
    # nothing but the orientation has changed
    torch.testing.assert_close(out @ out.T, standard @ standard.T, atol=1e-3, rtol=1e-3)


def test_rows_are_answered_in_their_order():
    """Batches have rows of similar length."""
    words = "this is a small sentence and we will work with the people".split()
    model, tokenizer = Classifier(body(), 3).eval(), train_tokenizer("word", words)
    texts = [" ".join(words[: 1 + 7 * n % 10]) for n in range(300)]
    rows = Rows([(0, text) for text in texts], tokenizer, 12)
    expected = torch.cat([model(*rows.batch([n])) for n in range(300)])
    torch.testing.assert_close(compute_logits(model, rows, torch.device("cpu")), expected)
