"""Measurements inside a model: similarity of its tokens, norms of its attention and of the attention's gradient.

Pure functions. P1, P3: the papers of the README. Tokens are (B T C) with a mask (B T), or None where all are real;
attention is that of one kernel call, whose weights come some queries at a time (``Kernel.weight_rows``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.blocks import Residual
from seqarena.common.model.transformer import DecoderLayer
from seqarena.common.shapes import Bias, Hidden, Key, Mask, Query

SPECTRUM_LENGTH = 1024
"""Longest sequence whose attention's eigenvalues are taken: their cost grows with the cube of the length."""
ROUNDING = 1e-3
"""By which a row's sum may differ from 1."""


def token_similarity(tokens: Hidden, real: Mask | None = None) -> Tensor:
    """Returns ||mean||^2 n / ||X||_F^2 of the real tokens of each example (P3, Definition 1); B, from 0 to 1."""
    tokens, count = _real(tokens, real)
    return tokens.sum(dim=1).square().sum(dim=1) / count / tokens.square().sum(dim=(1, 2))


def token_diversity(tokens: Hidden, real: Mask | None = None) -> Tensor:
    """Returns the share of ||X||_F^2 that the mean token does not explain, 1 - similarity; B.

    From the deviations, so that it stays exact where tokens are all but equal.
    """
    tokens, count = _real(tokens, real)
    mean = tokens.sum(dim=1, keepdim=True) / count[:, None, None]
    deviations = tokens - (mean if real is None else mean * real[..., None])
    return deviations.square().sum(dim=(1, 2)) / tokens.square().sum(dim=(1, 2))


def mean_cosine(tokens: Hidden, real: Mask | None = None) -> Tensor:
    """Returns the mean cosine between two different real tokens of each example; B. 1 where there is only one."""
    tokens, count = _real(tokens, real)
    directions = nn.functional.normalize(tokens, dim=2)
    total = directions.sum(dim=1).square().sum(dim=1) - directions.square().sum(dim=(1, 2))
    return torch.where(count > 1, total / (count * (count - 1)).clamp(min=1), torch.ones_like(total))


def escalation_rate(before: Hidden, after: Hidden, real: Mask | None = None) -> Tensor:
    """Returns r(X, Y) = diversity(X) / diversity(Y): above 1 where tokens become more alike (P3); B."""
    return token_diversity(before, real) / token_diversity(after, real)


def _real(tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns tokens in float32 at least with 0 for padding, and how many are real."""
    tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    if real is None:
        return tokens, tokens.new_full((len(tokens),), tokens.shape[1])
    return tokens.masked_fill(~real[..., None], 0.0), real.sum(dim=1).to(tokens.dtype)


def spectral_gap(weights: Tensor) -> Tensor:
    """Returns 1 - |second largest eigenvalue| of square attention matrices (... N N), rows summing to 1; ...

    Eigenvalues of a causal matrix are its diagonal. Costs N^3; meant for single sequences without padding.
    """
    above = weights.triu(diagonal=1)
    values = weights.diagonal(dim1=-2, dim2=-1) if not above.any() else torch.linalg.eigvals(weights)
    if values.shape[-1] == 1:
        return torch.ones_like(values[..., 0].abs())
    return 1 - values.abs().sort(dim=-1, descending=True).values[..., 1]


class AttentionSize(NamedTuple):
    """How large the weights of one attention are; each B H."""

    norm: Tensor
    """Frobenius norm of the attention matrix."""
    jacobian_norm: Tensor | None
    """Frobenius norm of its derivative by the scores; None: not defined (iterated and prefix forms, other formulas)."""
    smallest_key_mass: Tensor
    """min over real keys j of sum_i pi_ij."""
    key_mass_bound: Tensor
    """Lower bound that the variant guarantees for it: 1 / (real keys) (P2, Lemma 1), times u; 0 without a guarantee."""


@torch.no_grad()
def attention_size(
    kernel: Kernel, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None
) -> AttentionSize:
    """Returns the sizes of a kernel's weights before dropout, in time N^2.

    Memory is linear in N, but for formulas that need all queries at once.
    """
    batch, heads, keys = query.shape[0], query.shape[1], key.shape[2]
    wide = torch.promote_types(query.dtype, torch.float32)
    squared, slope = (query.new_zeros(batch * heads, dtype=wide) for _ in range(2))
    mass = query.new_zeros(batch * heads, keys, dtype=wide)
    is_defined = True
    with torch.autocast(query.device.type, enabled=False):
        for rows in kernel.weight_rows(query, key, visibility, bias):
            squared[rows.heads] += rows.weights.square().sum(dim=(1, 2))
            mass[rows.heads, rows.keys] += rows.weights.sum(dim=1)
            is_defined = rows.slope is not None
            slope[rows.heads] += 0.0 if rows.slope is None else rows.slope
    real = visibility.key_real
    shown = mass if real is None else mass.masked_fill(~real.repeat_interleave(heads, dim=0), torch.inf)
    shape = batch, heads
    return AttentionSize(
        norm=squared.sqrt().view(shape),
        jacobian_norm=slope.sqrt().view(shape) if is_defined else None,
        smallest_key_mass=shown.amin(dim=1).view(shape),
        key_mass_bound=_key_mass_bound(kernel, squared, visibility, keys).view(shape),
    )


def _key_mass_bound(kernel: Kernel, like: Tensor, visibility: Visibility, keys: int) -> Tensor:
    """Returns the least mass that a key can have, for each head of each example; 0 where nothing is promised."""
    rule, real, share = kernel.rule, visibility.key_real, kernel.mixing_weight()
    if rule is None or rule.rounds == 0 or visibility.order != "none" or visibility.segments is not None:
        return torch.zeros_like(like)
    if real is None:
        bound = torch.full_like(like, 1 / keys)
    else:
        bound = (1 / real.sum(dim=1).to(like.dtype)).repeat_interleave(len(like) // len(real))
    if share is None:
        return bound
    heads = share.flatten().to(like.dtype)
    return bound * heads.repeat(len(like) // len(heads))


@torch.no_grad()
def diagnose(model: nn.Module, run: Callable[[], Any]) -> dict[str, list[float]]:
    """Returns what happens in each layer while ``run`` calls the model: name -> a number a layer.

    Means over the examples and heads for which a number is defined (a single token has no diversity), but for the
    smallest key mass, the smallest of all. ``attention_jacobian_norm`` and
    ``spectral_gap`` are left out where they are not defined: the gap needs self-attention whose rows sum to 1 and one
    example without padding of up to ``SPECTRUM_LENGTH`` tokens.
    """
    found: dict[str, list[float]] = {}

    def note(name: str, values: Tensor, take: Callable[[Tensor], Tensor] = torch.mean) -> None:
        defined = values[values.isfinite()]
        if len(defined):
            found.setdefault(name, []).append(float(take(defined)))

    def after_layer(_: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        before, real = given[0], given[1].query_real if isinstance(given[1], Visibility) else None
        output = output[0] if isinstance(output, tuple) else output  # beside it what a layer carries on
        note("token_similarity", token_similarity(output, real))
        note("mean_cosine", mean_cosine(output, real))
        note("escalation_rate", escalation_rate(before, output, real))

    def after_kernel(kernel: nn.Module, given: tuple[Any, ...], _: Tensor) -> None:
        assert isinstance(kernel, Kernel)
        query, key, _, visibility = given[:4]
        bias = given[4] if len(given) > 4 else None
        size = attention_size(kernel, query, key, visibility, bias)
        note("attention_norm", size.norm)
        if size.jacobian_norm is not None:
            note("attention_jacobian_norm", size.jacobian_norm)
        note("smallest_key_mass", size.smallest_key_mass, torch.amin)
        note("key_mass_bound", size.key_mass_bound, torch.amin)
        tokens = query.shape[2]
        plain = visibility.segments is None and bias is None and key.shape[2] == tokens <= SPECTRUM_LENGTH
        whole = [0] if visibility.query_real is None else visibility.query_real.all(dim=1).nonzero().flatten().tolist()
        if plain and whole:
            one = slice(whole[0], whole[0] + 1)
            weights = kernel.weights(query[one], key[one], Visibility(order=visibility.order))
            if bool(((weights.sum(dim=-1) - 1).abs() < ROUNDING).all()):
                note("spectral_gap", spectral_gap(weights))

    layers = [part for part in model.modules() if isinstance(getattr(part, "residual", None), Residual)]
    layers = [layer for layer in layers if not isinstance(layer, DecoderLayer)]
    aside = {part for module in model.modules() if isinstance(module, DecoderLayer) for part in module.modules()}
    kernels = [part for part in model.modules() if isinstance(part, Kernel) and part not in aside]
    handles = [layer.register_forward_hook(after_layer) for layer in layers]
    handles += [kernel.register_forward_hook(after_kernel) for kernel in kernels]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    shares = [float(share.mean()) for kernel in kernels if (share := kernel.mixing_weight()) is not None]
    return found | ({"hybrid_weight": shares} if shares else {})
