"""The kernels as PyTorch operators with gradients, each a single node for torch.compile and checkpointing.

They are made by ``custom_op``, because ``triton_op`` fails PyTorch's ``opcheck`` under Triton's interpreter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from seqarena.common.attention.activations import ElementwiseRule
from seqarena.common.attention.tiles import Call
from seqarena.common.attention.triton import doubly_normalized, elementwise
from seqarena.common.attention.triton.launch import Role, run, tile_width
from seqarena.common.attention.visibility import Visibility


class ElementwiseCall(NamedTuple):
    """Arguments of the elementwise operators."""

    query: Tensor
    """B H N D; padding is 0, also in keys and values."""
    key: Tensor
    value: Tensor
    row_scale: Tensor
    """Factor of each row (B, N), float32. For x^power it includes scale^power."""
    seed: Tensor
    """Seed of dropout; a CPU tensor."""
    dropout: float
    phi: str
    power: int
    causal: bool
    memory: int

    def launcher(self) -> Callable[..., None]:
        """Returns a function that launches a kernel on tensors."""
        (batch, heads, rows, _), keys = self.query.shape, self.key.shape[2]
        drops, device = self.dropout > 0, self.query.device
        bits = (
            Call.bits_of(int(self.seed), batch * heads, (rows, keys), device) if drops
            else (torch.zeros(1, dtype=torch.int32, device=device),) * 2
        )  # fmt: skip
        limit = Call.limit_of(self.dropout) if drops else 0

        def launch(kernel: Any, role: Role, *tensors: Tensor) -> None:
            run(
                kernel, role, self.query, self.value, (*tensors, self.row_scale, *bits), memory=self.memory,
                limit=limit, PHI=self.phi, POWER=self.power, CAUSAL=self.causal, DROPS=drops,
            )  # fmt: skip

        return launch


def attend_elementwise(
    rule: ElementwiseRule, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, dropout: float
) -> Tensor:
    """Returns sum_j phi(s_ij)^power value_j, divided by the row divisor; same dropout mask as the blockwise engine."""
    counts = visibility.counts(query.shape[0], query.shape[2], key.shape[2], query.device).float()
    scale = (counts > 0) / rule.row_divisor(counts) / (1 - dropout)
    if rule.phi == "x":  # for which the kernels do not scale the scores
        scale = scale * query.shape[3] ** (-0.5 * rule.power)
    seed = torch.randint(2**62, ()) if dropout else torch.zeros((), dtype=torch.int64, device=query.device)
    query, key, value = (each.contiguous() for each in visibility.clear(query, key, value))
    output: Tensor = elementwise_forward(
        query, key, value, scale, seed, dropout, rule.phi, rule.power, visibility.order == "causal",
        visibility.memory,
    )  # fmt: skip
    return output


@torch.library.custom_op("seqarena::triton_elementwise", mutates_args=())
def elementwise_forward(
    query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor, seed: Tensor, dropout: float, phi: str, power: int,
    causal: bool, memory: int,
) -> Tensor:  # fmt: skip
    """Returns the output (B H N E) in the dtype of ``value``."""
    query, key, value, row_scale = (each.contiguous() for each in (query, key, value, row_scale))
    call = ElementwiseCall(query, key, value, row_scale, seed, dropout, phi, power, causal, memory)
    out = value.new_empty(*query.shape[:3], value.shape[3])
    call.launcher()(elementwise.elementwise_forward, "forward", query, key, value, out)
    return out


@torch.library.custom_op("seqarena::triton_elementwise_backward", mutates_args=())
def elementwise_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor, seed: Tensor, dropout: float, phi: str,
    power: int, causal: bool, memory: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key and value."""
    query, key, value, row_scale = (each.contiguous() for each in (query, key, value, row_scale))
    call = ElementwiseCall(query, key, value, row_scale, seed, dropout, phi, power, causal, memory)
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in (query, key, value))
    if grad.dtype != torch.float16:  # in which the product could underflow
        grad = torch.mul(grad, row_scale[:, None, :, None], out=torch.empty_like(grad))
    launch, inputs = call.launcher(), (query, key, value, grad.contiguous())
    launch(elementwise.elementwise_backward_queries, "queries", *inputs, grad_query)
    launch(elementwise.elementwise_backward_keys, "keys", *inputs, grad_key, grad_value)
    return grad_query, grad_key, grad_value


@elementwise_forward.register_fake
def _(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return value.new_empty(*query.shape[:3], value.shape[3])


@elementwise_backward.register_fake
def _(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup_elementwise(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _elementwise_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    found = elementwise_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return *found, *([None] * 7)


elementwise_forward.register_autograd(_elementwise_backward, setup_context=_setup_elementwise)


ROWS_OF_PRODUCTS = 64
"""Rows per program of ``row_products``, which is bound by memory."""


def attend_doubly_normalized(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility) -> Tensor:
    """Computes doubly-normalised attention without an order; 0 for padded queries."""
    (batch, _, rows, _), keys = query.shape, key.shape[2]
    offsets = [
        torch.zeros(batch, length, device=query.device) if mask is None
        else torch.where(mask, 0.0, doubly_normalized.FAR.value)
        for mask, length in ((visibility.query_real, rows), (visibility.key_real, keys))
    ]  # fmt: skip
    query, key, value = (each.contiguous() for each in visibility.clear(query, key, value))
    output: Tensor = doubly_normalized_forward(query, key, value, *offsets)[0]
    return output


@torch.library.custom_op("seqarena::triton_doubly_normalized", mutates_args=())
def doubly_normalized_forward(
    query: Tensor, key: Tensor, value: Tensor, query_offset: Tensor, key_offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output (B H N E) in the dtype of ``value``; c_j (B H M) and rho_i (B H N) times log2(e), float32.

    Args:
        query: B H N D; padding is 0, also in keys and values.
        key: B H M D.
        value: B H M E.
        query_offset: 0 for real queries, ``FAR`` for padding; (B, N), float32.
        key_offset: The same for keys; (B, M).
    """
    query, key, value, query_offset, key_offset = (
        each.contiguous() for each in (query, key, value, query_offset, key_offset)
    )
    out = value.new_empty(*query.shape[:3], value.shape[3])
    column_lse = query.new_empty(key.shape[:3], dtype=torch.float32)
    row_lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    column_arguments, row_arguments = (
        (query, key, query_offset, key_offset, column_lse),
        (query, key, value, column_lse, query_offset, out, row_lse),
    )
    run(doubly_normalized.column_logsumexp, "columns", query, value, column_arguments)
    run(doubly_normalized.normalized_forward, "forward", query, value, row_arguments)
    return out, column_lse, row_lse


@torch.library.custom_op("seqarena::triton_doubly_normalized_backward", mutates_args=())
def doubly_normalized_backward(
    grad: Tensor, out: Tensor, column_lse: Tensor, row_lse: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key and value."""
    query, key, value = (each.contiguous() for each in (query, key, value))
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in (query, key, value))
    grad, column_grad = grad.contiguous(), torch.empty_like(column_lse)
    delta, row_sum = torch.empty_like(row_lse), torch.empty_like(row_lse)
    (*heads, rows), width = row_lse.shape, value.shape[3]
    blocks = triton.cdiv(rows, ROWS_OF_PRODUCTS)
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        doubly_normalized.row_products[(blocks * heads[0] * heads[1],)](
            grad, out, row_lse, delta, row_sum, rows, width, ROWS=ROWS_OF_PRODUCTS, VALUE_WIDTH=tile_width(width)
        )
    inputs = (query, key, value, grad, column_lse, row_lse, row_sum, delta)
    key_arguments, query_arguments = (*inputs, grad_key, grad_value, column_grad), (*inputs, column_grad, grad_query)
    run(doubly_normalized.normalized_backward_keys, "keys_and_masses", query, value, key_arguments)
    run(doubly_normalized.normalized_backward_queries, "queries", query, value, query_arguments)
    return grad_query, grad_key, grad_value


@doubly_normalized_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        value.new_empty(*query.shape[:3], value.shape[3]),
        query.new_empty(key.shape[:3], dtype=torch.float32),
        query.new_empty(query.shape[:3], dtype=torch.float32),
    )


@doubly_normalized_backward.register_fake
def _(_grad: Tensor, _out: Tensor, _mass: Tensor, _row_sum: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = inputs[:3]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup_doubly_normalized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:3])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _doubly_normalized_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 5
    return *doubly_normalized_backward(grad, *ctx.saved_tensors), None, None


doubly_normalized_forward.register_autograd(_doubly_normalized_backward, setup_context=_setup_doubly_normalized)
