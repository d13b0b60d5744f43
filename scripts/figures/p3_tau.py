"""P3, Figure 5: effect of tau and of the position of de-escalation."""

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.diagnostics import token_similarity
from seqarena.common.model.norms import NORMS
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Sublayers
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.norms.post import PostNorm
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.random_attention import DIM, HEADS, TOKENS, layer

DEPTH = 40
TAUS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
PLACES = {
    "block_output": "end of each block",
    "ffn_stream": "stream before each feed-forward",
    "ffn_branch": "feed-forward's branch alone",
}


def similarities(norm: NormConfig, seed: int, *, depth: int, dim: int) -> list[float]:
    """Returns the token similarity of each layer's output in a random stack with feed-forwards and this norm.

    A norm's factor of initial weights scales both matrices of the feed-forward, and the value matrix twice, since here
    it stands for the product of the value and output matrices.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, dim, generator=generator)
    found = []
    for number in range(depth):
        position = LayerPosition(number=number, depth=depth)
        residual, scale = norm.residual(dim, 1e-5, position), norm.initial_scale(position)
        inner, outer = (scale * torch.randn(dim, dim, generator=generator) / dim**0.5 for _ in range(2))

        def attention(stream: Tensor, scale: float = scale) -> Tensor:
            return scale**2 * layer(stream[0], generator, heads=HEADS).values[None]

        def feed_forward(stream: Tensor, inner: Tensor = inner, outer: Tensor = outer) -> Tensor:
            return nn.functional.relu(stream @ inner) @ outer

        with torch.no_grad():
            tokens = residual(tokens[None], Sublayers(attention, feed_forward), Visibility())[0][0]
        found.append(float(token_similarity(tokens[None])))
    return found


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure, the mean of 20 stacks. --quick: one stack of fewer and narrower layers."""
    trials, depth, dim = (1, 24, 128) if settings.quick else (20, DEPTH, DIM)
    panels: list[Panel] = []
    ends: dict[tuple[str, float], float] = {}
    halves: dict[tuple[str, float], float] = {}
    for where, title in PLACES.items():
        lines = []
        for tau in TAUS:
            norm = Deescalated(tau=tau, where=where) if tau else PostNorm()  # type: ignore[arg-type]
            stacks = torch.tensor([similarities(norm, seed, depth=depth, dim=dim) for seed in range(trials)])
            lines.append(Line(label=f"tau {tau}", x=range(1, depth + 1), y=stacks.mean(dim=0).tolist()))
            ends[where, tau] = float(stacks[:, -1].mean())
            halves[where, tau] = float((stacks[:, -1] - stacks[:, depth // 2 - 1]).mean())
        panels.append(Panel(title=title, x="layer", y="token similarity, 0 to 1", lines=lines))
    grown = max(abs(halves[where, tau]) for where in ("block_output", "ffn_stream") for tau in (0.4, 0.5))
    places = list(PLACES)
    return FigureResult(
        panels=panels,
        findings=[
            Finding(claim="without it tokens become alike", found=f"{ends['block_output', 0.0]:.3f}",
                    agrees=ends["block_output", 0.0] > 0.95),
            Finding(claim="from tau 0.4 on there is no escalation", agrees=grown < 0.05,
                    found=f"on the stream similarity changes by at most {grown:.3f} in the last half of the layers"),
            Finding(claim="tau 0.2 is not enough", agrees=ends["block_output", 0.2] > 0.9,
                    found=f"{ends['block_output', 0.2]:.3f} at the end"),
            *(
                Finding(claim=f"removed from the {PLACES[where]} the result is almost the same",
                        agrees=max(abs(ends[where, tau] - ends[places[0], tau]) for tau in TAUS) < 0.1,
                        found="; ".join(f"tau {tau}: {ends[where, tau]:.3f}, from the block {ends[places[0], tau]:.3f}"
                                        for tau in (0.4, 0.5)))
                for where in places[1:]
            ),
        ],
    )  # fmt: skip


def compare_norms(settings: FigureOptions) -> FigureResult:
    """Returns the token similarity under every norm, the mean of 20 stacks. --quick: one smaller stack."""
    trials, depth, dim = (1, 24, 128) if settings.quick else (20, DEPTH, DIM)
    lines = []
    for name, norm in NORMS.items():
        stacks = torch.tensor([similarities(norm, seed, depth=depth, dim=dim) for seed in range(trials)])
        lines.append(Line(label=name, x=range(1, depth + 1), y=stacks.mean(dim=0).tolist()))
    panel = Panel(title="random stacks", x="layer", y="token similarity, 0 to 1", limits=(0.0, 1.0), lines=lines)
    ends = {line.label: line.y[-1] for line in lines}
    others = [end for name, end in ends.items() if name != "post"]
    finding = Finding(
        claim="ours: no other norm makes the tokens as alike as post-norm", agrees=max(others) < ends["post"],
        found=", ".join(f"{name} {end:.3f}" for name, end in sorted(ends.items(), key=lambda each: -each[1])),
    )  # fmt: skip
    return FigureResult(panels=[panel], findings=[finding])


COMPARISON = Drawing(
    name="norm-similarity", source="ours, with P3's random stacks", make=compare_norms,
    shows="token similarity by layer under every norm, before training",
)  # fmt: skip
DRAWING = Drawing(
    name="p3-tau", duration="minutes", source="P3, Figure 5", make=make,
    shows="removing part of the mean from the stream keeps tokens apart, but not from the feed-forward's branch",
)  # fmt: skip
