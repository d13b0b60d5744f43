"""P2: distances of attracting centres, collapse of mixtures, key masses, and Sinkhorn's iteration."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.visibility import Visibility
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel

NAMES = {"softmax": "LNAS", "dnas": "DNAS"}
PLACES = (0.5, 1.0, 1.5)
"""Values of a: clusters are at +a and -a."""
UPDATES = 4
MIDDLE, SPREAD = 1.5, 0.4
"""Centres (+-) and deviation of the two Gaussians; we do not know P2's. At 1.3 balanced ones merge, at 1.7 none."""
LENGTHS = (16, 32, 64, 128, 256, 512)
ITERATIONS = (1, 2, 5, 20)


def weights(config: AttentionConfig, query: Tensor, key: Tensor) -> Tensor:
    """Returns the attention matrix of a variant whose scores are the products of queries and keys (n C)."""
    scaled = query * key.shape[1] ** 0.5  # undoes the kernel's division
    kernel = config.build(heads=1).eval()
    with torch.no_grad():
        return kernel.weights(scaled[None, None], key[None, None], Visibility())[0, 0]


def lnas_distance(ratio: float, place: float) -> float:
    """Returns the distance of two centres after an update by softmax attention (P2, appendix C)."""
    s = math.exp(-2 * place**2)
    return 2 * ratio * (1 - s**2) * place / ((1 + ratio * s) * (ratio + s))


def dnas_distance(ratio: float, place: float) -> float:
    """Returns the distance of two centres after an update by doubly-normalised attention."""
    s = math.exp(-2 * place**2)
    q = (ratio + s) / (ratio * s + 1)
    return 2 * q * ratio * (1 - s**2) * place / ((q + ratio * s) * (ratio + s * q))


DISTANCES = {"softmax": lnas_distance, "dnas": dnas_distance}


def simulated_distance(name: str, counts: tuple[int, int], place: float) -> float:
    """Returns the distance after one update of points at +a and -a (``counts`` of each), by our attention."""
    points = torch.tensor([[place]] * counts[0] + [[-place]] * counts[1], dtype=torch.float64)
    moved = weights(find_attention(name), points, points) @ points
    return float(moved[0, 0] - moved[-1, 0])


def centres(settings: FigureOptions) -> FigureResult:
    """Returns Figure 2: the closed form as lines, simulations as dots."""
    sizes = [(10 * number, 40) for number in range(1, 5 if settings.quick else 17)]
    panels, worst, gain = [], 0.0, math.inf
    for place in PLACES:
        lines = []
        for name, closed in DISTANCES.items():
            ratios = [10 ** (step / 10) for step in range(-10, 11)]
            lines.append(
                Line(label=f"{NAMES[name]}, closed form", x=ratios, y=[closed(each, place) for each in ratios])
            )
            drawn = [simulated_distance(name, each, place) for each in sizes]
            x = [each[0] / each[1] for each in sizes]
            lines.append(Line(label=f"{NAMES[name]}, simulated", x=x, y=drawn, dots=True))
            worst = max(worst, *(abs(one - closed(r, place)) for one, r in zip(drawn, x, strict=True)))
        gain = min(gain, *(dnas_distance(each, place) - lnas_distance(each, place) for each in ratios))
        panels.append(
            Panel(title=f"clusters at +-{place}", x="mass ratio N0 / N1", y="distance of the centres after one update",
                  lines=lines, log_x=True)
        )  # fmt: skip
    return FigureResult(
        panels=panels,
        findings=[
            Finding(claim="the closed forms match attention", agrees=worst < 1e-9,
                    found=f"largest difference {worst:.1e}"),
            Finding(claim="DNAS's centres are never closer than LNAS's", agrees=gain > -1e-12,
                    found=f"smallest difference {gain:.1e}"),
        ],
    )  # fmt: skip


def gaussian(points: Tensor) -> tuple[Tensor, Tensor]:
    """Returns queries and keys whose products are -||x - y||^2 / 2."""
    half, one = -points.square().sum(dim=1, keepdim=True) / 2, torch.ones(len(points), 1, dtype=points.dtype)
    return torch.cat([points, one, half], dim=1), torch.cat([points, half, one], dim=1)


def trajectory(name: str, points: Tensor) -> list[Tensor]:
    """Returns the points before and after each of ``UPDATES`` updates."""
    found = [points]
    for _ in range(UPDATES):
        points = weights(find_attention(name), *gaussian(points)) @ points
        found.append(points)
    return found


def gap(points: Tensor, first: int) -> float:
    """Returns the distance between the means of the first ``first`` points and of the others."""
    return float((points[:first].mean(dim=0) - points[first:].mean(dim=0)).norm())


def collapse(settings: FigureOptions) -> FigureResult:
    """Returns Figures 5 and 6: a balanced and an unbalanced mixture of two Gaussians, updated four times."""
    generator = torch.Generator().manual_seed(0)
    many, few = (90, 10) if settings.quick else (180, 20)
    counts = {"balanced": ((many + few) // 2,) * 2, "unbalanced": (many, few)}
    panels, findings = [], []
    for title, (first, second) in counts.items():
        points = torch.randn(first + second, 1, generator=generator, dtype=torch.float64) * SPREAD
        points[:first] -= MIDDLE
        points[first:] += MIDDLE
        for name, label in NAMES.items():
            found = trajectory(name, points)
            lines = [
                Line(label=f"cluster of {count}", dots=True,
                     x=[step for step in range(UPDATES + 1) for _ in range(count)],
                     y=[float(value) for each in found for value in each[part, 0]])
                for count, part in ((first, slice(0, first)), (second, slice(first, None)))
            ]  # fmt: skip
            panels.append(Panel(title=f"{title}, {label}", x="updates", y="position of each point", lines=lines))
            before, after = gap(found[0], first), gap(found[-1], first)
            keeps = title == "balanced" or name == "dnas"
            findings.append(
                Finding(
                    claim=f"{label} {'keeps two modes' if keeps else 'collapses into one'} of the {title} mixture",
                    found=f"distance of the means {before:.2f} -> {after:.2f}",
                    agrees=(after > before / 2) == keeps,
                )
            )
    return FigureResult(panels=panels, findings=findings)


def key_mass(settings: FigureOptions) -> FigureResult:
    """Returns the smallest key mass of random attention against 1 / L, and key masses after more iterations."""
    generator = torch.Generator().manual_seed(0)
    lengths = LENGTHS[:4] if settings.quick else LENGTHS
    least: dict[str, list[float]] = {name: [] for name in NAMES}
    for length in lengths:
        query, key = (3 * torch.randn(length, 16, generator=generator, dtype=torch.float64) for _ in range(2))
        for name in NAMES:
            mass = weights(find_attention(name), query / 16**0.5, key).sum(dim=0)
            least[name].append(float(mass.min()))
    bound = [1 / length for length in lengths]
    lines = [Line(label=label, x=lengths, y=least[name]) for name, label in NAMES.items()]
    lines.append(Line(label="1 / L", x=lengths, y=bound))
    length = lengths[-1]
    query, key = (3 * torch.randn(length, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    columns = [
        float((weights(DoublyNormalized(iterations=number), query / 16**0.5, key).sum(dim=0) - 1).abs().max())
        for number in ITERATIONS
    ]
    holds = all(mass >= floor for mass, floor in zip(least["dnas"], bound, strict=True))
    return FigureResult(
        panels=[
            Panel(title="random attention", x="length L", y="smallest key mass", lines=lines, log_x=True, log_y=True),
            Panel(title=f"Sinkhorn, L = {length}", x="iterations", y="largest | key mass - 1 |", log_x=True, log_y=True,
                  lines=[Line(label="DNAS", x=ITERATIONS, y=columns)]),
        ],
        findings=[
            Finding(claim="Lemma 1: no key of DNAS has less than 1 / L", agrees=holds,
                    found=f"smallest {min(least['dnas']):.1e}"),
            Finding(claim="LNAS has no such bound", agrees=min(least["softmax"]) < min(bound),
                    found=f"down to {min(least['softmax']):.1e}"),
            Finding(claim="more iterations approach both marginals (Sinkhorn)", agrees=_falls(columns),
                    found=", ".join(f"{n}: {value:.1e}" for n, value in zip(ITERATIONS, columns, strict=True))),
        ],
    )  # fmt: skip


def _falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in itertools.pairwise(values))


DRAWINGS = (
    Drawing(name="p2-centres", duration="seconds", source="P2, Figure 2", make=centres,
            shows="unequal clusters attract each other's centres under LNAS, less so under DNAS"),
    Drawing(name="p2-collapse", duration="seconds", source="P2, Figures 5 and 6", make=collapse,
            shows="four updates of two clusters: LNAS loses the smaller one, DNAS keeps both"),
    Drawing(name="p2-key-mass", duration="seconds", source="P2, Lemma 1", make=key_mass,
            shows="under DNAS every key has a minimum mass; with more iterations all masses approach 1"),
)  # fmt: skip
