"""What happens inside a model: how alike its tokens are, how large its attention and that attention's gradient.

Pure functions. P1, P3: the papers of the README. Tokens are (B T C) with a mask (B T), or None where all are real;
attention is that of one kernel call. Sums over queries and keys go block by block through the engine's own tiles.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.attention.base import Kernel
from common.attention.blockwise import carried
from common.attention.masses import column_masses, prefix
from common.attention.tiles import Blocking, Call, Tile
from common.attention.visibility import Visibility
from common.model.blocks import Residual
from common.model.transformer import DecoderLayer
from common.shapes import Bias, Hidden, Key, Mask, Query

SPECTRUM_LENGTH = 1024
"""Longest sequence whose attention's eigenvalues are taken: their cost grows with the cube of the length."""


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


def jacobian_softmax(weights: Tensor) -> Tensor:
    """Returns the squared Frobenius norm of d softmax / d scores, given whole rows of weights (... R M); ... .

    Per row sum over l of P_il^2 (1 - 2 P_il + ||P_i.||^2), which is P1's Jacobian summed over j.
    """
    return _own_rows(weights, weights).sum(dim=(-2, -1))


def jacobian_doubly(weights: Tensor, columns: Tensor, column_norm: Tensor) -> Tensor:
    """Returns that of d dnas / d scores; ``columns`` X = exp(s - c), ``column_norm`` ||X_.l||^2 over all queries.

    The sum over i, l of P_il^2 (1 - 2 P_il + ||P_i.||^2) (1 - 2 X_il + ||X_.l||^2).
    """
    return (_own_rows(weights, weights) * (1 - 2 * columns + column_norm)).sum(dim=(-2, -1))


def jacobian_mixed(share: Tensor, softmax: Tensor, doubly: Tensor, columns: Tensor, column_norm: Tensor) -> Tensor:
    """Returns that of d hnas / d scores: u^2 and (1 - u)^2 of the halves' own, and twice u (1 - u) their product."""
    inner = (_own_rows(doubly, softmax) * (1 - columns)).sum(dim=(-2, -1))
    own = share**2 * jacobian_doubly(doubly, columns, column_norm) + (1 - share) ** 2 * jacobian_softmax(softmax)
    return own + 2 * share * (1 - share) * inner


def _own_rows(one: Tensor, other: Tensor) -> Tensor:
    """Returns sum_j of dP_ij/ds_il dQ_ij/ds_il for two softmaxes P, Q of the row's scores; ... R M."""
    product = one * other
    return product * (1 - one - other + product.sum(dim=-1, keepdim=True))


class AttentionSize(NamedTuple):
    """How large the weights of one attention are; each B H."""

    norm: Tensor
    """Frobenius norm of the attention matrix."""
    jacobian_norm: Tensor | None
    """Frobenius norm of its derivative by the scores; None: not defined (iterated and prefix forms, other formulas)."""
    smallest_key_mass: Tensor
    """min over real keys j of sum_i pi_ij."""
    key_mass_bound: Tensor
    """What the variant promises of that: P2's Lemma 1, 1 / (real keys), times u; else 0."""


@torch.no_grad()
def attention_size(
    kernel: Kernel, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None
) -> AttentionSize:
    """Returns the sizes of a kernel's weights before dropout, in time N^2 and memory linear in N.

    Raises:
        TypeError: a variant without a rule.
    """
    call = call_of(kernel, query, key, visibility, bias)
    with torch.autocast(query.device.type, enabled=False):
        return _summed(call)


def call_of(kernel: Kernel, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None) -> Call:
    """Returns a kernel's call without dropout, in blocks of whole rows.

    Raises:
        TypeError: a variant without a rule.
    """
    kernel.check(visibility, bias, query=query, key=key)
    rule = kernel.rule
    if rule is None:
        raise TypeError(f"{type(kernel).__name__} has no rule to take its weights from block by block")
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    blocking = Blocking.choose(rule, batch * heads, queries, keys, visibility.order, 0.0, query.device)
    blocking = Blocking(heads=blocking.heads, rows=min(blocking.rows, 64), keys=keys)
    return Call.of(query, key, key, bias, visibility, rule, kernel.share(), blocking, 0.0, 0)


def _summed(call: Call) -> AttentionSize:
    rule, visibility, batch, heads, keys = call.rule, call.visibility, call.batch, call.heads, call.key.shape[1]
    squared, jacobian = (call.query.new_zeros(len(call.query)) for _ in range(2))
    mass = call.key.new_zeros(call.key.shape[:2])
    for some in call.head_blocks():
        for tile, weights, slope in whole_rows(call, some):
            squared[some] += weights.square().sum(dim=(1, 2))
            mass[some, tile.keys] += weights.sum(dim=1)
            jacobian[some] += slope
    real = visibility.key_real
    shown = mass if real is None else mass.masked_fill(~real.repeat_interleave(heads, dim=0), torch.inf)
    count = mass.new_full((batch,), keys) if real is None else real.sum(dim=1).to(mass.dtype)
    promised = call.column_rounds > 0 and visibility.segments is None
    share = 1.0 if call.share is None else call.share[:, 0, 0]
    bound = (1 / count).repeat_interleave(heads) * share if promised else torch.zeros_like(squared)
    known = rule.is_mixture or not rule.whole_rows
    defined = known and not call.is_prefix and rule.rounds <= 1
    shape = batch, heads
    return AttentionSize(
        norm=squared.sqrt().view(shape),
        jacobian_norm=jacobian.sqrt().view(shape) if defined else None,
        smallest_key_mass=shown.amin(dim=1).view(shape),
        key_mass_bound=bound.view(shape),
    )


def whole_rows(call: Call, heads: slice) -> Iterator[tuple[Tile, Tensor, Tensor]]:
    """Yields whole rows of weights (G rows keys), and the squared norm of their derivative by the scores (G).

    The norm is 0 where it is not defined.
    """
    mass = column_masses(call, heads)[:, -1:] if call.column_rounds else None
    carry = carried(call, None)[heads] if call.is_prefix else None
    column_norm = torch.zeros(())
    if mass is not None:
        column_norm = torch.zeros_like(mass)
        for rows in call.row_blocks():
            for tile in call.tiles(heads, rows):
                column_norm += call.scores(tile).sub_(mass).exp_().square_().sum(dim=1, keepdim=True)
    share = None if call.share is None else call.share[heads]
    for rows in call.row_blocks():
        for tile in call.tiles(heads, rows):
            scores, scale = call.scores(tile), call.row_scale[heads, rows]
            if not call.rule.whole_rows:
                yield tile, *_elementwise(call, tile, scores, scale)
                continue
            doubly = columns = None
            if mass is not None:
                columns = (scores - mass).exp_()
                doubly = (scores - mass).softmax(dim=-1).mul_(scale)
            elif carry is not None:
                block = prefix(scores, carry[:, :, tile.keys], call.late(tile), call.masked, call.scratch)
                doubly, carry[:, :, tile.keys] = block.doubly.clone().mul_(scale), block.last
            slope = scores.new_zeros(len(scores))
            if columns is not None and doubly is not None:
                slope = jacobian_doubly(doubly, columns, column_norm)
                if share is not None:
                    softmax = scores.softmax(dim=-1).mul_(scale)
                    slope = jacobian_mixed(share[:, 0, 0], softmax, doubly, columns, column_norm)
            elif carry is None:
                slope = jacobian_softmax(scores.softmax(dim=-1).mul_(scale))
            weights, _ = call.rule.apply(scores, doubly, share, call.scratch)
            yield tile, weights * scale, slope


def _elementwise(call: Call, tile: Tile, scores: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weights of whole rows, and the squared norm of their derivative: elementwise, like they."""
    real = call.visibility.key_real
    seen = scale if real is None else scale * real[:, tile.keys].repeat_interleave(call.heads, dim=0)[tile.heads, None]
    weights, kept = call.rule.apply(scores, None, None, call.scratch)
    weights = call.hide(weights * seen, tile)
    pulled = call.rule.pull(kept, torch.ones_like(weights), call.scratch)
    assert pulled.scores is not None
    return weights, call.hide(pulled.scores * (pulled.factor * seen), tile).square().sum(dim=(1, 2))


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
        if kernel.rule is None:
            return
        size = attention_size(kernel, query, key, visibility, bias)
        note("attention_norm", size.norm)
        if size.jacobian_norm is not None:
            note("attention_jacobian_norm", size.jacobian_norm)
        note("smallest_key_mass", size.smallest_key_mass, torch.amin)
        note("key_mass_bound", size.key_mass_bound, torch.amin)
        tokens = query.shape[2]
        plain = visibility.segments is None and bias is None and key.shape[2] == tokens <= SPECTRUM_LENGTH
        whole = [0] if visibility.query_real is None else visibility.query_real.all(dim=1).nonzero().flatten().tolist()
        if plain and whole and kernel.rule.is_mixture:
            one = slice(whole[0], whole[0] + 1)
            note("spectral_gap", spectral_gap(kernel.weights(query[one], key[one], Visibility(order=visibility.order))))

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
    shares = [float(share.mean()) for kernel in kernels if (share := kernel.share()) is not None]
    return found | ({"hybrid_weight": shares} if shares else {})
