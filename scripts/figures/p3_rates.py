"""P3, Figures 2 and 3: growth of token similarity under random attention, against the theory's rate."""

import numpy as np
import numpy.typing as npt
import torch

from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.random_attention import escalation, post_norm, rates

DEPTH = 20
COLUMNS = ("similarity", "cosine", "ratio", "expected ratio", "delta", "omega", "omega + delta")
Table = npt.NDArray[np.float64]


def simulate_stacks(trials: int) -> Table:
    """Returns ``COLUMNS`` of each layer of ``trials`` random stacks; trials layers columns."""
    stacks = []
    for seed in range(trials):
        made = [escalation(each) for each in post_norm(DEPTH, torch.Generator().manual_seed(seed))]
        stacks.append(
            [
                (each.similarity, each.cosine, each.ratio, each.expected[0] / each.expected[1], each.delta, each.omega,
                 each.omega + each.delta)
                for each in made
            ]
        )  # fmt: skip
    return np.array(stacks)


def estimate_rates(trials: int) -> Table:
    """Returns, by layer of one stack, the mean rate over ``trials`` W, its deviation, eqs. 16 and 17; layers 4."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for made in post_norm(DEPTH, generator):
        drawn, by_theory = rates(made, trials, generator), escalation(made)
        rows.append((float(drawn.mean()), float(drawn.std()), by_theory.by_norms(), by_theory.by_eigenvalue()))
    return np.array(rows)


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure. --quick: 2 stacks instead of 50, and 20 W instead of 1,000."""
    trials = 20 if settings.quick else 1_000
    stacks, rate = simulate_stacks(2 if settings.quick else 50), estimate_rates(trials)
    layers = range(1, DEPTH + 1)
    mean, deviation = stacks.mean(axis=0), stacks.std(axis=0)

    def lines(*names: str) -> list[Line]:
        indices = [COLUMNS.index(name) for name in names]
        return [
            Line(label=name, x=layers, y=mean[:, index].tolist(), spread=deviation[:, index].tolist())
            for name, index in zip(names, indices, strict=True)
        ]

    panels = [
        Panel(title="similarity of tokens", x="layer", y="similarity, cosine", lines=lines("similarity", "cosine")),
        Panel(title="growth of the mean over that of the rest", x="layer", y="xi_1 / xi_2",
              lines=lines("ratio", "expected ratio")),
        Panel(title="condition of Theorem 6: omega + delta < 1", x="layer", y="norm",
              lines=lines("delta", "omega", "omega + delta")),
        Panel(title="escalation rate r, one stack", x="layer", y="diversity(X) / diversity(Y)", lines=[
            Line(label=f"over {trials:,} W", x=layers, y=rate[:, 0].tolist(), spread=rate[:, 1].tolist()),
            Line(label="eq. 16", x=layers, y=rate[:, 2].tolist()),
            Line(label="eq. 17", x=layers, y=rate[:, 3].tolist()),
        ]),
    ]  # fmt: skip
    above = float(((rate[:, 2] - rate[:, 0]) / (rate[:, 1] / trials**0.5)).max())
    below = rate[:, 0] - rate[:, 2]
    last = float(rate[-1, 0])
    off = float(np.abs(rate[:, 3] / rate[:, 0] - 1).max())
    ratio, expected = (stacks[:, :, COLUMNS.index(name)] for name in ("ratio", "expected ratio"))
    means = ratio.mean(axis=0)
    apart = float(np.abs(means / expected.mean(axis=0) - 1).max())
    most = float(stacks[:, :, COLUMNS.index("omega + delta")].max())
    end = float(stacks[:, -1, 0].min())
    return FigureResult(
        panels=panels,
        findings=[
            Finding(claim="similarity goes to 1", found=f"{end:.4f} after {DEPTH} layers", agrees=end > 0.99),
            Finding(claim="omega + delta < 1 in every layer", found=f"at most {most:.3f}", agrees=most < 1),
            Finding(claim="eq. 16 is a lower bound of the expected rate", agrees=above < 3,
                    found=f"at most {above:.1f} standard errors above the measured one, and at most "
                          f"{below.max():.3f} below it (layer {int(below.argmax()) + 1})"),
            Finding(claim="ours: eq. 17, for symmetric attention, is close too", agrees=off < 0.05,
                    found=f"off by at most {off:.1%}"),
            Finding(claim="xi_1 / xi_2 is as Lemma 4 expects", agrees=apart < (0.15 if settings.quick else 0.05),
                    found=f"means over stacks {means.min():.2f} to {means.max():.2f}, off by at most {apart:.1%}"),
            Finding(claim="asymptotic rate: diversity halves", found=f"divided by {last:.3f} in the last layer",
                    agrees=abs(last - 2) < 0.1),
        ],
    )  # fmt: skip


DRAWING = Drawing(
    name="p3-rates", duration="a minute", source="P3, Figures 2 and 3", make=make,
    shows="under random attention and post-norm the mean of the tokens outgrows the rest, at the predicted rate",
)  # fmt: skip
