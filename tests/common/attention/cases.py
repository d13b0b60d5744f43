"""Inputs that the tests over the whole table share, and the variants from their definitions, loop by loop."""

import itertools
import math
from dataclasses import dataclass, replace

import torch

from seqarena.common.attention import ATTENTIONS, PAPERS
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.softmax import Recency, Softmax
from seqarena.common.attention.visibility import Visibility

BATCH, HEADS, DIM = 2, 2, 4

VARIANTS = [(name, order) for name, config in PAPERS.items() for order in config.orders]
"""Every variant of the papers in every order it has. Those of others have tests of their own (``rivals``)."""
RULED = [(name, order) for name, order in VARIANTS if ATTENTIONS[name].build(heads=2).rule is not None]
"""Those that the blockwise engine can evaluate."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input: tensors and what is visible in them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    visibility: Visibility


def case(order: str, *, memory: int = 0, padded: bool = False, dtype: torch.dtype = torch.float64) -> Case:
    """Returns 5 queries and their keys; with ``padded`` the second example's last two queries and keys are padding."""
    queries = 5
    keys = {"none": 6, "causal": memory + queries, "ordered_queries": 4}[order]
    make = lambda length: torch.randn(BATCH, HEADS, length, DIM, dtype=dtype) * 1.5  # noqa: E731
    query_real = key_real = None
    if padded:
        query_real, key_real = torch.ones(BATCH, queries, dtype=torch.bool), torch.ones(BATCH, keys, dtype=torch.bool)
        query_real[1, -2:] = key_real[1, -2:] = False
    visibility = Visibility(query_real=query_real, key_real=key_real, order=order, memory=memory)
    return Case(query=make(queries), key=make(keys), value=make(keys), visibility=visibility)


def cases(order: str) -> list[Case]:
    """Returns inputs with and without padding, memory, segments and a window, as far as the order has them."""
    memories = (0, 3) if order == "causal" else (0,)
    made = [case(order, memory=memory, padded=padded) for memory in memories for padded in (False, True)]
    if order == "causal":
        segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2, 2]])
        made.append(replace(made[3], visibility=replace(made[3].visibility, segments=segments)))
        made += [replace(made[at], visibility=replace(made[at].visibility, window=3)) for at in (0, 3)]
    if order == "none":
        same = case("causal", padded=True)
        segments = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]])
        made.append(replace(same, visibility=replace(same.visibility, order="none", segments=segments)))
    return made


def visible(visibility: Visibility, batch: int, i: int, j: int, queries: int, keys: int) -> bool:
    """Returns whether query i sees key j, from the words of the contract."""
    if visibility.query_real is not None and not visibility.query_real[batch, i]:
        return False
    if visibility.key_real is not None and not visibility.key_real[batch, j]:
        return False
    if visibility.order == "causal" and j > visibility.memory + i:
        return False
    if visibility.window is not None and visibility.memory + i - j >= visibility.window:
        return False
    if visibility.segments is not None:
        return bool(visibility.segments[batch, j] == visibility.segments[batch, keys - queries + i])
    return True


def phi(name: str, x: float) -> float:
    """Returns an activation of one number."""
    return {
        "x": lambda: x,
        "relu": lambda: max(x, 0.0),
        "elu": lambda: x if x > 0 else math.expm1(x),
        "gelu": lambda: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
        "tanh": lambda: math.tanh(x),
        "exp": lambda: math.exp(x),
    }[name]()


def definition(config: AttentionConfig, s: dict, seen: dict, visibility: Visibility, queries: int, keys: int) -> dict:
    """Returns the weights of one head, {(i, j): number}, straight from the formulas of the papers."""
    pairs = list(itertools.product(range(queries), range(keys)))

    def over_keys(scores: dict) -> dict:
        totals = {i: sum(scores[i, j] for j in range(keys) if seen[i, j]) for i in range(queries)}
        return {(i, j): scores[i, j] / totals[i] if seen[i, j] else 0.0 for i, j in pairs}

    exps = {pair: math.exp(s[pair]) for pair in pairs}
    if isinstance(config, Softmax):
        return over_keys(exps)
    if isinstance(config, Recency):
        return over_keys({(i, j): exps[i, j] / (abs(visibility.memory + i - j) + 1) for i, j in pairs})
    if isinstance(config, DoublyNormalized):
        xi = {}
        for i, j in pairs:
            until = queries if visibility.order == "none" else i + 1
            total = sum(exps[other, j] for other in range(until) if seen[other, j])
            xi[i, j] = exps[i, j] / total if seen[i, j] else 0.0
        return over_keys(xi)
    if isinstance(config, Hybrid):
        doubly = definition(DoublyNormalized(), s, seen, visibility, queries, keys)
        softmax = definition(Softmax(), s, seen, visibility, queries, keys)
        return {pair: config.u * doubly[pair] + (1 - config.u) * softmax[pair] for pair in pairs}
    assert isinstance(config, Elementwise), f"write the definition of {type(config).__name__} here, number by number"
    counts = {i: sum(seen[i, j] for j in range(keys)) for i in range(queries)}
    return {
        (i, j): phi(config.phi, s[i, j]) ** config.power / (config.scale or math.sqrt(counts[i])) if seen[i, j] else 0.0
        for i, j in pairs
    }


def naive_weights(config: AttentionConfig, each: Case, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the weights (B, H, N, M), computed number by number; a pair that the bias hides is not there."""
    queries, keys = each.query.shape[2], each.key.shape[2]
    weights = torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.float64)
    for b, h in itertools.product(range(BATCH), range(HEADS)):
        pairs = list(itertools.product(range(queries), range(keys)))
        s = {
            (i, j): float(sum(each.query[b, h, i, d] * each.key[b, h, j, d] for d in range(DIM))) / math.sqrt(DIM)
            + (0.0 if bias is None else float(bias[b, h, i, j]))
            for i, j in pairs
        }
        seen = {(i, j): s[i, j] > -1e30 and visible(each.visibility, b, i, j, queries, keys) for i, j in pairs}
        for (i, j), weight in definition(config, s, seen, each.visibility, queries, keys).items():
            weights[b, h, i, j] = weight
    return weights
