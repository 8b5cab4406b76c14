"""Exercise 6: a pre-norm block (GPT-2, Radford et al. 2019; Xiong et al. 2020).

x = x + dropout(attention(norm1(x)))
x = x + dropout(feed_forward(norm2(x)))
"""


def block(x, norm1, attention, norm2, feed_forward, dropout):
    """x (B, T, C), and functions from (B, T, C) to (B, T, C) -> the output (B, T, C) of the block.

    Do not change x itself.
    """
    y = x + dropout(attention(norm1(x)))
    return y + dropout(feed_forward(norm2(y)))
