"""Relative positions of self-attention: rotations of queries and keys (RoPE), or a bias of the scores (ALiBi)."""

import math
from typing import Literal

import torch
from torch import Tensor

from seqarena.common.shapes import Bias

RelativePositions = Literal["none", "rope", "alibi"]


def rotated(tokens: Tensor) -> Tensor:
    """Returns queries or keys (B H T D), each pair of coordinates rotated by the angle t 10000^(-2 i / D).

    The score of a query and a key then depends on their distance (Su et al. 2021, "RoFormer", arXiv 2104.09864).
    """
    length, width = tokens.shape[2], tokens.shape[3]
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    cosines, sines = (each.to(tokens.device, tokens.dtype) for each in (angles.cos(), angles.sin()))
    even, odd = tokens[..., 0::2], tokens[..., 1::2]
    return torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], dim=-1).flatten(3)


def distance_bias(length: int, heads: int, device: torch.device) -> Bias:
    """Returns the bias -m_h |i - j| of the scores, m_h = 2^(-8 h / H) for head h = 1, ..., H; 1 H T T.

    Press et al. 2021, "Train Short, Test Long" (ALiBi, arXiv 2108.12409), for causal attention. In order none the
    distance is the same in both directions. For a number of heads that is no power of two, the slopes are those of the
    next lower power, then every second one of the next higher, as in the authors' code.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * (heads - power), 2)]
    position = torch.arange(length, device=device)
    distance = (position[:, None] - position).abs()
    return -torch.tensor(slopes, device=device)[None, :, None, None] * distance
