"""Exercise 6: layer norm (Ba et al. 2016) and a pre-norm block (GPT-2, Radford et al. 2019).

    layer norm   (x - mean) / sqrt(variance + eps) * gain + bias

for each token, over its C channels. The variance is the mean of (x - mean)^2. [1, 3] has mean 2 and
variance 1, so it becomes [-1, 1] for gain 1, bias 0 and eps 0.

    block        x = x + dropout(attention(norm1(x)))
                 x = x + dropout(feed_forward(norm2(x)))

30 minutes, easy. Floats are float32. Gradients must flow to x, gain and bias.
"""


def layer_norm(x, gain, bias, eps):
    """x (B, T, C), gain and bias (C,), eps a number -> (B, T, C). Write it without F.layer_norm."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + eps).sqrt() * gain + bias


def block(x, norm1, attention, norm2, feed_forward, dropout):
    """x (B, T, C), and functions from (B, T, C) to (B, T, C) -> the output (B, T, C) of the block.

    Do not change x itself.
    """
    y = x + dropout(attention(norm1(x)))
    return y + dropout(feed_forward(norm2(y)))
