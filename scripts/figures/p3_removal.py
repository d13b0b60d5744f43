"""What one de-escalation does to token similarity, and how much of it balances attention's escalation.

In place of P3's Figure 8, which draws an eta against t: what eta stands for we do not know. With odds t / (1 - t),
attention alone multiplies them by xi_1 / xi_2, 2 for the N(0, I / d) value matrices of random_attention.py where
tokens are alike (Lemma 4), and (I - tau P) X by (1 - tau)^2.
"""

import math

import torch

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import Deescalation
from seqarena.common.model.diagnostics import token_similarity
from seqarena.scripts.figures.drawing import Drawing, FigureResult, Finding, Line, Look, Panel
from seqarena.scripts.figures.random_attention import DIM, TOKENS, layer, normalized

TAUS = (0.1, 0.3, 0.5, 0.9)
BALANCE = 1 - 1 / math.sqrt(2)
"""The tau at which 2 (1 - tau)^2 is 1."""
DEPTH = 40


def after(similarity: float, tau: float) -> float:
    """Returns the similarity of (I - tau P) X: (1 - tau)^2 t / ((1 - tau)^2 t + 1 - t)."""
    kept = (1 - tau) ** 2 * similarity
    return kept / (kept + 1 - similarity)


def applied(similarity: float, tau: float) -> float:
    """Returns the same by the suite's own module, on random tokens of that similarity."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(TOKENS, DIM, generator=generator, dtype=torch.float64)
    apart = tokens - tokens.mean(dim=0)
    mean = torch.randn(DIM, generator=generator, dtype=torch.float64)
    size = (similarity / (1 - similarity) * apart.square().sum() / TOKENS).sqrt()
    less = Deescalation(tau=tau, learnable=False, mean="sequence", leaky=False)
    return float(token_similarity(less((apart + mean / mean.norm() * size)[None], Visibility())[0]))


def ended(tau: float, seed: int, depth: int) -> float:
    """Returns the similarity at the end of a random post-norm stack without feed-forwards, de-escalated a layer."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, DIM, generator=generator)
    for _ in range(depth):
        tokens = normalized(tokens + layer(tokens, generator).values)
        tokens = tokens - tau * tokens.mean(dim=0)
    return float(token_similarity(tokens[None]))


def predicted(tau: float, depth: int) -> float:
    """Returns it by the odds: those of random tokens, 1 to n - 1, times 2 (1 - tau)^2 a layer."""
    odds = (2 * (1 - tau) ** 2) ** depth / (TOKENS - 1)
    return odds / (1 + odds)


def make(look: Look) -> FigureResult:
    """Returns the figure; a quick look has 1 stack of each tau instead of 10, and fewer layers."""
    trials, depth, count = (1, 16, 6) if look.quick else (10, DEPTH, 11)
    before = [number / 50 for number in range(50)]
    some = [number / 10 for number in range(1, 10)]
    lines = [Line(label=f"tau {tau}", x=before, y=[after(each, tau) for each in before]) for tau in TAUS]
    pairs = [(each, tau) for tau in TAUS for each in some]
    dots = [applied(*pair) for pair in pairs]
    worst = max(abs(dot - after(*pair)) for dot, pair in zip(dots, pairs, strict=True))
    lines.append(Line(label="the suite's module", x=[each for each, _ in pairs], y=dots, dots=True))
    taus = [0.5 * number / (count - 1) for number in range(count)]
    stacks = torch.tensor([[ended(tau, seed, depth) for seed in range(trials)] for tau in taus])
    found = stacks.mean(dim=1).tolist()
    held = next((tau for tau, value in zip(taus, found, strict=True) if value < 0.1), math.inf)
    return FigureResult(
        panels=[
            Panel(title="one de-escalation", x="token similarity before", y="after", lines=lines),
            Panel(title=f"{depth} layers without feed-forwards", x="tau", y="token similarity at the end", lines=[
                Line(label="random attention", x=taus, y=found),
                Line(label="by odds", x=taus, y=[predicted(tau, depth) for tau in taus]),
            ]),
        ],
        findings=[
            Finding(claim="the closed form is what the module does", found=f"apart by at most {worst:.1e}",
                    agrees=worst < 1e-9),
            Finding(claim=f"attention alone is balanced by tau {BALANCE:.2f}", agrees=abs(held - BALANCE) < 0.1,
                    found=f"similarity ends below 0.1 from tau {held:.2f} on"),
        ],
    )  # fmt: skip


DRAWING = Drawing(
    name="p3-removal", source="P3, eq. 21", make=make,
    shows="what one de-escalation does to similarity, and how much of it balances attention's escalation",
)  # fmt: skip
