"""Doubly-normalised attention (DNAS, P2): normalised over queries first, over keys second.

With c_j = logsumexp_i s_ij over real queries, pi_ij = softmax_j(s_ij - c_j). Two fused softmax passes compute it, and
two more, one of them backward, its exact gradient; nothing of size N x M is kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from common.attention import reference
from common.attention.base import AttentionConfig, Kernel, Order, Visibility
from common.errors import WrongUseError
from common.shapes import Bias, EarlierMass, Key, KeyMass, Output, Pairs, Query, Scores, Value, Weights

HIDDEN = -1e30
"""Bias of a hidden position: vanishes beside any score, and unlike minus infinity never makes a NaN."""


@dataclass(frozen=True, kw_only=True)
class DoublyNormalized(AttentionConfig):
    """DNAS: xi_ji = exp s_ij / sum_i exp s_ij over real queries, pi_ij = xi_ji / sum_j xi_ji.

    No key is explained away: sum_i pi_ij >= 1 / (number of real keys) (P2, Lemma 1). Where queries have an order the
    column sum runs over the queries so far (``reference.prefix_normalized``): ours, not the paper's.
    """

    iterations: int = 1
    """Rounds of Sinkhorn's algorithm; 1 is the paper's; more only without an order."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise WrongUseError(f"iterations: expected at least 1, found {self.iterations}")

    @property
    def orders(self) -> tuple[Order, ...]:
        """Every order with one iteration; further iterations have no form that keeps the future out."""
        return ("none", "causal", "ordered_queries") if self.iterations == 1 else ("none",)

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """The prefix-normalised orders: without one, the column sums run over queries that are still to come."""
        return tuple(order for order in self.orders if order != "none")

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        del heads
        return DoublyNormalizedKernel(self, dropout)


def doubly_normalized_weights(
    scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None, iterations: int
) -> tuple[Weights, KeyMass | None]:
    """Returns the weights in the form that the order asks for, and the state of the prefix form."""
    if visibility.order == "none":
        return reference.doubly_normalized(scores, visible, iterations), None
    earlier = visibility.memory if visibility.order == "causal" else scores.shape[-1]
    return reference.prefix_normalized(scores, visible, state, earlier)


class DoublyNormalizedKernel(Kernel):
    """DNAS by two fused passes where they can express it, else by the formula."""

    def __init__(self, config: DoublyNormalized, dropout: float) -> None:
        super().__init__(config, dropout)
        self.iterations = config.iterations

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights and, for ordered queries, the keys' masses."""
        return doubly_normalized_weights(scores, visible, visibility, state, self.iterations)

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output | None:
        """Returns the output of the two passes; None with dropout, a bias, several iterations, or off the CPU."""
        if self.drops or self.iterations > 1:
            return None
        return fused_doubly_normalized(query, key, value, visibility, bias)


def fused_doubly_normalized(
    query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
) -> Output | None:
    """Returns DNAS of order ``none`` by two fused passes on the CPU, or None where they cannot express it."""
    same = query.dtype == key.dtype == value.dtype and query.shape[-1] == value.shape[-1]
    if (
        query.device.type != "cpu"
        or visibility.order != "none"
        or not visibility.keys_only
        or bias is not None
        or not same
    ):
        return None
    batch, _, queries, _ = query.shape
    query_real, key_real = visibility.query_real, visibility.key_real
    if query_real is None:
        query_real = query.new_ones(batch, queries, dtype=torch.bool)
    if key_real is None:
        key_real = key.new_ones(batch, key.shape[2], dtype=torch.bool)
    # The operator reads its last axis as if it were contiguous, and in half precision adds up its gradients in half.
    wide = torch.promote_types(query.dtype, torch.float32)
    inputs = [each.to(wide) if each.stride(-1) == 1 else each.to(wide).contiguous() for each in (query, key, value)]
    output: Tensor = TwoPasses.apply(*inputs, query_real, key_real).to(value.dtype)  # type: ignore[no-untyped-call]
    seen = query_real[:, None, :, None] & key_real.any(dim=-1)[:, None, None, None]
    return output.masked_fill(~seen, 0.0)


flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class TwoPasses(torch.autograd.Function):
    """softmax_j(s_ij - c_j) value_j, c_j = logsumexp_i s_ij, both by PyTorch's fused CPU operator.

    With t_ij = s_ij - c_j, rho_i = logsumexp_j t_ij and X_ij = exp t_ij the query-softmax, the gradient is

        dS_ij = P_ij (dP_ij - delta_i - exp(rho_i) g_j),   g_j = sum_i dT_ij,   dT_ij = P_ij (dP_ij - delta_i)

    that of a plain softmax attention but for the last term. The column sums g_j come out of the same fused backward
    pass through one extra column (query 1/scale, key and value 0); the last term reaches the keys through
    m_j = sum_i X_ij q_i, which is pass 1 with the queries as values, and the queries through one more forward pass.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, key: Tensor, value: Tensor, query_real: Tensor, key_real: Tensor
    ) -> Tensor:
        """Returns the output of all queries; what padded ones get has no meaning."""
        hidden_queries = torch.zeros(query_real.shape, dtype=query.dtype).masked_fill(~query_real, HIDDEN)[
            :, None, None, :
        ]
        mean_query, mass = flash_forward(key, query, query, attn_mask=hidden_queries)  # B H M D, B H M
        # The operator's logsumexp has its heads innermost; as a bias it must be contiguous, or it costs twice the time.
        column_bias = (-mass).masked_fill(~key_real[:, None, :], HIDDEN).contiguous()[:, :, None, :]  # B H 1 M
        output, row = flash_forward(query, key, value, attn_mask=column_bias)
        ctx.save_for_backward(query, key, value, query_real, key_real, mean_query, column_bias, output, row)
        return output  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the exact gradients of query, key and value."""
        query, key, value, query_real, key_real, mean_query, column_bias, output, row = ctx.saved_tensors  # type: ignore[attr-defined]
        scale = query.shape[-1] ** -0.5
        zero = torch.zeros_like
        column = query[..., :1]
        grad_query, grad_key, grad_value = flash_backward(
            torch.cat([grad_output, zero(column)], dim=-1),
            torch.cat([query, torch.full_like(column, 1 / scale)], dim=-1),
            torch.cat([key, zero(key[..., :1])], dim=-1),
            torch.cat([value, zero(value[..., :1])], dim=-1),
            torch.cat([output, zero(column)], dim=-1),
            row,
            0.0,
            False,
            attn_mask=column_bias,
            scale=scale,
        )
        column_sum = grad_key[..., -1:].masked_fill(~key_real[:, None, :, None], 0.0)  # g_j; B H M 1
        through_mass, _ = flash_forward(query, key, column_sum * key, attn_mask=column_bias)
        through_mass = through_mass * row.exp()[..., None]
        through_mass = through_mass.masked_fill(~query_real[:, None, :, None], 0.0)
        return (
            grad_query[..., :-1] - scale * through_mass,
            grad_key[..., :-1] - scale * column_sum * mean_query,
            grad_value[..., :-1],
            None,
            None,
        )
