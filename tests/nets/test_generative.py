"""Classification by likelihood: scores by hand."""

import pytest
import torch

from data.batching import pad
from data.tokenizer import BOS, EOS
from model import Config
from nets.generative import GenerativeClassifier


def test_the_score_is_the_likelihood_of_the_text_by_hand():
    config = Config(vocab_size=30, block_size=12, n_layer=1, n_embd=16, init_std=0.5)
    model = GenerativeClassifier(config, n_class=3, members=2).eval()
    idx, mask = pad([torch.tensor([BOS, 7, 8]), torch.tensor([BOS, 9])])
    scores = model(idx, mask)
    for text, sequence in enumerate(([BOS, 7, 8, EOS], [BOS, 9, EOS])):
        for label, members in enumerate(model.members_of_class):
            nats = 0
            for member in members:
                logs = member(torch.tensor([sequence[:-1]]))[0].log_softmax(-1)
                nats += sum(logs[i, word].item() for i, word in enumerate(sequence[1:])) / 2
            assert scores[text, label].item() == pytest.approx(nats, abs=1e-4)
    alone = model(torch.tensor([[BOS, 9]]))
    torch.testing.assert_close(alone[0], scores[1], atol=1e-4, rtol=1e-5)
