"""Heads and losses by hand, ensembles, initial weights, and what a student may add."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny_model
from torch import nn

import model as model_file
from lab.machine import compile_blocks
from model import Config, Decoder, Encoder, LanguageModel, LMHead
from nets.ensemble import Ensemble

# ---------------------------------------------------------------------------- heads


def test_clap_words_have_length_1_and_the_zero_mask_0():
    model = tiny_model(head="clap", zero_mask=True, mask_id=2, pos="nope")
    lengths = model.body.token_vectors(torch.tensor([[9, 2, 11]])).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.tensor([[1.0, 0.0, 1.0]]))


@pytest.mark.parametrize("head", ["roberta", "clap"])
def test_an_omitted_mask_is_no_output_word(head):
    models = [LanguageModel(Encoder(Config(vocab_size=9, head=head, omit_mask=o))) for o in (0, 1)]
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    idx, others = torch.tensor([[5, 2, 7]]), [v for v in range(9) if v != 2]
    whole, omitted = (model(idx).softmax(-1) for model in models)
    assert omitted[..., 2].max() == 0
    expected = whole[..., others] / whole[..., others].sum(-1, keepdim=True)
    torch.testing.assert_close(omitted[..., others], expected)


def test_linear_head_multiplies_by_the_embeddings():
    embedding, h = nn.Embedding(7, 4), torch.randn(2, 3, 4)
    head = LMHead(Config(vocab_size=7, n_embd=4), embedding)
    head.bias.data = torch.randn(7)
    torch.testing.assert_close(head(h), h @ embedding.weight.T + head.bias)
    assert head.words is embedding
    assert LMHead(Config(vocab_size=7, n_embd=4, tie=False), embedding).words is not embedding


def test_roberta_head_is_dense_gelu_norm_and_the_embeddings():
    embedding, h = nn.Embedding(7, 4), torch.randn(5, 4)
    head = LMHead(Config(vocab_size=7, n_embd=4, head="roberta"), embedding)
    dense, _, norm = head.transform
    inner = h @ dense.weight.T + dense.bias
    inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
    inner = (inner - inner.mean(-1, keepdim=True)) / (
        inner.var(-1, False, keepdim=True) + 1e-5
    ) ** 0.5
    torch.testing.assert_close(head(h), inner @ embedding.weight.T + head.bias)
    assert (norm.weight == 1).all()


def test_clap_head_is_beta_times_h_times_unit_word_vectors():
    embedding, h = nn.Embedding(7, 4), 3 * torch.randn(5, 4)
    head = LMHead(Config(vocab_size=7, n_embd=4, head="clap"), embedding)
    assert {name for name, _ in head.named_parameters()} == {"beta", "words.weight"}
    assert head.beta.item() == 1
    head.beta.data.fill_(2.5)
    unit = embedding.weight / embedding.weight.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head(h), 2.5 * h @ unit.T)


# ---------------------------------------------------------------------------- the whole model


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_is_what_the_papers_say(norm_first):
    """Pre-norm: x + f(norm(x)); post-norm: norm(x + f(x)) (Vaswani et al. 2017, section 3.1)."""
    body = tiny_model(Encoder, pos="nope", norm_first=norm_first, n_layer=1).body
    _, (x, got) = body(torch.randint(5, 30, (2, 7)), need_states=True)
    block = body.blocks[0]
    n1, n2 = block.norm1, block.norm2
    if norm_first:
        x = x + block.attention(n1(x))[0]
        expected = x + block.feed_forward(n2(x))
    else:
        x = n1(x + block.attention(x)[0])
        expected = n2(x + block.feed_forward(x))
    torch.testing.assert_close(got, expected)


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


def test_too_few_targets_are_refused():
    model, idx = tiny_model(Decoder), torch.randint(5, 30, (3, 8))
    with pytest.raises(RuntimeError, match=r"\[3, 8\].*size 21"):
        model.loss(idx, idx[:, 1:])


def test_initial_weights_have_the_right_deviation():
    sizes = dict(vocab_size=1000, block_size=200, n_layer=8, n_embd=64, init_std=0.05)
    model = LanguageModel(Encoder(Config(**sizes)))
    for name, p in model.named_parameters():
        if name.endswith(("attention.out.weight", "down.weight")):  # 16 of these add to the stream
            assert p.std().item() == pytest.approx(0.05 / 4, rel=0.08), name
        elif name.endswith(("qkv.weight", "up.weight", "embedding.weight")):
            assert p.std().item() == pytest.approx(0.05, rel=0.05), name
        elif name.endswith("bias"):
            assert (p == 0).all(), name


@pytest.mark.parametrize("pos", ["learned", "alibi", "rope", "nope"])
def test_an_untrained_model_guesses_about_uniformly(pos):
    model = LanguageModel(Decoder(Config(vocab_size=200, pos=pos)))
    idx, targets = torch.randint(200, (8, 32)), torch.randint(200, (8, 32))
    loss = model.loss(idx, targets).item() / targets.numel()
    assert loss == pytest.approx(math.log(200), rel=0.1)


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.slow
def test_compiled_blocks_keep_results_and_weight_names():
    model, idx = tiny_model(Decoder, pos="alibi"), torch.randint(5, 30, (3, 8))
    names, expected = list(model.state_dict()), model.loss(idx, idx)
    compile_blocks(model, backend="aot_eager")
    torch.testing.assert_close(model.loss(idx, idx), expected)
    assert list(model.state_dict()) == names


# ---------------------------------------------------------------------------- ensembles


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


# ---------------------------------------------------------------------------- what a student adds


def test_a_gate_added_to_block_trains_and_is_saved_without_any_other_change(monkeypatch):
    class GatedBlock(model_file.Block):
        def __init__(self, *args):
            super().__init__(*args)
            self.gate = nn.Parameter(torch.ones(()))

        def forward(self, x, *args, **more):
            y, weights = super().forward(x, *args, **more)
            return self.gate * y, weights

    monkeypatch.setattr(model_file, "Block", GatedBlock)
    model, idx = tiny_model(Decoder), torch.randint(5, 30, (3, 8))
    model.loss(idx, idx).backward()
    gates = [p for name, p in model.named_parameters() if name.endswith("gate")]
    assert len(gates) == 2 and all(p.grad.abs() > 0 for p in gates)
    assert "body.blocks.1.gate" in model.state_dict()
