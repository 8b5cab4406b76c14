"""Exercise 9: from the states of a sentence to its class.

mean = sum of the states of real tokens / their number
logits = dropout(relu(x w1^T + b1)) w2^T + b2
"""

import torch
import torch.nn.functional as F

from course.judge import Task


def mean_pool(h: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """h (B, T, C), mask (B, T), True on real tokens -> the means (B, C) without padding."""
    return (h * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def classify(
    x: torch.Tensor,  # (B, C)
    w1: torch.Tensor,  # (F, C), as in nn.Linear
    b1: torch.Tensor,  # (F,)
    w2: torch.Tensor,  # (K, F)
    b2: torch.Tensor,  # (K,)
    dropout: float,
    training: bool,
) -> torch.Tensor:
    """Return the logits (B, K). Dropout is active only in training."""
    hidden = F.linear(x, w1, b1).relu()
    return F.linear(F.dropout(hidden, dropout, training), w2, b2)


if __name__ == "__main__":
    h, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    print(mean_pool(h, mask))  # 2

# ---- only for the check


def pool_cases(gen):
    for B, T, C in ((3, 5, 2), (2, 4, 6), (4, 7, 4)):
        lengths = torch.randint(2, T, (B, 1), generator=gen)
        yield torch.randn(B, T, C, generator=gen), torch.arange(T) < lengths


def classifier_cases(gen):
    for N, C, K in ((4, 6, 3), (6, 4, 2)):
        shapes = (N, C), (20, C), (20,), (K, 20), (K,)
        yield *(torch.randn(shape, generator=gen) for shape in shapes), 0.3, False
    one, eye = torch.ones(20), torch.eye(20)
    yield torch.ones(500, 20), eye, one, eye, one, 0.3, True


def measure_classifier(ask, *args):
    """In evaluation call twice, and compare the logits if they agree. In training the hidden
    channels are 2, and each logit is one of them plus 1: measure what dropout does to them."""
    logits, again = (ask(*args, shapes=[(len(args[0]), len(args[4]))])["logits"] for _ in "12")
    if args[-1]:
        hidden = (logits - 1) / 2
        return {
            "in training, the share of hidden channels that become 0": (hidden == 0).float().mean(),
            "in training, the mean of hidden channels after / before": hidden.mean(),
            "in training, their mean square after / before": hidden.square().mean(),
        }
    random = {"whether two calls in evaluation differ": (logits != again).any()}
    return random if (logits != again).any() else random | {"logits": logits}


TASKS = [
    Task(mean_pool, pool_cases, "mean"),
    Task(classify, classifier_cases, "logits", measure=measure_classifier),
]
