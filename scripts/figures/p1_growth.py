"""P1, Theorems 4.1, 4.2 and 4.4: growth of the norms of attention and its derivative with the length."""

import numpy as np
import torch
from torch import Tensor

from seqarena.common.attention import Visibility, find_attention
from seqarena.common.attention.rows import jacobian_softmax
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel

DIM = 64
LENGTHS = (16, 32, 64, 128, 256, 512, 1_024)
POWERS = (1, 2, 3)
SCALES = (0.1, 1.0, 10.0)
"""Standard deviations of softmax's input scores."""


def softmax_norms(lengths: tuple[int, ...], scale: float) -> tuple[list[float], list[float]]:
    """Returns, by length, the Frobenius norms of the softmax of random scores and of its derivative by them."""
    generator = torch.Generator().manual_seed(0)
    norms, jacobians = [], []
    for length in lengths:
        weights = (scale * torch.randn(length, length, generator=generator)).softmax(dim=-1)
        norms.append(float(weights.norm()))
        jacobians.append(float(jacobian_softmax(weights)) ** 0.5)
    return norms, jacobians


def random_inputs(length: int, trial: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns Q and K (DIM DIM) and X (length DIM) of a trial, all N(0, 1)."""
    generator = torch.Generator().manual_seed(trial)
    query, key = (torch.randn(DIM, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    return query, key, torch.randn(length, DIM, generator=generator, dtype=torch.float64)


def power_norms(lengths: tuple[int, ...], power: int, trials: int) -> tuple[list[float], list[float]]:
    """Returns mean norms of (X Q K^T X^T / sqrt(d))^p and of its derivative by Q, by length; X, Q, K ~ N(0, 1).

    Entry (i, j) has the derivative p a_ij^(p - 1) x_i (K^T x_j)^T / sqrt(d).
    """
    norms, slopes = [], []
    for length in lengths:
        found = []
        for trial in range(trials):
            query, key, tokens = random_inputs(length, trial)
            mapped = tokens @ key
            scores = tokens @ query @ mapped.T / DIM**0.5
            outer = tokens.square().sum(dim=1)[:, None] * mapped.square().sum(dim=1) / DIM
            slope = (power**2 * scores.square() ** (power - 1) * outer).sum().sqrt()
            found.append((float((scores**power).norm()), float(slope)))
        mean = np.mean(found, axis=0)
        norms.append(float(mean[0]))
        slopes.append(float(mean[1]))
    return norms, slopes


def scaled_norms(lengths: tuple[int, ...], power: int, trials: int) -> list[float]:
    """Returns the mean norms of x^p / sqrt(N) by our kernel, on X Q and X K, by length (Corollary 4.3)."""
    kernel = find_attention(f"x{power}").build(heads=1)
    means = []
    for length in lengths:
        found = []
        for trial in range(trials):
            query, key, tokens = random_inputs(length, trial)
            weights = kernel.weights((tokens @ query)[None, None], (tokens @ key)[None, None], Visibility())
            found.append(float(weights.norm()))
        means.append(float(np.mean(found)))
    return means


def exponent(lengths: tuple[int, ...], values: list[float]) -> float:
    """Returns the exponent e of values ~ N^e, fitted on the longer half."""
    half = len(lengths) // 2
    return float(np.polyfit(np.log(lengths[half:]), np.log(values[half:]), 1)[0])


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure. --quick: up to 128 tokens, and 3 draws each instead of 20."""
    lengths, trials = (LENGTHS[:4], 3) if settings.quick else (LENGTHS, 20)
    roots = [length**0.5 for length in lengths]
    bounded: dict[str, list[Line]] = {"weights": [], "derivative": []}
    within = True
    for scale in SCALES:
        for name, values, factor in zip(bounded, softmax_norms(lengths, scale), (1, 2), strict=True):
            bounded[name].append(Line(label=f"scores of deviation {scale:g}", x=lengths, y=values))
            within = within and all(value <= factor * root for value, root in zip(values, roots, strict=True))
    bounded["weights"].append(Line(label="bound, sqrt N", x=lengths, y=roots))
    bounded["derivative"].append(Line(label="bound, 2 sqrt N", x=lengths, y=[2 * root for root in roots]))
    panels = [
        Panel(title=f"softmax: {name}", x="length N", y="Frobenius norm", lines=lines, log_x=True, log_y=True)
        for name, lines in bounded.items()
    ]
    findings = [Finding(claim="Theorem 4.1: at most sqrt(N), and 2 sqrt(N) for the derivative", agrees=within,
                        found="every norm is within the bound" if within else "a norm exceeds the bound")]  # fmt: skip
    grown: dict[str, list[Line]] = {"weights": [], "derivative by Q": []}
    for power in POWERS:
        for name, values in zip(grown, power_norms(lengths, power, trials), strict=True):
            found = exponent(lengths, values)
            grown[name].append(Line(label=f"x^{power}: N^{found:.2f}", x=lengths, y=values))
            theorem = "4.2" if name == "weights" else "4.4"
            findings.append(
                Finding(claim=f"Theorem {theorem}: the {name} of x^{power} grow as N",
                        found=f"N^{found:.2f}", agrees=abs(found - 1) < 0.1)
            )  # fmt: skip
    corollary = []
    for power in POWERS:
        values = scaled_norms(lengths, power, trials)
        found = exponent(lengths, values)
        corollary.append(Line(label=f"x^{power} / sqrt(N): N^{found:.2f}", x=lengths, y=values))
        findings.append(Finding(claim=f"Corollary 4.3: x^{power} / sqrt(N), by our kernel, grows as sqrt(N)",
                                found=f"N^{found:.2f}", agrees=abs(found - 0.5) < 0.1))  # fmt: skip
    corollary.append(Line(label="sqrt(N)", x=lengths, y=roots))
    panels += [
        Panel(title=f"unscaled powers: {name}", x="length N", y="Frobenius norm", lines=lines, log_x=True, log_y=True)
        for name, lines in grown.items()
    ]
    panels.append(
        Panel(
            title="powers over sqrt(N): weights",
            x="length N",
            y="Frobenius norm",
            lines=corollary,
            log_x=True,
            log_y=True,
        )
    )
    return FigureResult(panels=panels, findings=findings)


DRAWING = Drawing(
    name="p1-growth", duration="seconds", source="P1, Theorems 4.1, 4.2 and 4.4", make=make,
    shows="softmax is bounded by the root of the length; powers grow as the length, or as its root when divided by it",
)  # fmt: skip
