"""What makes a model: by default the code of model.py alone, so that an edit has its effect."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny_model

import model as model_file
from lab.inside.attention import measure
from model import POSITIONS, Attention, Block, Decoder, Encoder
from nets.build import Options, build_model, check_options, name_replacements

KINDS = dict(lm={}, mlm={}, classifier=dict(n_class=2))
CORE_POSITIONS = ("learned", "sinusoidal", "alibi", "nope", "rope")


@pytest.mark.parametrize("head", ["linear", "roberta", "clap"])
@pytest.mark.parametrize("pos", CORE_POSITIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_by_default_a_model_runs_the_code_of_model_py_alone(kind, pos, head):
    model = build_model(kind, Options(pos=pos, head=head), **KINDS[kind])
    if kind == "classifier":
        model = model.body  # the rest is nets/classifier.py
    assert name_replacements(model) == []
    for module in model.modules():
        in_torch = type(module).__module__.startswith("torch.nn.")
        assert in_torch or type(module) is vars(model_file)[type(module).__name__]
        if in_torch:
            continue
        for name, value in vars(type(module)).items():
            if inspect.isfunction(value):
                assert value.__code__.co_filename == model_file.__file__, name
        methods = {name for name, value in vars(module).items() if inspect.isroutine(value)}
        assert not methods  # none is hidden by one of the object's own


def test_the_options_of_model_py_choose_no_other_class():
    other = dict(n_layer=1, n_head=1, n_embd=8, n_ffn=3, dropout=0.1, attn_dropout=0.1)
    other |= dict(norm_first=False, norm_eps=0.1, activation="relu", alibi="symmetric")
    other |= dict(rope_base=9.0, head="roberta", tie=False, init_std=0.1)
    for pos in CORE_POSITIONS:
        assert name_replacements(build_model("lm", Options(pos=pos, **other))) == []


OPTIONS = [
    (dict(window=3), ["Sparse"]),
    (dict(attn_block=4), ["Sparse"]),
    (dict(log_scale=True), ["LogScale"]),
    (dict(nope_every=2), ["NopeBlock", "NopeEvery"]),
    (dict(random_positions=50), ["LongLearned", "RandomPositions"]),
    (dict(zero_mask=True), ["ZeroMask"]),
    (dict(omit_mask=True), ["OmitMask"]),
    (dict(head="plain-clap"), ["PlainHead", "PlainVectors"]),
    (dict(pos="sinusoidal", scale_words=False), ["UnscaledSinusoidal"]),
    (dict(n_segment=2), ["Segments"]),
    (dict(pos="cope"), ["AddContent"]),
    (dict(pos="pope"), ["PadValues"]),
    (dict(block_size=257), ["CausalFastAttention", "ChooseKernel", "FastAttention"]),
    (dict(vocab_size=7001), ["FusedLoss"]),
    (dict(block_size=257, vocab_size=7001, kernels=False), []),
]


@pytest.mark.parametrize("options, names", OPTIONS)
def test_each_option_is_named_that_replaces_a_method(options, names):
    assert name_replacements(build_model("lm", Options(**options))) == names


@pytest.mark.parametrize("kind, parts", [("seq2seq", {}), ("thread", dict(n_ancestors=2))])
def test_reading_a_memory_is_named(kind, parts):
    assert name_replacements(build_model(kind, Options(), **parts)) == [
        "CrossAttention",
        "CrossBlock",
        "ReadsMemory",
    ]


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="kind must be lm, mlm, .*, not gpt"):
        build_model("gpt", Options())


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(pos="rope", n_embd=18, n_head=2), "even"),
        (dict(pos="rope", rope_share=0.01), "rope_share must be"),
        (dict(pos="rope", rope_scale="double"), "rope_scale must be one of none, linear"),
        (dict(pos="alibi", alibi="one-sided", n_embd=15, n_head=3), "even"),
        (dict(alibi="causal"), "alibi must be one of offset, symmetric, one-sided"),
        (dict(n_embd=10, n_head=3), "n_head must divide"),
        (dict(pos="rotary"), "pos must be one of learned, .*, pope"),
        (dict(head="clap", tie=False), "head=clap .* needs tie"),
        (dict(log_scale=True), "log_scale: .* needs a decoder"),
        (dict(pos="fire"), "pos=fire: .* needs a decoder"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        check_options(Options(**wrong), causal=False)


@pytest.mark.parametrize("pos", POSITIONS)
def test_check_accepts_what_a_decoder_can_have(pos):
    check_options(Options(pos=pos, log_scale=True), causal=True)


# ---------------------------------------------------------------------------- edits of model.py


def sigmoid_attend(self, q, k, v, bias):
    """The formula of Attention.attend's docstring, with a sigmoid in place of the softmax."""
    dropout = self.attn_dropout if self.training else 0.0
    scores = q @ k.mT / math.sqrt(q.size(-1)) + bias  # (B, H, T, S)
    weights = scores.sigmoid()
    return F.dropout(weights, dropout) @ v  # (B, H, T, D)


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos", POSITIONS)
def test_another_formula_of_attention_changes_the_loss_and_the_weights(pos, body, monkeypatch):
    model = tiny_model(body, pos=pos, init_std=0.3)
    idx = torch.randint(5, 30, (2, 9))
    before = model.loss(idx, idx)
    monkeypatch.setattr(Attention, "attend", sigmoid_attend)
    assert (model.loss(idx, idx) - before).abs() > 1e-2
    h, records = measure(model.body, {"idx": idx})
    torch.testing.assert_close(model.body(idx), h, atol=1e-5, rtol=1e-5)
    assert len(records[""]) == 2
    for record in records[""]:
        expected = (record.content + record.position).sigmoid()
        torch.testing.assert_close(record.weights, expected, atol=1e-5, rtol=1e-5)
        if body.causal:
            assert record.weights.triu(1).abs().max() == 0


EDITS = {  # of a method: what it gives, changed
    "Attention.heads": lambda result: tuple(2 * t for t in result),
    "Attention.mix": lambda result: 2 * result,
    "Attention.forward": lambda result: 2 * result,
    "FeedForward.forward": lambda result: 2 * result,
    "Block.residual": lambda result: 2 * result,
    "Block.forward": lambda result: 2 * result,
    "Transformer.token_vectors": lambda result: 2 * result,
    "Transformer.bias": lambda result: 2 * result,
    "Transformer.may_attend": lambda result: result.tril(),
    "LMHead.forward": lambda result: 2 * result,
    "LMHead.project": lambda result: (2 * result[0], *result[1:]),
    "LanguageModel.losses": lambda result: 2 * result,
    "ALiBi.bias": lambda result: 2 * result,
}


@pytest.mark.parametrize("place", EDITS)
def test_an_edit_of_any_method_changes_the_loss(place, monkeypatch):
    model = tiny_model(Encoder, pos="alibi", init_std=0.3)
    idx = torch.randint(5, 30, (2, 9))
    before = model.loss(idx, idx)
    class_name, name = place.split(".")
    owner = getattr(model_file, class_name)
    method = getattr(owner, name)

    def edited(self, *args, **options):
        return EDITS[place](method(self, *args, **options))

    monkeypatch.setattr(owner, name, edited)
    assert (model.loss(idx, idx) - before).abs() > 1e-2


def test_a_gate_added_to_block_trains_and_is_saved_without_any_other_change(monkeypatch):
    class GatedBlock(Block):
        def __init__(self, *args):
            super().__init__(*args)
            self.gate = torch.nn.Parameter(torch.ones(()))

        def forward(self, x, *args):
            return self.gate * super().forward(x, *args)

    monkeypatch.setattr(model_file, "Block", GatedBlock)
    model = tiny_model(Decoder)
    idx = torch.randint(5, 30, (3, 8))
    model.loss(idx, idx).backward()
    gates = [p for name, p in model.named_parameters() if name.endswith("gate")]
    assert len(gates) == 2
    assert all(p.grad.abs() > 0 for p in gates)
    assert "body.blocks.1.gate" in model.state_dict()
