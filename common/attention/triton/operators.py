"""The kernels as operators of PyTorch, with their gradients: one node each to ``torch.compile`` and checkpointing.

Operators of ``custom_op``, not of ``triton_op``: those fail PyTorch's own check under Triton's interpreter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.attention.elementwise import ElementwiseRule
from common.attention.tiles import Call
from common.attention.triton import doubly_normalized, elementwise
from common.attention.triton.tiles import room, tiles_for
from common.attention.visibility import Visibility


class ElementwiseCall(NamedTuple):
    """What the elementwise operators take."""

    query: Tensor
    """B H N D, padding 0; so are keys and values."""
    key: Tensor
    value: Tensor
    row_scale: Tensor
    """What each row is multiplied by (B, N), float32."""
    seed: Tensor
    """Of dropout, a number on the CPU."""
    dropout: float
    phi: str
    power: int
    causal: bool
    memory: int

    def launcher(self) -> Callable[..., None]:
        """Returns what runs a kernel, one program for each block of "rows" or "keys" of each head."""
        (batch, heads, rows, width), (keys, value_width) = self.query.shape, self.value.shape[2:]
        drops, device = self.dropout > 0, self.query.device
        bits = (
            Call.bits_of(int(self.seed), batch * heads, (rows, keys), device) if drops
            else (torch.zeros(1, dtype=torch.int32, device=device),) * 2
        )  # fmt: skip
        limit = Call.limit_of(self.dropout) if drops else 0

        def launch(kernel: Any, blocked: str, *tensors: Tensor) -> None:
            tiles = tiles_for(self.query, max(width, value_width), backward=len(tensors) > FORWARD_TENSORS)
            count, size = (rows, tiles.rows) if blocked == "rows" else (keys, tiles.keys)
            with torch.cuda.device_of(self.query):  # type: ignore[no-untyped-call]
                kernel[(-(-count // size) * batch * heads,)](
                    *tensors, self.row_scale, *bits, heads, rows, keys, width, value_width, width**-0.5, self.memory,
                    limit, PHI=self.phi, POWER=self.power, CAUSAL=self.causal, DROPS=drops, ROWS=tiles.rows,
                    KEYS=tiles.keys, WIDTH=room(width), VALUE_WIDTH=room(value_width), num_warps=tiles.warps,
                    num_stages=tiles.stages,
                )  # fmt: skip

        return launch


FORWARD_TENSORS = 4
"""Query, key, value and output; a backward kernel takes more."""


def attend_elementwise(
    rule: ElementwiseRule, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, dropout: float
) -> Tensor:
    """Returns phi(s_ij)^power value_j summed over keys, each row over its divisor; drops what blockwise drops."""
    counts = visibility.counts(query.shape[0], query.shape[2], key.shape[2], query.device).float()
    scale = (counts > 0) / rule.row_divisor(counts) / (1 - dropout)
    seed = torch.randint(2**62, ()) if dropout else torch.zeros((), dtype=torch.int64)
    query, key, value = (each.contiguous() for each in visibility.cleared(query, key, value))
    output: Tensor = elementwise_forward(
        query, key, value, scale.contiguous(), seed, dropout, rule.phi, rule.power, visibility.order == "causal",
        visibility.memory,
    )  # fmt: skip
    return output


@torch.library.custom_op("seqarena::triton_elementwise", mutates_args=())
def elementwise_forward(
    query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor, seed: Tensor, dropout: float, phi: str, power: int,
    causal: bool, memory: int,
) -> Tensor:  # fmt: skip
    """Returns the output (B H N E) in the dtype of ``value``."""
    call = ElementwiseCall(query, key, value, row_scale, seed, dropout, phi, power, causal, memory)
    out = value.new_empty(*query.shape[:3], value.shape[3])
    call.launcher()(elementwise.elementwise_forward, "rows", query, key, value, out)
    return out


@torch.library.custom_op("seqarena::triton_elementwise_backward", mutates_args=())
def elementwise_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, row_scale: Tensor, seed: Tensor, dropout: float, phi: str,
    power: int, causal: bool, memory: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key and value."""
    call = ElementwiseCall(query, key, value, row_scale, seed, dropout, phi, power, causal, memory)
    of_query, of_key, of_value = (torch.empty_like(each) for each in (query, key, value))
    launch, given = call.launcher(), (query, key, value, grad.contiguous())
    launch(elementwise.elementwise_backward_queries, "rows", *given, of_query)
    launch(elementwise.elementwise_backward_keys, "keys", *given, of_key, of_value)
    return of_query, of_key, of_value


@elementwise_forward.register_fake
def _(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return value.new_empty(*query.shape[:3], value.shape[3])


@elementwise_backward.register_fake
def _(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep_elementwise(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _pull_elementwise(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    found = elementwise_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return *found, *([None] * 7)


elementwise_forward.register_autograd(_pull_elementwise, setup_context=_keep_elementwise)


class DoublyNormalizedCall(NamedTuple):
    """What the doubly-normalised operators take."""

    query: Tensor
    """B H N D, padding 0; so are keys and values."""
    key: Tensor
    value: Tensor
    query_real: Tensor
    """Which are real (B, N), and of keys (B, M); bytes."""
    key_real: Tensor

    def launch(self, kernel: Any, blocked: str, *tensors: Tensor) -> None:
        """Runs a kernel, one program for each block of ``blocked`` (rows or keys) of each head."""
        (batch, heads, rows, width), (keys, value_width) = self.query.shape, self.value.shape[2:]
        is_backward = kernel in (doubly_normalized.backward_keys, doubly_normalized.backward_queries)
        tiles = tiles_for(self.query, max(width, value_width), backward=is_backward)
        count, size = (rows, tiles.rows) if blocked == "rows" else (keys, tiles.keys)
        reads_values = kernel is not doubly_normalized.column_logsumexp
        sizes = (heads, rows, keys, width, *([value_width] if reads_values else []), width**-0.5)
        room_for_values = {"VALUE_WIDTH": room(value_width)} if reads_values else {}
        with torch.cuda.device_of(self.query):  # type: ignore[no-untyped-call]
            kernel[(-(-count // size) * batch * heads,)](
                *tensors, *sizes, ROWS=tiles.rows, KEYS=tiles.keys, WIDTH=room(width), **room_for_values,
                num_warps=tiles.warps, num_stages=tiles.stages,
            )  # fmt: skip


def attend_doubly_normalized(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility) -> Tensor:
    """Returns doubly-normalised attention without an order; padded queries give 0."""
    (batch, _, rows, _), keys = query.shape, key.shape[2]
    real = [
        torch.ones(batch, length, dtype=torch.int8, device=query.device) if mask is None else mask.to(torch.int8)
        for mask, length in ((visibility.query_real, rows), (visibility.key_real, keys))
    ]
    query, key, value = (each.contiguous() for each in visibility.cleared(query, key, value))
    output: Tensor = doubly_normalized_forward(query, key, value, *real)[0]
    return output


@torch.library.custom_op("seqarena::triton_doubly_normalized", mutates_args=())
def doubly_normalized_forward(
    query: Tensor, key: Tensor, value: Tensor, query_real: Tensor, key_real: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output (B H N E) in the dtype of ``value``, c_j (B H M) and rho_i (B H N), float32."""
    call = DoublyNormalizedCall(query, key, value, query_real, key_real)
    out = value.new_empty(*query.shape[:3], value.shape[3])
    mass = query.new_empty(key.shape[:3], dtype=torch.float32)
    row_sum = query.new_empty(query.shape[:3], dtype=torch.float32)
    call.launch(doubly_normalized.column_logsumexp, "keys", query, key, query_real, mass)
    call.launch(doubly_normalized.forward, "rows", query, key, value, mass, query_real, key_real, out, row_sum)
    return out, mass, row_sum


@torch.library.custom_op("seqarena::triton_doubly_normalized_backward", mutates_args=())
def doubly_normalized_backward(
    grad: Tensor, out: Tensor, mass: Tensor, row_sum: Tensor,
    query: Tensor, key: Tensor, value: Tensor, query_real: Tensor, key_real: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key and value."""
    call = DoublyNormalizedCall(query, key, value, query_real, key_real)
    of_query, of_key, of_value = (torch.empty_like(each) for each in (query, key, value))
    grad, of_mass = grad.contiguous(), torch.empty_like(mass)
    delta = torch.linalg.vecdot(grad.float(), out.float()).contiguous()
    given = (query, key, value, grad, mass, row_sum, delta, query_real, key_real)
    call.launch(doubly_normalized.backward_keys, "keys", *given, of_key, of_value, of_mass)
    call.launch(doubly_normalized.backward_queries, "rows", *given, of_mass, of_query)
    return of_query, of_key, of_value


@doubly_normalized_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        value.new_empty(*query.shape[:3], value.shape[3]),
        query.new_empty(key.shape[:3], dtype=torch.float32),
        query.new_empty(query.shape[:3], dtype=torch.float32),
    )


@doubly_normalized_backward.register_fake
def _(_grad: Tensor, _out: Tensor, _mass: Tensor, _row_sum: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = given[:3]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep_doubly_normalized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _pull_doubly_normalized(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * len(DoublyNormalizedCall._fields)
    return *doubly_normalized_backward(grad, *ctx.saved_tensors), None, None


doubly_normalized_forward.register_autograd(_pull_doubly_normalized, setup_context=_keep_doubly_normalized)
