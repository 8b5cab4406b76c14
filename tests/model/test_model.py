"""Heads and losses by hand; pooling, sizes and initial weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import WORDS, tiny_model
from torch import nn

from data.labelled import Rows
from data.tokenizer import train_tokenizer
from lab.machine import compile_blocks
from lab.parameters import count_parameters
from model import Config, Decoder, Encoder, LanguageModel, LMHead
from nets.classifier import Classifier, ClassifierHead, pool_tokens
from nets.ensemble import Ensemble
from nets.features import compute_logits

# ---------------------------------------------------------------------------- embeddings


def test_clap_with_plain_embeddings_normalises_nothing():
    model = tiny_model(head="plain-clap", norm_first=False, pos="nope")
    idx = torch.tensor([[9, 4, 11]])
    _, (x, *_) = model.body(idx, need_states=True)
    words = model.body.embedding.weight
    assert torch.equal(x, words[idx])
    h = model.body(idx)
    torch.testing.assert_close(model(idx), model.head.beta * h @ words.T)


@pytest.mark.parametrize("unscaled, factor", [(False, 4.0), (True, 1.0)])
def test_sinusoids_meet_scaled_words_unless_told_otherwise(unscaled, factor):
    model = tiny_model(pos="sinusoidal", unscaled=unscaled, n_embd=16)
    idx = torch.tensor([[9, 4, 11]])
    expected = factor * model.body.embedding.weight[idx]
    torch.testing.assert_close(model.body.token_vectors(idx), expected)


def test_unit_embeddings_have_length_1_and_the_zero_mask_0():
    model = tiny_model(unit_embd=True, zero_mask=True, mask_id=2, pos="nope")
    lengths = model.body.token_vectors(torch.tensor([[9, 2, 11]])).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.tensor([[1.0, 0.0, 1.0]]))


# ---------------------------------------------------------------------------- heads


@pytest.mark.parametrize("head", ["roberta", "clap"])
def test_an_omitted_mask_is_no_output_word(head):
    models = [LanguageModel(Encoder(Config(vocab_size=9, head=head, omit_mask=o))) for o in (0, 1)]
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    idx, others = torch.tensor([[5, 2, 7]]), [v for v in range(9) if v != 2]
    whole, omitted = (model(idx).softmax(-1) for model in models)
    assert omitted[..., 2].max() == 0
    expected = whole[..., others] / whole[..., others].sum(-1, keepdim=True)
    torch.testing.assert_close(omitted[..., others], expected)
    models[1].loss(idx, idx[:, [0, 0, 2]]).backward()
    names = [name for name, _ in models[1].named_parameters() if name.startswith("head")]
    assert ("head.bias" in names, "head.bias" in models[1].state_dict()) == (False, False)


def test_linear_head_multiplies_by_the_embeddings():
    config = Config(vocab_size=7, n_embd=4)
    embedding, h = nn.Embedding(7, 4), torch.randn(2, 3, 4)
    head = LMHead(config, embedding)
    head.bias.data = torch.randn(7)
    torch.testing.assert_close(head(h), h @ embedding.weight.T + head.bias)
    assert head.words is embedding
    assert LMHead(Config(vocab_size=7, n_embd=4, tie=False), embedding).words is not embedding


def test_clap_head_is_beta_times_h_times_unit_word_vectors():
    embedding, h = nn.Embedding(7, 4), 3 * torch.randn(5, 4)
    head = LMHead(Config(vocab_size=7, n_embd=4, head="clap"), embedding)
    # no layer, no bias
    assert {name for name, _ in head.named_parameters()} == {"beta", "words.weight"}
    assert head.beta.item() == 1
    head.beta.data.fill_(2.5)
    unit = embedding.weight / embedding.weight.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head(h), 2.5 * h @ unit.T)


def test_classifier_head_has_one_hidden_layer_with_relu():
    head, x = ClassifierHead(64, 3), torch.randn(2, 64)
    first, last = (layer for layer in head.layers if isinstance(layer, nn.Linear))
    assert sum(p.numel() for p in head.parameters()) == 64 * 100 + 100 + 100 * 3 + 3
    hidden = (x @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(head(x), hidden @ last.weight.T + last.bias)
    linear = ClassifierHead(64, 3, n_hidden=0)
    assert sum(p.numel() for p in linear.parameters()) == 64 * 3 + 3


def test_a_linear_classifier_begins_without_an_opinion():
    model, idx = Classifier(tiny_model().body, 3, n_hidden=0), torch.randint(5, 30, (2, 8))
    assert torch.equal(model(idx), torch.zeros(2, 3))


# ---------------------------------------------------------------------------- losses


@pytest.mark.parametrize("kind", ["linear", "roberta", "clap"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("body", [Encoder, Decoder])
def test_loss_sums_over_all_targets_that_are_not_ignored(body, norm_first, kind):
    model, idx = tiny_model(body, head=kind, norm_first=norm_first), torch.randint(5, 30, (3, 8))
    mask = None if body is Decoder else torch.arange(8) < torch.tensor([[8], [5], [2]])
    targets = torch.where(torch.rand(3, 8) < 0.5, torch.randint(30, (3, 8)), -100)
    logits = model(idx, mask).flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), reduction="sum")  # ignores -100
    torch.testing.assert_close(model.loss(idx, targets, mask), expected)
    other = targets.masked_fill(targets < 0, -1)  # as other codebases mark them
    torch.testing.assert_close(model.loss(idx, other, mask), expected)


def test_too_few_targets_are_refused():
    model, idx = tiny_model(Decoder), torch.randint(5, 30, (3, 8))
    with pytest.raises(RuntimeError, match=r"\[3, 8\].*size 21"):
        model.loss(idx, idx[:, 1:])


# ---------------------------------------------------------------------------- classifier


POOLED = {  # the vectors (T, C) of a sentence without padding
    "mean": lambda h: h.mean(0),
    "max": lambda h: h.amax(0),
    "min": lambda h: h.amin(0),
    "first": lambda h: h[0],
    "last": lambda h: h[-1],
}


@pytest.mark.parametrize("how", Classifier.POOLS)
def test_pooling_leaves_padding_out(how):
    h, lengths = torch.randn(3, 6, 4), [6, 1, 4]
    h[1, 1:], h[2, 4:] = 1e6, -1e6
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    expected = torch.stack([POOLED[how](h[b, :n]) for b, n in enumerate(lengths)])
    torch.testing.assert_close(pool_tokens(h, mask, how), expected)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("pos", ["learned", "alibi"])
def test_a_class_does_not_depend_on_padding(pos, layers):
    pool = "mean+max+min+first+last"
    model = Classifier(tiny_model(pos=pos).body, 3, pool=pool, layers=layers).eval()
    idx, mask = torch.randint(5, 30, (2, 5)), (torch.arange(11) < 5).expand(2, -1)
    padded = torch.cat([idx, torch.zeros(2, 6, dtype=torch.long)], 1)
    torch.testing.assert_close(model(padded, mask), model(idx), atol=1e-5, rtol=1e-5)


def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="'middle'"):  # not taken for "last"
        pool_tokens(torch.ones(1, 2, 4), torch.ones(1, 2, dtype=torch.bool), "middle")


def test_features_of_all_layers_pool_embedding_to_output():
    model = Classifier(tiny_model().body, 3, pool="mean+first", layers="all").eval()
    idx = torch.randint(5, 30, (2, 5))
    h, states = model.body(idx, need_states=True)
    states = (*states[:-1], h)
    parts = [part for state in states for part in (state.mean(1), state[:, 0])]
    torch.testing.assert_close(model.features(idx), torch.cat(parts, dim=1))
    for number in (0, 1, 2):
        alone = Classifier(model.body, 3, layers=str(number)).eval()  # draws new weights
        h, states = model.body(idx, need_states=True)
        state = (*states[:-1], h)[number]
        torch.testing.assert_close(alone.features(idx), state.mean(1))


def test_projected_features_are_the_principal_components():
    features = 5 + torch.randn(40, 4) @ torch.randn(4, 16)  # 4 directions
    features[:, 3] = 2.0  # a constant column must not become NaN
    standard = (features - features.mean(0)) / features.std(0).clamp(min=1e-5)
    model = Classifier(tiny_model().body, 3, n_component=4)
    model.fit_projection(features)
    out = model.project(features)
    lengths = torch.linalg.svdvals(standard)[:4]
    torch.testing.assert_close(out.norm(dim=0), lengths, atol=1e-3, rtol=1e-3)
    # nothing but the orientation has changed
    torch.testing.assert_close(out @ out.T, standard @ standard.T, atol=1e-3, rtol=1e-3)


def test_rows_are_answered_in_their_order():
    """Batches have rows of similar length."""
    model, tokenizer = Classifier(tiny_model().body, 3).eval(), train_tokenizer("word", [WORDS])
    texts = [" ".join(WORDS.split()[: 1 + 7 * n % 10]) for n in range(300)]
    rows = Rows([(0, text) for text in texts], tokenizer, 12)
    expected = torch.cat([model(*rows.batch([n])) for n in range(300)])
    torch.testing.assert_close(compute_logits(model, rows, torch.device("cpu")), expected)


# ---------------------------------------------------------------------------- ensemble


def three_decoders():
    config = Config(vocab_size=30, block_size=12, n_layer=1, n_embd=16, pos="alibi", init_std=0.5)
    return [LanguageModel(Decoder(config)) for _ in range(3)]


def test_an_ensemble_averages_probabilities():
    members = three_decoders()
    ensemble, idx = Ensemble(members).eval(), torch.randint(5, 30, (4, 7))
    mean = torch.stack([member(idx).softmax(-1) for member in members]).mean(0)
    torch.testing.assert_close(ensemble(idx).exp(), mean)
    targets = torch.randint(5, 30, (4, 7))
    targets[1, 2:] = -100
    wanted = targets != -100
    nats = -mean[wanted].gather(1, targets[wanted][:, None]).log().sum()
    torch.testing.assert_close(ensemble.loss(idx, targets), nats)


def test_each_member_of_an_ensemble_is_trained_on_its_own_rows():
    members = three_decoders()
    ensemble = Ensemble(members).train()
    idx, targets = torch.randint(5, 30, (6, 7)), torch.randint(5, 30, (6, 7))
    ensemble.loss(idx, targets, smoothing=0.1).backward()
    grads = [member.body.embedding.weight.grad.clone() for member in members]
    for i, member in enumerate(members):
        member.zero_grad()
        rows = slice(2 * i, 2 * i + 2)
        logits, how = member(idx[rows]).flatten(0, 1), dict(reduction="sum", label_smoothing=0.1)
        F.cross_entropy(logits, targets[rows].flatten(), **how).backward()
        torch.testing.assert_close(member.body.embedding.weight.grad, grads[i])


# ---------------------------------------------------------------------------- size


@pytest.mark.parametrize("pos", ["learned", "alibi"])
@pytest.mark.parametrize(
    "head, in_head", [("linear", 30), ("roberta", 16 * 16 + 3 * 16 + 30), ("clap", 1), ("own", 510)]
)
def test_parameters_counted_by_part_are_those_of_the_formula(pos, head, in_head):
    model = tiny_model(pos=pos, **{"tie": False} if head == "own" else {"head": head})
    assert count_parameters(model) == {
        "embedding": 30 * 16,
        "positions": 12 * 16 if pos == "learned" else 0,
        "attention": 2 * 4 * (16 * 16 + 16),
        "feed-forward": 2 * (16 * 20 + 20 + 20 * 16 + 16),
        "norm": 2 * 2 * 32 + 32,
        "head": in_head,
        "total": sum(p.numel() for p in model.parameters()),
    }


# ---------------------------------------------------------------------------- initial weights


@pytest.mark.parametrize("pos", ["learned", "sinusoidal", "alibi"])
def test_initial_weights_have_the_right_deviation(pos):
    sizes = dict(vocab_size=1000, block_size=200, n_layer=8, n_embd=64, init_std=0.05)
    model = LanguageModel(Encoder(Config(pos=pos, **sizes)))
    assert model.body.embedding.weight.std().item() == pytest.approx(0.05, rel=0.05)
    for name, p in model.named_parameters():
        if name.endswith(("attention.out.weight", "down.weight")):  # 16 of these add to the stream
            assert p.std().item() == pytest.approx(0.05 / 4, rel=0.08), name
        elif name.endswith(("qkv.weight", "up.weight")):
            assert p.std().item() == pytest.approx(0.05, rel=0.05), name
        elif "norm" in name and name.endswith("weight"):
            assert (p == 1).all(), name
        elif name.endswith("bias"):
            assert (p == 0).all(), name


# sinusoidal starts by repeating its input: large tied embeddings
@pytest.mark.parametrize("pos", ["learned", "alibi", "rope", "nope"])
def test_an_untrained_model_guesses_about_uniformly(pos):
    model = LanguageModel(Decoder(Config(vocab_size=200, pos=pos)))
    idx, targets = torch.randint(200, (8, 32)), torch.randint(200, (8, 32))
    loss = model.loss(idx, targets).item() / targets.numel()
    assert loss == pytest.approx(math.log(200), rel=0.1)


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_compiled_blocks_keep_results_and_weight_names():
    model, idx = tiny_model(Decoder, pos="alibi"), torch.randint(5, 30, (3, 8))
    names, expected = list(model.state_dict()), model.loss(idx, idx)
    compile_blocks(model, backend="aot_eager")
    torch.testing.assert_close(model.loss(idx, idx), expected)
    assert list(model.state_dict()) == names
