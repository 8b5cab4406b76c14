"""Values of a Config from flags and files: every invalid field is named before any is used."""

import math

import pytest

from lab.limits import LARGEST, make_config
from model import Config


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(n_layer=0), "n_layer must be at least 1, got 0"),
        (dict(block_size=-3), "block_size must be at least 1, got -3"),
        (dict(window=-1), "window must not be negative, got -1"),
        (dict(n_language=-1), "n_language must not be negative, got -1"),
        (dict(init_std=-1.0), "init_std must not be negative, got -1.0"),
        (dict(dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
        (dict(dropout=math.nan), "dropout must be a finite number, got nan"),
        (dict(norm_eps=math.inf), "norm_eps must be a finite number, got inf"),
        (dict(n_embd=10**400), "n_embd must be at most 16,777,216, got 1000"),
        (dict(vocab_size=LARGEST + 1), "vocab_size must be at most 16,777,216, got 16777217"),
        (dict(n_layer=1.0), "n_layer must be of type int, got '1.0'"),
        (dict(n_layer=True), "n_layer must be of type int, got 'True'"),
        (dict(pos=["alibi"]), "pos must be of type str"),
        (dict(pos="rotary"), "pos must be one of learned, sinusoidal"),
        (dict(layers=3), "layers is not an option"),
        (dict(n_embd=64, n_head=5), "n_head must divide n_embd"),
        (dict(pos="rope", n_embd=6, n_head=2), "n_embd / n_head must be even"),
        (dict(pos="sinusoidal", n_embd=5, n_head=1), "n_embd must be even, got 5"),
        (dict(pos="alibi", alibi="one-sided", n_embd=6, n_head=3), "n_head must be even, got 3"),
        (dict(head="clap", tie=False), "head=clap"),
    ],
)
def test_the_invalid_field_is_named(wrong, message):
    with pytest.raises(ValueError) as error:
        make_config(wrong)
    assert message in str(error.value)


def test_valid_values_make_the_config():
    values = dict(pos="rope", dropout=0, n_embd=32, n_language=2)
    assert make_config(values) == Config(**values)
    assert make_config(vars(Config(n_ffn=100))) == Config(n_ffn=100)
