"""P3, Figure 2: growth of the mean over that of the rest in each step of a post-norm layer, feed-forward included.

P3 states that both LayerNorms and the feed-forward have xi_1 / xi_2 close to 1. P3's feed-forward has ReLU; we do not
know its width and initial weights. One without biases is homogeneous, so its ratio depends on the size of its branch:
three initialisations.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.random_attention import DIM, TOKENS, growth_ratio, layer, normalized

DEPTH = 20
STEPS = ("attention", "first LayerNorm", "feed-forward", "second LayerNorm")
CLOSE = 1.05
"""Largest ratio, or inverse of the smallest, that counts as close to 1."""
Draw = Callable[[torch.Generator, int], Callable[[Tensor], Tensor]]
"""Draws a feed-forward of a width."""


def _uniform(generator: torch.Generator, dim: int) -> Callable[[Tensor], Tensor]:
    """Returns a ReLU feed-forward as PyTorch initialises nn.Linear: weights and biases uniform in ±1 / sqrt(inputs)."""

    def linear(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        bound = 1 / math.sqrt(inputs)
        weight, bias = (
            bound * (2 * torch.rand(size, generator=generator) - 1) for size in ((inputs, outputs), (outputs,))
        )
        return weight, bias

    (inner, inner_bias), (outer, outer_bias) = linear(dim, 4 * dim), linear(4 * dim, dim)
    return lambda tokens: torch.relu(tokens @ inner + inner_bias) @ outer + outer_bias


def _normal(generator: torch.Generator, dim: int) -> Callable[[Tensor], Tensor]:
    """Returns the feed-forward of ``p3-tau``: as wide as the stream, both matrices N(0, I / d), without biases."""
    inner, outer = (torch.randn(dim, dim, generator=generator) / dim**0.5 for _ in range(2))
    return lambda tokens: torch.relu(tokens @ inner) @ outer


def _bert(generator: torch.Generator, dim: int) -> Callable[[Tensor], Tensor]:
    """Returns a ReLU feed-forward as BERT initialises it: four times as wide, N(0, 0.02), no biases."""
    inner, outer = (0.02 * torch.randn(size, generator=generator) for size in ((dim, 4 * dim), (4 * dim, dim)))
    return lambda tokens: torch.relu(tokens @ inner) @ outer


FEED_FORWARDS: Mapping[str, Draw] = {
    "PyTorch's": _uniform,
    "N(0, 0.02), as BERT": _bert,
    "N(0, 1 / d), as p3-tau": _normal,
}


def measure(draw: Draw, seed: int, dim: int) -> Tensor:
    """Returns xi_1 / xi_2 of each step of each layer of a random stack; layers steps."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, dim, generator=generator)
    rows = []
    for _ in range(DEPTH):
        made, feed_forward = layer(tokens, generator), draw(generator, dim)
        stages = [tokens, tokens + made.values]
        stages.append(normalized(stages[-1]))
        stages.append(stages[-1] + feed_forward(stages[-1]))
        stages.append(normalized(stages[-1]))
        rows.append([growth_ratio(*pair) for pair in pairwise(stages)])
        tokens = stages[-1]
    return torch.tensor(rows)


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure, the mean of 50 stacks as in P3. --quick: of 2 narrower ones."""
    trials, dim = (2, 128) if settings.quick else (50, DIM)
    panels, findings, layers = list[Panel](), list[Finding](), range(1, DEPTH + 1)
    for name, draw in FEED_FORWARDS.items():
        stacks = torch.stack([measure(draw, seed, dim) for seed in range(trials)])
        mean, deviation = stacks.mean(dim=0), stacks.std(dim=0)
        panels.append(
            Panel(
                title=f"feed-forward: {name}", x="layer", y="xi_1 / xi_2", log_y=True,
                lines=[Line(label=step, x=layers, y=mean[:, at].tolist(), spread=deviation[:, at].tolist())
                       for at, step in enumerate(STEPS)],
            )
        )  # fmt: skip
        if not findings:
            norms = mean[:, [1, 3]]
            findings.append(
                Finding(claim="both LayerNorms have a ratio close to 1", agrees=_is_close(norms),
                        found=f"{float(norms.min()):.3f} to {float(norms.max()):.3f}")
            )  # fmt: skip
        own = mean[:, 2]
        shown = ", ".join(f"{float(each):.2f}" for each in own[:3])
        findings.append(
            Finding(claim=f"the feed-forward has a ratio close to 1 ({name})", agrees=_is_close(own),
                    found=f"{shown} in the first layers, {float(own[-1]):.2f} in the last")
        )  # fmt: skip
    return FigureResult(panels=panels, findings=findings)


def _is_close(ratios: Tensor) -> bool:
    return float(ratios.max()) < CLOSE and float(ratios.min()) > 1 / CLOSE


DRAWING = Drawing(
    name="p3-steps", duration="minutes", source="P3, Figure 2", make=make,
    shows="growth of the mean over that of the rest in each step of a post-norm layer, for three feed-forwards",
)  # fmt: skip
