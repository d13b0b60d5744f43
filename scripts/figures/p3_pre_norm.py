"""P3, Figure 4: growth of the stream under pre-norm, and the spectral gap of causal attention."""

import torch

from seqarena.common.model.diagnostics import spectral_gap, token_diversity, token_similarity
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.random_attention import DIM, TOKENS, layer, normalized, post_norm

DEPTH = 40
LENGTHS = (2, 4, 8, 16, 32, 64, 128, 256)


def stack(depth: int, seed: int) -> dict[str, list[float]]:
    """Returns, for each layer X -> X + P LN(X) W, similarity and diversity of X and three norms."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, DIM, generator=generator)
    found: dict[str, list[float]] = {"similarity": [], "diversity": [], "X": [], "LN(X)": [], "P LN(X) W": []}
    for _ in range(depth):
        made = layer(normalized(tokens), generator)
        found["similarity"].append(float(token_similarity(tokens[None])))
        found["diversity"].append(float(token_diversity(tokens[None])))
        for name, stream in (("X", tokens), ("LN(X)", made.tokens), ("P LN(X) W", made.values)):
            found[name].append(float(stream.norm()))
        tokens = tokens + made.values
    return found


def causal_gaps(lengths: tuple[int, ...], trials: int) -> list[float]:
    """Returns the mean spectral gap of random causal attention, by length."""
    means = []
    for length in lengths:
        generator = torch.Generator().manual_seed(0)
        gaps = [
            spectral_gap(layer(torch.randn(length, DIM, generator=generator), generator, causal=True).weights).mean()
            for _ in range(trials)
        ]
        means.append(float(torch.stack(gaps).mean()))
    return means


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure. --quick: 12 layers instead of 40, and 2 draws instead of 20."""
    depth, trials, lengths = (12, 2, LENGTHS[:6]) if settings.quick else (DEPTH, 20, LENGTHS)
    found = stack(depth, 0)
    layers, gaps = range(1, depth + 1), causal_gaps(lengths, trials)
    norms = [Line(label=name, x=layers, y=found[name]) for name in ("X", "LN(X)", "P LN(X) W")]
    growth = found["X"][-1] / found["X"][0]
    layers_of_post = [each.tokens[None] for each in post_norm(depth, torch.Generator().manual_seed(0))]
    post = [float(token_similarity(each)) for each in layers_of_post]
    shares = [added / stream for added, stream in zip(found["P LN(X) W"], found["X"], strict=True)]
    slower = found["diversity"][-1] / float(token_diversity(layers_of_post[-1]))
    return FigureResult(
        panels=[
            Panel(title="similarity", x="layer", y="token similarity, 0 to 1",
                  lines=[Line(label="pre-norm", x=layers, y=found["similarity"]),
                         Line(label="post-norm", x=layers, y=post)]),
            Panel(title="norms, pre-norm", x="layer", y="Frobenius norm", lines=norms),
            Panel(title="spectral gap of causal attention", x="length", y="1 - |lambda_2|", log_x=True,
                  limits=(0.0, 1.0),
                  lines=[Line(label="random heads", x=lengths, y=gaps),
                         Line(label="by E[lambda_2] = 1/2", x=lengths, y=[0.5] * len(lengths))]),
        ],
        findings=[
            Finding(claim="ours: the stream grows while LN(X) does not", agrees=growth > 2,
                    found=f"||X|| grows {growth:.1f} times in {depth} layers"),
            Finding(claim="ours: the attention's output falls behind it", agrees=shares[-1] < 0.9 * max(shares),
                    found=f"fraction of ||X|| {shares[0]:.2f}, at most {max(shares):.2f}, at the end {shares[-1]:.2f}"),
            Finding(claim="ours: so similarity grows more slowly than under post-norm", agrees=slower > 2,
                    found=f"similarity {found['similarity'][-1]:.3f}, {slower:.2g} times post-norm's diversity"),
            Finding(claim="the gap of causal attention is about 0.5", agrees=abs(gaps[-1] - 0.5) < 0.1,
                    found=f"{gaps[-1]:.3f} at length {lengths[-1]}"),
        ],
    )  # fmt: skip


DRAWING = Drawing(
    name="p3-pre-norm", duration="seconds", source="P3, Figure 4", make=make,
    shows="under pre-norm similarity grows slowly, because the stream outgrows the attention's output",
)  # fmt: skip
