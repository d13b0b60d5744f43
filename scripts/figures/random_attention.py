"""Random attention as measured in P3: token similarity from layer to layer, and the theory's predictions.

X (n, d) ~ N(0, 1). Each of h heads has query and key matrices uniform in (-1, 1) / sqrt(d), and value matrices N(0, I
/ d); n = 64, d = 512, h = 8. Pi_1 is the mean over tokens, Pi_2 = I - Pi_1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seqarena.common.model.diagnostics import mean_cosine, token_diversity, token_similarity
from seqarena.common.shapes import Weights

TOKENS, DIM, HEADS = 64, 512, 8


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Random matrices of one layer applied to tokens."""

    tokens: Tensor
    """X; n C."""
    weights: Weights
    """P of each head; 1 H n n."""
    values: Tensor
    """P X W of all heads side by side; n C."""


def layer(tokens: Tensor, generator: torch.Generator, *, heads: int = HEADS, causal: bool = False) -> Layer:
    """Returns a layer with new random matrices."""
    size, dim = tokens.shape
    query, key = ((2 * torch.rand(dim, dim, generator=generator, dtype=tokens.dtype) - 1) / dim**0.5 for _ in range(2))
    projected = [(tokens @ each).view(size, heads, -1).transpose(0, 1) for each in (query, key)]
    scores = projected[0] @ projected[1].transpose(1, 2) / (dim // heads) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(size, size, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(dim=-1)
    return Layer(tokens=tokens, weights=weights[None], values=drawn_values(tokens, weights, generator))


def drawn_values(tokens: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
    """Returns P X W of all heads side by side, with newly drawn W ~ N(0, I / d); n C."""
    dim = tokens.shape[1]
    value = torch.randn(dim, dim, generator=generator, dtype=tokens.dtype) / dim**0.5
    heads = len(weights)
    mixed = weights @ (tokens @ value).view(len(tokens), heads, -1).transpose(0, 1)
    side_by_side: Tensor = mixed.transpose(0, 1).reshape(len(tokens), dim)
    return side_by_side


def rates(made: Layer, trials: int, generator: torch.Generator, alpha: float = 1.0) -> Tensor:
    """Returns r(X, Y) for ``trials`` draws of W; trials.

    A column of P X W is N(0, (P X)(P X)^T / d), so it is drawn directly, without W.
    """
    tokens, weights = made.tokens.double(), made.weights[0].double()
    size, dim = tokens.shape
    width = dim // len(weights)
    diversity = torch.zeros(trials, 2, dtype=torch.float64)
    for head, own in enumerate(weights):
        variances, directions = torch.linalg.eigh(
            own @ tokens @ (own @ tokens).T / dim
        )  # of rank 1 if all tokens are alike
        spread = directions * variances.clamp(min=0).sqrt()
        noise = torch.randn(size, trials * width, generator=generator).double()
        values = (spread @ noise).view(size, trials, width)
        output = tokens[:, None, head * width : (head + 1) * width] + alpha * values
        diversity[:, 0] += (output - output.mean(dim=0)).square().sum(dim=(0, 2))
        diversity[:, 1] += output.square().sum(dim=(0, 2))
    return float(token_diversity(tokens[None])) / (diversity[:, 0] / diversity[:, 1])


def parts(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ||Pi_1 X||_F^2 and ||Pi_2 X||_F^2."""
    mean = tokens.mean(dim=0, keepdim=True)
    return mean.square().sum() * len(tokens), (tokens - mean).square().sum()


def growth_ratio(before: Tensor, after: Tensor) -> float:
    """Returns xi_1 / xi_2, with xi_i = ||Pi_i Y||^2 / ||Pi_i X||^2."""
    old, new = parts(before), parts(after)
    return float(new[0] / old[0] / (new[1] / old[1]))


def expected_growth(made: Layer, alpha: float = 1.0) -> tuple[float, float]:
    """Returns E[xi_1] and E[xi_2] over W of Y = X + alpha P X W, mean over heads (Lemma 4, Proposition 9)."""
    before, mixed = parts(made.tokens), [parts(each) for each in made.weights[0] @ made.tokens]
    first, second = (
        1 + alpha**2 * float(torch.stack([each[number] for each in mixed]).mean() / before[number])
        for number in range(2)
    )
    return first, second


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """Effect of a layer Y = X + alpha P X W on both parts, measured and by theory, mean over heads (Proposition 9)."""

    similarity: float
    cosine: float
    rate: float
    """r(X, Y) = diversity(X) / diversity(Y), for the drawn W."""
    ratio: float
    """xi_1 / xi_2, with xi_i = ||Pi_i Y||^2 / ||Pi_i X||^2, for the drawn W."""
    expected: tuple[float, float]
    """E[xi_i] = 1 + alpha^2 mu_i^2, with mu_i = ||Pi_i P X|| / ||Pi_i X|| (Lemma 4, d sigma^2 = 1)."""
    delta: float
    """||Pi_2 P||_2."""
    omega: float
    """||e^T P Pi_2 X|| / ||e^T X||."""
    second_eigenvalue: float
    """|lambda_2| of P."""

    def by_norms(self, alpha: float = 1.0) -> float:
        """Returns eq. 16: 1 + alpha^2 / (1 + alpha^2 delta^2) ((1 - omega)^2 - delta^2) t_sim."""
        gain = (1 - self.omega) ** 2 - self.delta**2
        return 1 + alpha**2 / (1 + alpha**2 * self.delta**2) * gain * self.similarity

    def by_eigenvalue(self) -> float:
        """Returns eq. 17, for symmetric P and alpha 1: 1 + (1 - |lambda_2|^2) / (1 + |lambda_2|^2) t_sim."""
        squared = self.second_eigenvalue**2
        return 1 + (1 - squared) / (1 + squared) * self.similarity


def escalation(made: Layer, alpha: float = 1.0) -> Escalation:
    """Returns the effect of a layer."""
    tokens, weights = made.tokens, made.weights[0]
    output = tokens + alpha * made.values
    centred = weights - weights.mean(dim=1, keepdim=True)  # Pi_2 P
    mean = tokens.mean(dim=0, keepdim=True)
    cross = weights.sum(dim=1) @ (tokens - mean)  # e^T P Pi_2 X of each head
    eigenvalues = torch.linalg.eigvals(weights).abs().sort(dim=-1, descending=True).values[:, 1]
    return Escalation(
        similarity=float(token_similarity(tokens[None])),
        cosine=float(mean_cosine(tokens[None])),
        rate=float(token_diversity(tokens[None]) / token_diversity(output[None])),
        ratio=growth_ratio(tokens, output),
        expected=expected_growth(made, alpha),
        delta=float(torch.linalg.matrix_norm(centred, ord=2).mean()),
        omega=float((cross.norm(dim=1) / tokens.sum(dim=0).norm()).mean()),
        second_eigenvalue=float(eigenvalues.mean()),
    )


def normalized(tokens: Tensor) -> Tensor:
    """Returns LayerNorm of tokens, without gain."""
    return torch.nn.functional.layer_norm(tokens, tokens.shape[1:])


def post_norm(depth: int, generator: torch.Generator) -> Iterator[Layer]:
    """Yields the layers X -> LN(X + P X W) of a random stack, without feed-forwards."""
    tokens = torch.randn(TOKENS, DIM, generator=generator)
    for _ in range(depth):
        made = layer(tokens, generator)
        yield made
        tokens = normalized(tokens + made.values)
