"""Heads and losses by hand, ensembles, initial weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny_model
from torch import nn

from lab.machine import compile_blocks
from model import HEADS, Config, Decoder, Encoder, LanguageModel
from nets.build import Options, build_body, build_model
from nets.classifier import read_states

# ---------------------------------------------------------------------------- sizes

BERT = dict(vocab_size=30522, block_size=512, norm_first=False, n_segment=2)
PUBLISHED = {  # parameters of the bodies, without the pooler and the heads
    "BERT base": (BERT | dict(n_layer=12, n_head=12, n_embd=768), False, 108_891_648),
    "BERT large": (BERT | dict(n_layer=24, n_head=16, n_embd=1024), False, 334_092_288),
    "GPT-2 small": (dict(vocab_size=50257, block_size=1024), True, 124_439_808),
    "GPT-2 XL": (
        dict(vocab_size=50257, block_size=1024, n_layer=48, n_head=25, n_embd=1600),
        True,
        1_557_611_200,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_of_published_numbers_has_the_published_number_of_parameters(name):
    sizes, causal, expected = PUBLISHED[name]
    options = Options(**dict(n_layer=12, n_head=12, n_embd=768) | sizes)
    with torch.device("meta"):  # without memory for weights
        body = build_body(options, causal)
    assert sum(p.numel() for p in body.parameters()) == expected


# ---------------------------------------------------------------------------- heads


def test_clap_words_have_length_1_and_the_zero_mask_0():
    model = tiny_model(head="clap", zero_mask=True, mask_id=2, pos="nope")
    lengths = model.body.token_vectors(torch.tensor([[9, 2, 11]])).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.tensor([[1.0, 0.0, 1.0]]))


@pytest.mark.parametrize("head", ["roberta", "clap", "plain-clap"])
def test_an_omitted_mask_is_no_output_word(head):
    plain = build_model("mlm", Options(vocab_size=9, head=head))
    model = build_model("mlm", Options(vocab_size=9, head=head, omit_mask=True))
    model.load_state_dict(plain.state_dict(), strict=False)
    assert "head.bias" not in model.state_dict()
    idx = torch.tensor([[5, 2, 7]])
    whole = plain(idx).softmax(-1)
    omitted = model(idx).softmax(-1)
    assert omitted[..., 2].max() == 0
    others = [0, 1, 3, 4, 5, 6, 7, 8]
    expected = whole[..., others] / whole[..., others].sum(-1, keepdim=True)
    torch.testing.assert_close(omitted[..., others], expected)


def test_an_omitted_mask_is_predicted_by_no_linear_head():
    model = tiny_model(omit_mask=True, mask_id=2)
    shares = model(torch.randint(5, 30, (2, 8))).softmax(-1)
    assert shares[..., 2].max() == 0
    assert not [name for name, _ in model.named_parameters() if name == "head.bias"]


def make_head(name, embedding, **options):
    return HEADS[name](Config(vocab_size=7, n_embd=4, head=name, **options), embedding)


def test_linear_head_multiplies_by_the_embeddings():
    embedding, h = nn.Embedding(7, 4), torch.randn(2, 3, 4)
    head = make_head("linear", embedding)
    head.bias.data = torch.randn(7)
    torch.testing.assert_close(head(h), h @ embedding.weight.T + head.bias)
    assert head.words is embedding
    assert make_head("linear", embedding, tie=False).words is not embedding


def test_roberta_head_is_dense_gelu_norm_and_the_embeddings():
    embedding, h = nn.Embedding(7, 4), torch.randn(5, 4)
    head = make_head("roberta", embedding)
    dense, _, norm = head.transform
    x = h @ dense.weight.T + dense.bias
    x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    variance = x.var(-1, unbiased=False, keepdim=True)
    x = (x - x.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(head(h), x @ embedding.weight.T + head.bias)
    assert (norm.weight == 1).all()


def test_clap_head_is_beta_times_h_times_unit_word_vectors():
    embedding, h = nn.Embedding(7, 4), 3 * torch.randn(5, 4)
    head = make_head("clap", embedding)
    assert {name for name, _ in head.named_parameters()} == {"beta", "words.weight"}
    assert head.beta.item() == 1
    head.beta.data.fill_(2.5)
    unit = embedding.weight / embedding.weight.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head(h), 2.5 * h @ unit.T)


@pytest.mark.parametrize("norm_first", [True, False])
def test_plain_clap_normalises_neither_input_nor_output_vectors(norm_first):
    model = tiny_model(head="plain-clap", norm_first=norm_first, pos="nope")
    idx = torch.tensor([[9, 2, 11]])
    words = model.body.embedding.weight
    x, _ = model.body.start(idx)
    assert torch.equal(x, words[idx])
    model.head.beta.data.fill_(2.5)
    torch.testing.assert_close(model(idx), 2.5 * model.body(idx) @ words.T)
    assert {name for name, _ in model.head.named_parameters()} == {"beta", "words.weight"}


# ---------------------------------------------------------------------------- the whole model


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_is_what_the_papers_say(norm_first):
    """Pre-norm: x + f(norm(x)); post-norm: norm(x + f(x)) (Vaswani et al. 2017, section 3.1)."""
    body = tiny_model(Encoder, pos="nope", norm_first=norm_first, n_layer=1).body
    idx = torch.randint(5, 30, (2, 7))
    _, where = body.start(idx)
    x, after_block = read_states(body, idx)
    block = body.blocks[0]
    if norm_first:
        x = x + block.attention(block.norm1(x), where)
        expected = x + block.feed_forward(block.norm2(x))
    else:
        x = block.norm1(x + block.attention(x, where))
        expected = block.norm2(x + block.feed_forward(x))
    torch.testing.assert_close(after_block, expected)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("body", [Encoder, Decoder])
def test_states_end_with_the_output_before_the_final_norm(body, norm_first):
    body = tiny_model(body, norm_first=norm_first, n_layer=3).body
    idx = torch.randint(5, 30, (2, 7))
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    states = read_states(body, idx, mask)
    assert len(states) == 4
    torch.testing.assert_close(body.norm(states[-1]), body(idx, mask))


@pytest.mark.parametrize("norm_first", [True, False])
def test_picked_tokens_have_the_states_of_all(norm_first):
    body = tiny_model(Encoder, norm_first=norm_first).body
    idx = torch.randint(5, 30, (2, 7))
    picked = torch.tensor([0, 3, 9])
    torch.testing.assert_close(body(idx, picked=picked), body(idx).flatten(0, 1)[picked])


@pytest.mark.parametrize("kind", ["linear", "roberta", "clap", "plain-clap"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("body", [Encoder, Decoder])
def test_loss_sums_over_all_targets_that_are_not_ignored(body, norm_first, kind):
    model = tiny_model(body, head=kind, norm_first=norm_first)
    idx = torch.randint(5, 30, (3, 8))
    mask = None
    if body is Encoder:
        mask = torch.arange(8) < torch.tensor([[8], [5], [2]])
    targets = torch.where(torch.rand(3, 8) < 0.5, torch.randint(30, (3, 8)), -100)
    logits = model(idx, mask).flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), reduction="sum")  # ignores -100
    torch.testing.assert_close(model.loss(idx, targets, mask), expected)


def test_too_few_targets_are_refused():
    model = tiny_model(Decoder)
    idx = torch.randint(5, 30, (3, 8))
    with pytest.raises(ValueError, match=r"targets \(3, 7\) for tokens \(3, 8\)"):
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
    model = tiny_model(Decoder, pos="alibi")
    idx = torch.randint(5, 30, (3, 8))
    names = list(model.state_dict())
    expected = model.loss(idx, idx)
    compile_blocks(model, backend="aot_eager")
    torch.testing.assert_close(model.loss(idx, idx), expected)
    assert list(model.state_dict()) == names


# ---------------------------------------------------------------------------- ensembles


def ensemble_of_three():
    size = dict(vocab_size=30, block_size=12, n_layer=1, n_embd=16)
    return build_model("lm", Options(pos="alibi", init_std=0.5, **size), members=3)


def test_an_ensemble_averages_probabilities():
    ensemble = ensemble_of_three().eval()
    idx = torch.randint(5, 30, (4, 7))
    mean = torch.stack([member(idx).softmax(-1) for member in ensemble.members]).mean(0)
    torch.testing.assert_close(ensemble(idx).exp(), mean)
    targets = torch.randint(5, 30, (4, 7))
    targets[1, 2:] = -100
    is_target = targets != -100
    p = mean[is_target].gather(1, targets[is_target][:, None])  # (N, 1)
    torch.testing.assert_close(ensemble.loss(idx, targets), -p.log().sum())


def test_each_member_of_an_ensemble_is_trained_on_its_own_rows():
    ensemble = ensemble_of_three().train()
    idx, targets = torch.randint(5, 30, (2, 6, 7))
    ensemble.loss(idx, targets, smoothing=0.1).backward()
    parts = zip(ensemble.members, idx.chunk(3), targets.chunk(3))
    for member, member_idx, member_targets in parts:
        grad = member.body.embedding.weight.grad.clone()
        member.zero_grad()
        logits = member(member_idx).flatten(0, 1)
        options = dict(reduction="sum", label_smoothing=0.1)
        F.cross_entropy(logits, member_targets.flatten(), **options).backward()
        torch.testing.assert_close(member.body.embedding.weight.grad, grad)
