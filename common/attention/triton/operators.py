"""The kernels as PyTorch operators with gradients, each a single node for torch.compile and checkpointing.

They are made by ``custom_op``, because ``triton_op`` fails PyTorch's ``opcheck`` under Triton's interpreter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.activations import ElementwiseRule
from seqarena.common.attention.triton import doubly_normalized, elementwise
from seqarena.common.attention.triton.arguments import (
    bias_gradient,
    dropout_of,
    masks_of,
    row_products,
    seed_of,
    segments_of,
    window_of,
)
from seqarena.common.attention.triton.launch import HEAVY, Role, heavy_roles, run
from seqarena.common.attention.triton.prefix_operators import attend_prefix
from seqarena.common.attention.visibility import Visibility, for_backward


class ElementwiseCall(NamedTuple):
    """Arguments of the elementwise operators."""

    query: Tensor
    """B H N D; padding is 0, also in keys and values."""
    key: Tensor
    value: Tensor
    bias: Tensor | None
    """B H N M, of any strides; may be NaN for padding."""
    row_scale: Tensor
    """Factor of each row (B, N), float32. For x^power it includes scale^power."""
    query_real: Tensor | None
    """False for padding (B, N); used with a bias only."""
    key_real: Tensor | None
    segments: Tensor | None
    """Number of each key's packed sequence (B, M); the queries are the last keys."""
    seed: Tensor
    """Seed of dropout; a CPU tensor."""
    dropout: float
    phi: str
    power: int
    causal: bool
    memory: int
    window: int
    """0 for no window."""

    def contiguous(self) -> "ElementwiseCall":
        """Returns the call with tensors as the kernels read them; they read the bias with any strides."""
        names = ("query", "key", "value", "row_scale")
        return self._replace(**{name: getattr(self, name).contiguous() for name in names})

    def launcher(self) -> Callable[..., None]:
        """Returns a function that launches a kernel on tensors."""
        bits, settings = dropout_of(self.query, self.key, self.seed, self.dropout)
        bias, heavy = self._bias(), self.bias is not None
        names = ("batch_stride", "head_stride", "row_stride", "key_stride")
        settings |= dict(zip(names, bias[0].stride(), strict=True))

        def launch(kernel: Any, role: Role, *tensors: Tensor, learns: bool = False) -> None:
            run(
                kernel, HEAVY[role] if heavy else role, self.query, self.value,
                (*tensors, self.row_scale, *bits, *bias, segments_of(self.query, self.segments)), memory=self.memory,
                PHI=self.phi, POWER=self.power, CAUSAL=self.causal, BIASED=heavy, LEARNS=learns,
                SEGMENTED=self.segments is not None, window=self.window, WINDOWED=self.window > 0, **settings,
            )  # fmt: skip

        return launch

    def _bias(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the bias and both masks as the kernels read them; without a bias, tensors that are not read."""
        if self.bias is None:
            return (self.query,) * 3
        bias = self.bias.expand(*self.query.shape[:3], self.key.shape[2])
        return bias, *masks_of(self.query, self.key, self.query_real, self.key_real)


def attend_elementwise(
    rule: ElementwiseRule, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Tensor | None,
    dropout: float,
) -> Tensor:  # fmt: skip
    """Returns sum_j phi(s_ij)^power value_j, divided by the row divisor; same dropout mask as the blockwise engine."""
    scale = _row_scale(rule, query, key, visibility, dropout)
    seed = seed_of(dropout, query.device)
    query, key, value = visibility.clear(query, key, value, contiguous=True)
    output: Tensor = elementwise_forward(
        query, key, value, bias, scale, visibility.query_real, visibility.key_real, visibility.segments, seed, dropout,
        rule.phi, rule.power, visibility.order == "causal", visibility.memory,
        window_of(visibility, key.shape[2]),
    )  # fmt: skip
    return output


def _row_scale(rule: ElementwiseRule, query: Tensor, key: Tensor, visibility: Visibility, dropout: float) -> Tensor:
    """Returns the factor of each row of the output (B N), 0 for padded queries. Layers with one mask share it."""
    (batch, _, queries, width), keys = query.shape, key.shape[2]

    def make() -> Tensor:
        counts = visibility.counts(batch, queries, keys, query.device).float()
        scale = (counts > 0) / rule.row_divisor(counts) / (1 - dropout)
        # For phi(s) = s the kernels do not scale the scores.
        return scale * width ** (-0.5 * rule.power) if rule.phi == "x" else scale

    is_one_mask = visibility.query_real is None or visibility.query_real is visibility.key_real
    masks = [each for each in (visibility.key_real, visibility.segments) if each is not None]
    if not masks or not is_one_mask:
        return make()
    return visibility.share(("row scale", rule, dropout, queries, width), masks[0], make, *masks[1:])


@torch.library.custom_op("seqarena::triton_elementwise", mutates_args=())
def elementwise_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, row_scale: Tensor, query_real: Tensor | None,
    key_real: Tensor | None, segments: Tensor | None, seed: Tensor, dropout: float, phi: str, power: int, causal: bool,
    memory: int, window: int,
) -> Tensor:  # fmt: skip
    """Returns the output (B H N E) in the dtype of ``value``."""
    call = ElementwiseCall(
        query, key, value, bias, row_scale, query_real, key_real, segments, seed, dropout, phi, power, causal, memory,
        window,
    ).contiguous()  # fmt: skip
    out = value.new_empty(*query.shape[:3], value.shape[3])
    call.launcher()(elementwise.elementwise_forward, "forward", call.query, call.key, call.value, out)
    return out


@torch.library.custom_op("seqarena::triton_elementwise_backward", mutates_args=())
def elementwise_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, row_scale: Tensor,
    query_real: Tensor | None, key_real: Tensor | None, segments: Tensor | None, seed: Tensor, dropout: float,
    phi: str, power: int, causal: bool, memory: int, window: int, learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key, value and bias, the last without elements unless it ``learns``."""
    call = ElementwiseCall(
        query, key, value, bias, row_scale, query_real, key_real, segments, seed, dropout, phi, power, causal, memory,
        window,
    ).contiguous()  # fmt: skip
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in call[:3])
    grad_bias = bias_gradient(query, bias, learns)
    if causal:
        grad_bias.zero_()  # keys that are later or before the window
    if grad.dtype != torch.float16:  # in which the product could underflow
        grad = torch.mul(grad, row_scale[:, None, :, None], out=torch.empty_like(grad))
    launch, inputs = call.launcher(), (call.query, call.key, call.value, grad.contiguous())
    launch(elementwise.elementwise_backward_queries, "queries", *inputs, grad_query, grad_bias, learns=learns)
    launch(elementwise.elementwise_backward_keys, "keys", *inputs, grad_key, grad_value)
    return grad_query, grad_key, grad_value, grad_bias


@elementwise_forward.register_fake
def _(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return value.new_empty(*query.shape[:3], value.shape[3])


@elementwise_backward.register_fake
def _(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *more: Any) -> tuple[Tensor, ...]:
    grads = (torch.empty_like(each) for each in (query, key, value))
    return *grads, bias_gradient(query, bias, more[-1])


def _setup_elementwise(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*map(for_backward, inputs[:9]))
    ctx.settings = inputs[9:]


def _elementwise_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    learns = ctx.needs_input_grad[3]
    *found, grad_bias = elementwise_backward(grad, *ctx.saved_tensors, *ctx.settings, learns)
    return *found, grad_bias if learns else None, *([None] * 11)


elementwise_forward.register_autograd(_elementwise_backward, setup_context=_setup_elementwise)


def attend_doubly_normalized(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Tensor | None, dropout: float,
    mixing: Tensor | None = None, state: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns doubly-normalised attention, 0 for padded queries, and with an order the state after the last query.

    Dropout has the same mask as in the engine. ``mixing``: u of each head (H), for hybrid attention, whose halves are
    computed from the same scores. ``bias`` and ``state``: with an order only, as for ``attend_prefix``.
    """
    if visibility.order != "none":
        return attend_prefix(query, key, value, visibility, bias, dropout, mixing, state)
    is_one_mask = visibility.query_real is visibility.key_real
    offsets = [
        _offset(query, visibility, "query", visibility.query_real),
        _offset(key, visibility, "query" if is_one_mask else "key", visibility.key_real),
    ]
    query, key, value = visibility.clear(query, key, value, contiguous=True)
    u = query.new_zeros(0, dtype=torch.float32) if mixing is None else mixing.float()
    output: Tensor = doubly_normalized_forward(
        query, key, value, u, seed_of(dropout, query.device), visibility.segments, *offsets, dropout, mixing is not None
    )[0]
    return output, None


def _offset(tensor: Tensor, visibility: Visibility, name: str, real: Tensor | None) -> Tensor:
    """Returns the offset of each row or column of scores (B length): 0, or far below all scores at padding."""
    if real is None:
        return torch.zeros(tensor.shape[0], tensor.shape[2], device=tensor.device)
    return visibility.share(("offset", name), real, lambda: torch.where(real, 0.0, doubly_normalized.FAR.value))


@torch.library.custom_op("seqarena::triton_doubly_normalized", mutates_args=())
def doubly_normalized_forward(
    query: Tensor, key: Tensor, value: Tensor, mixing: Tensor, seed: Tensor, segments: Tensor | None,
    query_offset: Tensor, key_offset: Tensor, dropout: float, mixed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the output (B H N E) in the dtype of ``value``, and intermediate results for the gradients.

    These are c_j (B H M) and rho_i (B H N) times log2(e), float32; and if ``mixed``, the outputs of both halves, and
    sigma_i as rho_i.

    Args:
        query: B H N D; padding is 0, also in keys and values.
        key: B H M D.
        value: B H M E.
        mixing: u of each head (H), float32, if ``mixed``.
        seed: Seed of dropout; a CPU tensor.
        segments: Number of the packed sequence of each position (B, M).
        query_offset: 0 for real queries, ``FAR`` for padding; (B, N), float32.
        key_offset: The same for keys; (B, M).
        dropout: Probability of dropping a weight.
        mixed: Whether the attention is hybrid.
    """
    query, key, value, mixing, query_offset, key_offset = (
        each.contiguous() for each in (query, key, value, mixing, query_offset, key_offset)
    )
    out, column_lse, row_lse, doubly, softmax, softmax_lse = _results(query, key, value, mixed)
    bits, settings = dropout_of(query, key, seed, dropout)
    packed, is_packed = segments_of(query, segments), segments is not None
    run(
        doubly_normalized.column_logsumexp, "columns", query, value,
        (query, key, query_offset, key_offset, column_lse, packed), SEGMENTED=is_packed,
    )  # fmt: skip
    run(
        doubly_normalized.normalized_forward, heavy_roles(mixed or dropout > 0)[0], query, value,
        (
            query, key, value, column_lse, query_offset, doubly if mixed else out, row_lse, softmax, softmax_lse, *bits,
            packed,
        ), MIXED=mixed, SEGMENTED=is_packed, **settings,
    )  # fmt: skip
    if mixed:
        out.copy_(torch.lerp(softmax.float(), doubly.float(), mixing[:, None, None]))
    return out, column_lse, row_lse, doubly, softmax, softmax_lse


def _results(query: Tensor, key: Tensor, value: Tensor, mixed: bool) -> tuple[Tensor, ...]:
    """Returns empty results of ``doubly_normalized_forward``; without a mixture its last three have no elements."""
    rows = query.shape[:3]
    halves, half_rows = (*rows, value.shape[3]) if mixed else (0,), rows if mixed else (0,)
    return (
        value.new_empty(*rows, value.shape[3]),
        query.new_empty(key.shape[:3], dtype=torch.float32),
        query.new_empty(rows, dtype=torch.float32),
        value.new_empty(halves),
        value.new_empty(halves),
        query.new_empty(half_rows, dtype=torch.float32),
    )


@torch.library.custom_op("seqarena::triton_doubly_normalized_backward", mutates_args=())
def doubly_normalized_backward(
    grad: Tensor, out: Tensor, column_lse: Tensor, row_lse: Tensor, doubly: Tensor, softmax: Tensor,
    softmax_lse: Tensor, query: Tensor, key: Tensor, value: Tensor, mixing: Tensor, seed: Tensor,
    segments: Tensor | None, dropout: float, mixed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key, value and the mixing weights."""
    query, key, value, mixing = (each.contiguous() for each in (query, key, value, mixing))
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in (query, key, value))
    grad, column_grad = grad.contiguous(), torch.empty_like(column_lse)
    delta, row_sum = row_products(grad, doubly if mixed else out, row_lse, sums=True)
    softmax_delta = row_products(grad, softmax, softmax_lse, sums=False)[0] if mixed else softmax_lse
    bits, settings = dropout_of(query, key, seed, dropout)
    inputs = (query, key, value, grad, column_lse, row_lse, row_sum, delta)
    more = (softmax_lse, softmax_delta, mixing, *bits, segments_of(query, segments))
    _, keys_role, queries_role = heavy_roles(mixed or dropout > 0)
    for kernel, role, results in (
        (doubly_normalized.normalized_backward_keys, keys_role, (grad_key, grad_value, column_grad)),
        (doubly_normalized.normalized_backward_queries, queries_role, (column_grad, grad_query)),
    ):
        run(
            kernel, role, query, value, (*inputs, *results, *more), MIXED=mixed, SEGMENTED=segments is not None,
            **settings,
        )  # fmt: skip
    grad_mixing = (delta - softmax_delta).sum(dim=(0, 2)) if mixed else torch.empty_like(mixing)
    return grad_query, grad_key, grad_value, grad_mixing


@doubly_normalized_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *settings: Any) -> tuple[Tensor, ...]:
    return _results(query, key, value, settings[-1])


@doubly_normalized_backward.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in given[7:11])


def _setup_doubly_normalized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *map(for_backward, inputs[:6]))
    ctx.settings = inputs[8:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _doubly_normalized_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 10
    return *doubly_normalized_backward(grad, *ctx.saved_tensors, *ctx.settings), *([None] * 6)


doubly_normalized_forward.register_autograd(_doubly_normalized_backward, setup_context=_setup_doubly_normalized)
