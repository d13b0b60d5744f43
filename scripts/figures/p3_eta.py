"""P3, Figure 8: eta = E[xi_1] / E[xi_2] - xi_1 / xi_2 (eq. 14) against token similarity, for several widths.

xi_i of one drawn layer Y = X + P X W varies about its expectation. eta is the error of the quotient of expectations in
place of the quotient. t is read as the token similarity of X. We do not know which claims P3 makes about the figure.
"""

from itertools import pairwise

import torch
from torch import Tensor

from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.random_attention import HEADS, TOKENS, expected_growth, growth_ratio, layer

SIMILARITIES = tuple(number / 20 for number in range(1, 20))
LOW = 0.2
"""Similarities up to this count as small."""


def tokens_of(similarity: float, dim: int, generator: torch.Generator) -> Tensor:
    """Returns random tokens (n, d) of a given token similarity."""
    apart = torch.randn(TOKENS, dim, generator=generator)
    apart = apart - apart.mean(dim=0)
    mean = torch.randn(dim, generator=generator)
    size = (similarity / (1 - similarity) * apart.square().sum() / TOKENS).sqrt()
    tokens: Tensor = apart + mean / mean.norm() * size
    return tokens


def etas(similarity: float, dim: int, trials: int, seed: int) -> Tensor:
    """Returns eta of ``trials`` random layers on tokens of that similarity; trials."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(trials):
        made = layer(tokens_of(similarity, dim, generator), generator, heads=HEADS)
        first, second = expected_growth(made)
        found.append(first / second - growth_ratio(made.tokens, made.tokens + made.values))
    return torch.tensor(found)


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure, 100 layers per point. --quick: 10 layers of two small widths."""
    trials, widths = (10, (32, 128)) if settings.quick else (100, (64, 128, 256, 512, 1_024))
    drawn = {
        dim: torch.stack([etas(each, dim, trials, seed) for seed, each in enumerate(SIMILARITIES)]) for dim in widths
    }
    lines = [
        Line(label=f"d = {dim}", x=SIMILARITIES, y=each.mean(dim=1).tolist(), spread=each.std(dim=1).tolist())
        for dim, each in drawn.items()
    ]
    spreads = [float(each.std(dim=1).mean()) for each in drawn.values()]
    widest = drawn[widths[-1]]
    is_low = torch.tensor(SIMILARITIES) <= LOW
    low, high = (float(widest[some].std(dim=1).mean()) for some in (is_low, ~is_low))
    error = float((widest.mean(dim=1).abs() / (widest.std(dim=1) / trials**0.5)).max())
    return FigureResult(
        panels=[Panel(title=f"{TOKENS} tokens, {HEADS} heads", x="token similarity t", y="eta", lines=lines)],
        findings=[
            Finding(claim="ours: the spread of eta falls with the width",
                    found=", ".join(f"{each:.3f} at d {dim}" for dim, each in zip(widths, spreads, strict=True)),
                    agrees=all(later < earlier for earlier, later in pairwise(spreads))),
            Finding(claim="ours: eta is near 0 on average", agrees=error < 4,
                    found=f"at d {widths[-1]} the mean is at most {error:.1f} standard errors from 0"),
            Finding(claim="ours: eta is nearest to 0 for small t", agrees=low < high / 2,
                    found=f"spread {low:.3f} up to t {LOW}, {high:.3f} above, at d {widths[-1]}"),
        ],
    )  # fmt: skip


DRAWING = Drawing(
    name="p3-eta", duration="minutes", source="P3, Figure 8", make=make,
    shows="error of the quotient of expectations, against token similarity and width",
)  # fmt: skip
