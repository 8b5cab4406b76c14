"""Classification by likelihood: scores by hand."""

import pytest
import torch

from data.batching import pad
from data.tokenizer import BOS, EOS, MASK, UNK
from model import Config
from nets.generative import GenerativeClassifier


def make(masked=False):
    torch.manual_seed(0)
    config = Config(vocab_size=30, block_size=12, n_layer=1, n_embd=16, init_std=0.5)
    return GenerativeClassifier(config, n_class=3, members=2, masked=masked).eval()


def test_the_score_is_the_likelihood_of_the_text_by_hand():
    model = make()
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


def test_an_encoder_is_asked_for_every_fourth_word_given_the_others():
    model, text = make(masked=True), [BOS, 7, UNK, 5, 9, 10, 11]  # 5 is the first word
    idx, mask = pad([torch.tensor(text), torch.tensor([BOS]), torch.randint(5, 30, (9,))])
    scores = model(idx, mask)
    for label, members in enumerate(model.members_of_class):
        nats = 0
        for member in members:
            for places in ([1, 6], [3], [4], [5]):  # 7 and 11; 5; 9; 10: [UNK] is not scored
                hidden = torch.tensor([[MASK if i in places else w for i, w in enumerate(text)]])
                logs = member(hidden)[0].log_softmax(-1)
                nats += sum(logs[place, text[place]].item() for place in places) / 2
        assert scores[0, label].item() == pytest.approx(nats, abs=1e-4)
    assert scores[1].tolist() == [0, 0, 0]  # no word to score
