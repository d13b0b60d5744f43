"""Effect of one de-escalation on token similarity, and the tau that balances attention's escalation.

With odds t / (1 - t), attention alone multiplies the odds by xi_1 / xi_2, which is 2 for the N(0, I / d) value matrices
of random_attention.py when tokens are alike (Lemma 4). (I - tau P) X multiplies them by (1 - tau)^2.
"""

import math

import torch

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import Deescalation
from seqarena.common.model.diagnostics import token_similarity
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.random_attention import DIM, TOKENS, layer, normalized

TAUS = (0.1, 0.3, 0.5, 0.9)
BALANCE = 1 - 1 / math.sqrt(2)
"""The tau with 2 (1 - tau)^2 = 1."""
DEPTH = 40


def after(similarity: float, tau: float) -> float:
    """Returns the similarity of (I - tau P) X: (1 - tau)^2 t / ((1 - tau)^2 t + 1 - t)."""
    remaining = (1 - tau) ** 2 * similarity
    return remaining / (remaining + 1 - similarity)


def simulated(similarity: float, tau: float) -> float:
    """Returns the same by our module, on random tokens of that similarity."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(TOKENS, DIM, generator=generator, dtype=torch.float64)
    apart = tokens - tokens.mean(dim=0)
    mean = torch.randn(DIM, generator=generator, dtype=torch.float64)
    size = (similarity / (1 - similarity) * apart.square().sum() / TOKENS).sqrt()
    less = Deescalation(tau=tau, learnable=False, mean="sequence", leaky=False)
    return float(token_similarity(less((apart + mean / mean.norm() * size)[None], Visibility())[0]))


def final_similarity(tau: float, seed: int, depth: int) -> float:
    """Returns the final similarity of a random post-norm stack without feed-forwards, de-escalated in every layer."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, DIM, generator=generator)
    for _ in range(depth):
        tokens = normalized(tokens + layer(tokens, generator).values)
        tokens = tokens - tau * tokens.mean(dim=0)
    return float(token_similarity(tokens[None]))


def predicted_similarity(tau: float, depth: int) -> float:
    """Returns the final similarity by the odds: 1 to n - 1 for random tokens, times 2 (1 - tau)^2 per layer."""
    odds = (2 * (1 - tau) ** 2) ** depth / (TOKENS - 1)
    return odds / (1 + odds)


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure. --quick: 1 stack per tau instead of 10, and fewer layers."""
    trials, depth, count = (1, 16, 6) if settings.quick else (10, DEPTH, 11)
    before = [number / 50 for number in range(50)]
    some = [number / 10 for number in range(1, 10)]
    lines = [Line(label=f"tau {tau}", x=before, y=[after(each, tau) for each in before]) for tau in TAUS]
    pairs = [(each, tau) for tau in TAUS for each in some]
    dots = [simulated(*pair) for pair in pairs]
    worst = max(abs(dot - after(*pair)) for dot, pair in zip(dots, pairs, strict=True))
    lines.append(Line(label="our module", x=[each for each, _ in pairs], y=dots, dots=True))
    taus = [0.5 * number / (count - 1) for number in range(count)]
    stacks = torch.tensor([[final_similarity(tau, seed, depth) for seed in range(trials)] for tau in taus])
    found, by_odds = stacks.mean(dim=1).tolist(), [predicted_similarity(tau, depth) for tau in taus]
    half = len(taus) // 2
    off = max(abs(one - other) for one, other in zip(found[: half + 1], by_odds[: half + 1], strict=True))
    held = next((tau for tau, value in zip(taus, found, strict=True) if value < 0.1), math.inf)
    return FigureResult(
        panels=[
            Panel(title="one de-escalation", x="token similarity before", y="after", lines=lines),
            Panel(title=f"{depth} layers without feed-forwards", x="tau", y="token similarity at the end", lines=[
                Line(label="random attention", x=taus, y=found),
                Line(label="by odds", x=taus, y=by_odds),
            ]),
        ],
        findings=[
            Finding(claim="ours: the closed form matches the module", found=f"largest difference {worst:.1e}",
                    agrees=worst < 1e-9),
            Finding(claim=f"ours: attention alone is balanced by tau {BALANCE:.2f}", agrees=abs(held - BALANCE) < 0.1,
                    found=f"similarity ends below 0.1 from tau {held:.2f} on"),
            Finding(claim="ours: below it, the odds predict the similarity", agrees=off < 0.1,
                    found=f"tau {taus[half]:.2f}: {found[half]:.2f}, by odds {by_odds[half]:.2f}; largest difference "
                          f"up to there {off:.2f}"),
        ],
    )  # fmt: skip


DRAWING = Drawing(
    name="p3-removal", duration="minutes", source="P3, eq. 21", make=make,
    shows="effect of one de-escalation on similarity, and the tau that balances attention's escalation",
)  # fmt: skip
