"""Measurements inside a model: token similarity, norms of the attention and of its gradient, key masses.

Pure functions. P1 and P3 are papers cited in the README. Tokens are (B T C) with a mask (B T), or None if all are
real. Attention is that of one kernel call, whose weights are computed for some queries at a time
(``Kernel.weight_rows``).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.mixer import kernels_with_weights
from seqarena.common.attention.module import MultiHeadAttention
from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.norms.base import Residual
from seqarena.common.model.transformer import DecoderLayer
from seqarena.common.shapes import Bias, Hidden, Key, Mask, Query

Diagnostics = dict[str, list[float | None]]
"""Name of a diagnostic -> number of each layer; None where it is not defined."""
SPECTRUM_LENGTH = 1024
"""Longest sequence whose attention eigenvalues are computed. Their cost grows with the cube of the length."""
ROUNDING = 1e-3
"""Tolerance for row sums of 1."""


def token_similarity(tokens: Hidden, real: Mask | None = None) -> Tensor:
    """Returns ||mean||^2 n / ||X||_F^2 of the real tokens of each example (P3's t_sim); B, from 0 to 1."""
    tokens, count = _masked(tokens, real)
    return tokens.sum(dim=1).square().sum(dim=1) / count / tokens.square().sum(dim=(1, 2))


def token_diversity(tokens: Hidden, real: Mask | None = None) -> Tensor:
    """Returns the fraction of ||X||_F^2 that the mean token does not explain, 1 - similarity; B.

    Computed from the deviations, so that it is exact even for almost equal tokens.
    """
    tokens, count = _masked(tokens, real)
    mean = tokens.sum(dim=1, keepdim=True) / count[:, None, None]
    deviations = tokens - (mean if real is None else mean * real[..., None])
    return deviations.square().sum(dim=(1, 2)) / tokens.square().sum(dim=(1, 2))


def mean_cosine(tokens: Hidden, real: Mask | None = None) -> Tensor:
    """Returns the mean cosine between two different real tokens of each example (1 if there is only one); B."""
    tokens, count = _masked(tokens, real)
    directions = nn.functional.normalize(tokens, dim=2, eps=torch.finfo(tokens.dtype).tiny)
    total = directions.sum(dim=1).square().sum(dim=1) - directions.square().sum(dim=(1, 2))
    return torch.where(count > 1, total / (count * (count - 1)).clamp(min=1), torch.ones_like(total))


def escalation_rate(before: Hidden, after: Hidden, real: Mask | None = None) -> Tensor:
    """Returns r(X, Y) = diversity(X) / diversity(Y), above 1 if tokens become more alike (P3); B."""
    return token_diversity(before, real) / token_diversity(after, real)


def _masked(tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns tokens in float64, whose squares do not overflow, with padding set to 0, and the number of real ones."""
    tokens = tokens.double()
    if real is None:
        return tokens, tokens.new_full((len(tokens),), tokens.shape[1])
    return tokens.masked_fill(~real[..., None], 0.0), real.sum(dim=1).to(tokens.dtype)


def spectral_gap(weights: Tensor) -> Tensor:
    """Returns 1 - |second largest eigenvalue| of square attention matrices (... N N) whose rows sum to 1; ...

    The eigenvalues of a causal matrix are its diagonal. Costs N^3, so it is meant for single sequences without
    padding.
    """
    above = weights.triu(diagonal=1)
    values = weights.diagonal(dim1=-2, dim2=-1) if not above.any() else torch.linalg.eigvals(weights)
    if values.shape[-1] == 1:
        return torch.ones_like(values[..., 0].abs())
    return 1 - values.abs().sort(dim=-1, descending=True).values[..., 1]


class AttentionSize(NamedTuple):
    """Norms and key masses of one attention call; each B H."""

    norm: Tensor
    """Frobenius norm of the attention matrix."""
    jacobian_norm: Tensor | None
    """Frobenius norm of the weights' derivative with respect to the scores. None: not defined (iterated and prefix
    forms, other formulas)."""
    smallest_key_mass: Tensor
    """Minimum over real keys j of sum_i pi_ij."""
    key_mass_bound: Tensor
    """Lower bound on the key mass that the variant guarantees: 1 / (real keys) (P2, Lemma 1), times u; 0 without a
    guarantee."""


@torch.no_grad()
def attention_size(
    kernel: Kernel, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None
) -> AttentionSize:
    """Returns the norms and key masses of a kernel's weights before dropout, in time N^2.

    Memory is linear in N, except for formulas that need all queries at once.
    """
    batch, heads, keys = query.shape[0], query.shape[1], key.shape[2]
    squared, slope = (query.new_zeros(batch * heads, dtype=torch.float64) for _ in range(2))
    mass = query.new_zeros(batch * heads, keys, dtype=torch.float64)
    is_defined = True
    with torch.autocast(query.device.type, enabled=False):
        for rows in kernel.weight_rows(query, key, visibility, bias):
            squared[rows.heads] += rows.weights.double().square().sum(dim=(1, 2))
            mass[rows.heads, rows.keys] += rows.weights.sum(dim=1)
            is_defined = rows.slope is not None
            slope[rows.heads] += 0.0 if rows.slope is None else rows.slope
    real = visibility.key_real
    masses = mass if real is None else mass.masked_fill(~real.repeat_interleave(heads, dim=0), torch.inf)
    shape = batch, heads
    return AttentionSize(
        norm=squared.sqrt().view(shape),
        jacobian_norm=slope.sqrt().view(shape) if is_defined else None,
        smallest_key_mass=masses.amin(dim=1).view(shape),
        key_mass_bound=_key_mass_bound(kernel, squared, visibility, keys).view(shape),
    )


def _key_mass_bound(kernel: Kernel, like: Tensor, visibility: Visibility, keys: int) -> Tensor:
    """Returns the guaranteed minimum of the key masses, for each head of each example; 0 without a guarantee."""
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
def diagnose(model: nn.Module, run: Callable[[], Any]) -> Diagnostics:
    """Returns diagnostics of each layer while ``run`` calls the model: name -> one number per layer.

    Each number is the mean over the examples and heads for which it is defined (a single token has no diversity),
    except that the smallest key mass and its bound are minima. It is None in layers where it is defined for none, and a
    name without any number is left out. ``spectral_gap`` needs self-attention whose rows sum to 1, and one example
    without padding of at most ``SPECTRUM_LENGTH`` tokens; ``attention_jacobian_norm`` a rule that defines it.
    """
    found: Diagnostics = {}
    self_attention = {part for part in model.modules() if isinstance(part, Kernel) and not part.crosses}

    def note(name: str, values: Tensor | None, reduce: Callable[[Tensor], Tensor] = torch.mean) -> None:
        defined = None if values is None else values[~values.isnan()]
        number = math.nan if defined is None or not len(defined) else float(reduce(defined))
        found.setdefault(name, []).append(number if math.isfinite(number) else None)  # a part may have overflowed

    def before_attention(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(module, MultiHeadAttention)
        context = named.get("context", inputs[2] if len(inputs) > 2 else None)
        (self_attention.discard if context is not None else self_attention.add)(module.kernel)

    def after_layer(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        before, real = inputs[0], inputs[1].query_real if isinstance(inputs[1], Visibility) else None
        output = output[0] if isinstance(output, tuple) else output  # some layers return (output, state)
        note("token_similarity", token_similarity(output, real))
        note("mean_cosine", mean_cosine(output, real))
        note("escalation_rate", escalation_rate(before, output, real))

    def after_kernel(kernel: nn.Module, inputs: tuple[Any, ...], _: Tensor) -> None:
        assert isinstance(kernel, Kernel)
        query, key, _, visibility = inputs[:4]
        bias = inputs[4] if len(inputs) > 4 else None
        size = attention_size(kernel, query, key, visibility, bias)
        note("attention_norm", size.norm)
        note("attention_jacobian_norm", size.jacobian_norm)
        note("smallest_key_mass", size.smallest_key_mass, torch.amin)
        note("key_mass_bound", size.key_mass_bound, torch.amin)
        has_gap = kernel in self_attention and bias is None
        note("spectral_gap", _gap(kernel, query, key, visibility) if has_gap else None)

    layers = [part for part in model.modules() if isinstance(getattr(part, "residual", None), Residual)]
    layers = [layer for layer in layers if not isinstance(layer, DecoderLayer)]
    in_decoder = {part for module in model.modules() if isinstance(module, DecoderLayer) for part in module.modules()}
    kernels = [part for part in model.modules() if isinstance(part, Kernel) and part not in in_decoder]
    weighted = [kernel for kernel in kernels_with_weights(model) if kernel not in in_decoder]
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    handles = [layer.register_forward_hook(after_layer) for layer in layers]
    handles += [each.register_forward_pre_hook(before_attention, with_kwargs=True) for each in attentions]
    handles += [kernel.register_forward_hook(after_kernel) for kernel in weighted]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    shares = [float(share.mean()) for kernel in kernels if (share := kernel.mixing_weight()) is not None]
    found |= {"hybrid_weight": list(shares)}
    return {name: values for name, values in found.items() if any(each is not None for each in values)}


def _gap(kernel: Kernel, query: Query, key: Key, visibility: Visibility) -> Tensor | None:
    """Returns the spectral gaps of self-attention in one example without padding; None if there is none."""
    length, masks = query.shape[2], (visibility.query_real, visibility.key_real)
    is_whole = visibility.segments is None and visibility.window is None and key.shape[2] == length
    real = torch.ones(len(query), length, dtype=torch.bool, device=query.device)
    for mask in masks if is_whole else ():
        real = real if mask is None else real & mask
    whole = real.all(dim=1).nonzero().flatten().tolist()
    if not is_whole or length > SPECTRUM_LENGTH or not whole:
        return None
    one = slice(whole[0], whole[0] + 1)
    weights = kernel.weights(query[one], key[one], Visibility(order=visibility.order))
    has_sums_of_one = bool(((weights.sum(dim=-1) - 1).abs() < ROUNDING).all())
    return spectral_gap(weights) if has_sums_of_one else None
