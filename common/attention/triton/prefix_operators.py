"""The kernels of prefix-normalised attention as a PyTorch operator with gradients, like those of ``operators.py``."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.column_logsumexp import aligned_state
from seqarena.common.attention.rule import EMPTY_LOGSUMEXP
from seqarena.common.attention.triton import prefix
from seqarena.common.attention.triton.arguments import (
    bias_gradient,
    dropout_of,
    masks_of,
    row_products,
    seed_of,
    segments_of,
    window_of,
)
from seqarena.common.attention.triton.launch import Role, choose_tiles, run
from seqarena.common.attention.visibility import Visibility, for_backward
from seqarena.common.shapes import EarlierLse


class PrefixCall(NamedTuple):
    """Arguments of the operators."""

    query: Tensor
    """B H N D; padding is 0, also in keys and values."""
    key: Tensor
    value: Tensor
    bias: Tensor | None
    """B H N M, of any strides; may be NaN for padding."""
    mixing: Tensor
    """u of each head (H), float32, if ``mixed``."""
    state: Tensor | None
    """Column logsumexp of each key over earlier queries, times log2(e); B H M, float32."""
    query_real: Tensor | None
    """False for padding (B, N)."""
    key_real: Tensor | None
    segments: Tensor | None
    """Number of each key's packed sequence (B, M); the queries are the last keys."""
    seed: Tensor
    """Seed of dropout; a CPU tensor."""
    dropout: float
    mixed: bool
    """Whether the attention is hybrid."""
    causal: bool
    memory: int
    window: int
    """0 for no window."""

    def contiguous(self) -> "PrefixCall":
        """Returns the call with tensors as the kernels read them; they read the bias with any strides."""
        names = ("query", "key", "value", "mixing")
        return self._replace(**{name: getattr(self, name).contiguous() for name in names})

    def states(self) -> Tensor:
        """Returns c_j before each block of queries and after the last, times log2(e); B H blocks+1 M.

        They are computed again for the gradients, because their memory grows with N M.
        """
        query, keys = self.query, self.key.shape[2]
        width = max(query.shape[3], self.value.shape[3])
        blocks = -(-query.shape[2] // choose_tiles(prefix.prefix_forward, "prefix_rows", query, width).own)
        states = query.new_empty(*query.shape[:2], blocks + 1, keys, dtype=torch.float32)
        states[:, :, 0] = EMPTY_LOGSUMEXP / math.log(2) if self.state is None else self.state
        self.launch(prefix.prefix_columns, "prefix_keys", query, self.key, states)
        return states

    def empty_results(self) -> tuple[Tensor, ...]:
        """Returns empty results of ``prefix_forward``; without a mixture the last three have no elements."""
        query, keys = self.query, self.key.shape[2]
        rows, width = query.shape[:3], self.value.shape[3]
        halves, half_rows = ((*rows, width), rows) if self.mixed else ((0,), (0,))
        return (
            self.value.new_empty(*rows, width),
            query.new_empty(*rows[:2], keys, dtype=torch.float32),
            query.new_empty(rows, dtype=torch.float32),
            self.value.new_empty(halves),
            self.value.new_empty(halves),
            query.new_empty(half_rows, dtype=torch.float32),
        )

    def launch(self, kernel: Any, role: Role, *tensors: Tensor, **settings: Any) -> None:
        """Launches a kernel on tensors, followed by those of the visibility and of the bias."""
        bias = self.query if self.bias is None else self.bias.expand(*self.query.shape[:3], self.key.shape[2])
        names = ("batch_stride", "head_stride", "row_stride", "key_stride")
        settings |= dict(zip(names, bias.stride(), strict=True))
        run(
            kernel, role, self.query, self.value,
            (
                *tensors, *masks_of(self.query, self.key, self.query_real, self.key_real), bias,
                segments_of(self.query, self.segments),
            ),
            memory=self.memory, window=self.window, CAUSAL=self.causal, BIASED=self.bias is not None, MIXED=self.mixed,
            SEGMENTED=self.segments is not None, WINDOWED=self.window > 0, **settings,
        )  # fmt: skip


def attend_prefix(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Tensor | None, dropout: float,
    mixing: Tensor | None = None, state: EarlierLse | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Computes prefix-normalised attention and the state after the last query; same dropout mask as the engine.

    Args:
        query: B H N D.
        key: B H M D.
        value: B H M E.
        visibility: With an order; padding, and segments or a window, are optional.
        bias: B H N M, or None.
        dropout: Probability of dropping a weight.
        mixing: u of each head (H), for hybrid attention, whose halves are computed from the same scores.
        state: Column logsumexp of each key over earlier queries (B H K); without gradient.
    """
    if state is not None:
        state = aligned_state(state.detach().float(), key.shape[2], visibility) / math.log(2)
    query, key, value = visibility.clear(query, key, value, contiguous=True)
    u = query.new_zeros(0, dtype=torch.float32) if mixing is None else mixing.float()
    output, last, *_ = prefix_forward(
        query, key, value, bias, u, state, visibility.query_real, visibility.key_real, visibility.segments,
        seed_of(dropout, query.device), dropout, mixing is not None, visibility.order == "causal", visibility.memory,
        window_of(visibility, key.shape[2]),
    )  # fmt: skip
    return output, (last * math.log(2)).clamp(min=EMPTY_LOGSUMEXP)


@torch.library.custom_op("seqarena::triton_prefix", mutates_args=())
def prefix_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mixing: Tensor, state: Tensor | None,
    query_real: Tensor | None, key_real: Tensor | None, segments: Tensor | None, seed: Tensor, dropout: float,
    mixed: bool, causal: bool, memory: int, window: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the output (B H N E) in the dtype of ``value``, and intermediate results for the gradients.

    These are c_j after the last query (B H M) and rho_i (B H N), times log2(e); and if ``mixed``, the outputs of both
    halves, and the logsumexp of the softmax as rho_i.
    """
    call = PrefixCall(
        query, key, value, bias, mixing, state, query_real, key_real, segments, seed, dropout, mixed, causal, memory,
        window,
    ).contiguous()  # fmt: skip
    out, last, row_lse, doubly, softmax, softmax_lse = call.empty_results()
    bits, settings = dropout_of(query, key, seed, dropout)
    states = call.states()
    last.copy_(states[:, :, -1])
    call.launch(
        prefix.prefix_forward, "prefix_rows", call.query, call.key, call.value, states, doubly if mixed else out,
        row_lse, softmax, softmax_lse, *bits, **settings,
    )  # fmt: skip
    if mixed:
        out.copy_(torch.lerp(softmax.float(), doubly.float(), mixing[:, None, None]))
    return out, last, row_lse, doubly, softmax, softmax_lse


@torch.library.custom_op("seqarena::triton_prefix_backward", mutates_args=())
def prefix_backward(
    grad: Tensor, out: Tensor, row_lse: Tensor, doubly: Tensor, softmax: Tensor, softmax_lse: Tensor,
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mixing: Tensor, state: Tensor | None,
    query_real: Tensor | None, key_real: Tensor | None, segments: Tensor | None, seed: Tensor, dropout: float,
    mixed: bool, causal: bool, memory: int, window: int, learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key, value, bias and mixing; that of a bias has no elements unless it learns."""
    call = PrefixCall(
        query, key, value, bias, mixing, state, query_real, key_real, segments, seed, dropout, mixed, causal, memory,
        window,
    ).contiguous()  # fmt: skip
    query, key, value = call.query, call.key, call.value
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in (query, key, value))
    grad_bias, grad = bias_gradient(query, bias, learns), grad.contiguous()
    if causal:
        grad_bias.zero_()  # keys that are later or before the window
    delta, _ = row_products(grad, doubly if mixed else out, row_lse, sums=False)
    softmax_delta = row_products(grad, softmax, softmax_lse, sums=False)[0] if mixed else softmax_lse
    bits, settings = dropout_of(query, key, seed, dropout)
    states = call.states()
    later = torch.empty_like(states[:, :, 1:], memory_format=torch.contiguous_format)
    inputs = (query, key, value, grad, states, row_lse, delta, softmax_lse, softmax_delta, call.mixing)
    call.launch(
        prefix.prefix_backward_keys, "prefix_keys", *inputs, grad_key, grad_value, later, *bits, **settings
    )  # fmt: skip
    call.launch(
        prefix.prefix_backward_queries, "prefix_rows", *inputs, later, grad_query, grad_bias, *bits, LEARNS=learns,
        **settings,
    )  # fmt: skip
    grad_mixing = (delta - softmax_delta).sum(dim=(0, 2)) if mixed else torch.empty_like(mixing)
    return grad_query, grad_key, grad_value, grad_bias, grad_mixing


@prefix_forward.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    return PrefixCall(*given).empty_results()


@prefix_backward.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    query, key, value, bias, mixing = given[6:11]
    grads = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (query, key, value))
    return *grads, bias_gradient(query, bias, given[-1]), torch.empty_like(mixing)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, _last, *more = output
    ctx.save_for_backward(out, *more, *map(for_backward, inputs[:10]))
    ctx.settings = inputs[10:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 15
    learns = ctx.needs_input_grad[3]
    *found, grad_bias, grad_mixing = prefix_backward(grad, *ctx.saved_tensors, *ctx.settings, learns)
    return *found, grad_bias if learns else None, grad_mixing, *([None] * 10)


prefix_forward.register_autograd(_backward, setup_context=_setup_context)
