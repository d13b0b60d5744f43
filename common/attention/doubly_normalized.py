"""Doubly-normalised attention (DNAS, P2): normalised over queries first, over keys second.

With c_j = logsumexp_i s_ij over real queries, pi_ij = softmax_j(s_ij - c_j). Two fused softmax passes compute it, and
two more, one of them backward, its exact gradient; hybrid attention adds the softmax's own two.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from common.attention import reference
from common.attention.base import AttentionConfig, Kernel
from common.attention.rule import HIDDEN, NOTHING, Pulled, Rule, Scratch
from common.attention.visibility import ClearPadding, Order, Visibility
from common.errors import WrongUseError
from common.shapes import Bias, EarlierMass, Key, KeyMass, Output, Pairs, Query, Scores, Value, Weights


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


@dataclass(frozen=True, kw_only=True)
class DoublyNormalizedRule(Rule):
    """Nothing but the doubly-normalised weights."""

    reads_scores: ClassVar[bool] = False
    rounds: int = 1

    def apply(
        self, scores: Tensor, doubly: Tensor | None, share: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights."""
        del scores, share, scratch
        assert doubly is not None
        return doubly, None

    def pull(self, kept: Any, grad: Tensor, scratch: Scratch) -> Pulled:
        """Returns the gradient as it is."""
        del kept, scratch
        return Pulled(None, grad)


class DoublyNormalizedKernel(Kernel):
    """DNAS by fused passes where they can express it, else block by block."""

    def __init__(self, config: DoublyNormalized, dropout: float) -> None:
        super().__init__(config, dropout)
        self.iterations = config.iterations
        self.rule = DoublyNormalizedRule(rounds=config.iterations)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights and, for ordered queries, the keys' masses."""
        return doubly_normalized_weights(scores, visible, visibility, state, self.iterations)

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output | None:
        """Returns the output of the two passes; None with dropout or several iterations too."""
        if self.drops or self.iterations > 1:
            return None
        return fused_doubly_normalized(query, key, value, visibility, bias)


def fused_doubly_normalized(
    query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None, u: Tensor | None = None
) -> Output | None:
    """Returns u DNAS + (1 - u) softmax (None: u = 1) by fused passes, or None where they cannot express it.

    They can on a CPU, in order ``none``, without a bias or segments, with values as wide as keys.
    """
    same = query.dtype == key.dtype == value.dtype and query.shape[-1] == value.shape[-1]
    plain = visibility.order == "none" and visibility.keys_only and bias is None
    if query.device.type != "cpu" or not plain or not same:
        return None
    query_real, key_real = visibility.query_real, visibility.key_real
    query, key, value = visibility.cleared(query, key, value)
    # The operator reads its last axis as if it were contiguous, and in half precision adds up its gradients in half.
    wide = torch.promote_types(query.dtype, torch.float32)
    inputs = [each.to(wide) if each.stride(-1) == 1 else each.to(wide).contiguous() for each in (query, key, value)]
    share = None if u is None else u.to(wide)
    output: Tensor = FusedPasses.apply(*inputs, query_real, key_real, share).to(value.dtype)  # type: ignore[no-untyped-call]
    if query_real is not None:
        output = ClearPadding.apply(output, query_real)  # type: ignore[no-untyped-call]
    if key_real is not None:
        output = output * key_real.any(dim=-1)[:, None, None, None]
    return output


flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class FusedPasses(torch.autograd.Function):
    """u softmax_j(s_ij - c_j) value_j + (1 - u) softmax_j(s_ij) value_j, c_j = logsumexp_i s_ij.

    Two passes of PyTorch's fused CPU operator, three with a mixing share u; u None is u = 1. With t_ij = s_ij - c_j,
    rho_i = logsumexp_j t_ij and X_ij = exp t_ij the query-softmax, the gradient of the first term's scores is

        dS_ij = P_ij (dP_ij - delta_i - exp(rho_i) g_j),   g_j = sum_i dT_ij,   dT_ij = P_ij (dP_ij - delta_i)

    that of a plain softmax attention but for the last term. The column sums g_j come out of the same fused backward
    pass through one extra column (query 1/scale, key and value 0); the last term reaches the keys through
    m_j = sum_i X_ij q_i, which is pass 1 with the queries as values, and the queries through one more forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_real: Tensor | None,
        key_real: Tensor | None,
        u: Tensor | None,
    ) -> Tensor:
        """Returns the output of all queries; what padded ones get has no meaning."""
        hidden_queries, hidden_keys = (
            None if real is None else torch.zeros(real.shape, dtype=query.dtype).masked_fill_(~real, HIDDEN)[:, None]
            for real in (query_real, key_real)
        )
        mean_query, mass = flash_forward(  # B H M D, B H M
            key, query, query, attn_mask=None if hidden_queries is None else hidden_queries[:, :, None]
        )
        # The operator's logsumexp has its heads innermost; as a bias it must be contiguous, or it costs twice the time.
        column_bias = (-mass).contiguous()[:, :, None]  # B H 1 M
        if hidden_keys is not None:
            column_bias = column_bias.clamp(max=-NOTHING) + hidden_keys[:, :, None]
        doubly, row = flash_forward(query, key, value, attn_mask=column_bias)
        softmax = softmax_row = None
        if u is not None:
            row_mask = None if hidden_keys is None else hidden_keys[:, :, None]
            softmax, softmax_row = flash_forward(query, key, value, attn_mask=row_mask)
        ctx.save_for_backward(
            query, key, value, query_real, hidden_keys, u, mean_query, column_bias, doubly, row, softmax, softmax_row
        )
        if u is None or softmax is None:
            return doubly  # type: ignore[no-any-return]
        return torch.lerp(softmax, doubly, u)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the exact gradients of query, key, value and u."""
        of_query, of_key, of_value, of_u = FusedPassesBackward.apply(grad_output, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return of_query, of_key, of_value, None, None, of_u


class FusedPassesBackward(torch.autograd.Function):
    """The gradients of ``FusedPasses``; a function of its own, so that their gradient is refused and not forgotten."""

    @staticmethod
    def forward(
        ctx: Any, grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, query_real: Tensor | None,
        hidden_keys: Tensor | None, u: Tensor | None, mean_query: Tensor, column_bias: Tensor, doubly: Tensor,
        row: Tensor, softmax: Tensor | None, softmax_row: Tensor | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Returns the gradients of query, key, value and u."""
        del ctx
        scale = query.shape[-1] ** -0.5

        def with_column(tensor: Tensor, number: float) -> Tensor:
            return F.pad(tensor, (0, 1), value=number)

        wide_grad = with_column(grad_output, 0.0)
        if u is not None:
            wide_grad *= u
        grad_query, grad_key, grad_value = flash_backward(
            wide_grad,
            with_column(query, 1 / scale),
            with_column(key, 0.0),
            with_column(value, 0.0),
            with_column(doubly, 0.0),
            row,
            0.0,
            False,
            attn_mask=column_bias,
            scale=scale,
        )
        column_sum = grad_key[..., -1:]  # g_j; B H M 1
        if hidden_keys is not None:
            column_sum = column_sum.masked_fill(hidden_keys[..., None] < 0, 0.0)
        through_mass, _ = flash_forward(query, key, column_sum * key, attn_mask=column_bias)
        through_mass *= row.exp()[..., None]
        if query_real is not None:
            through_mass *= query_real[:, None, :, None]
        found = grad_query[..., :-1], grad_key[..., :-1], grad_value[..., :-1]
        of_u = None
        if u is not None and softmax is not None:
            row_mask = None if hidden_keys is None else hidden_keys[:, :, None]
            rest = flash_backward(
                grad_output * (1 - u), query, key, value, softmax, softmax_row, 0.0, False, attn_mask=row_mask
            )
            found = tuple(one.add_(other) for one, other in zip(rest, found, strict=True))
            of_u = torch.linalg.vecdot(grad_output, doubly - softmax)[..., None].sum_to_size(u.shape)
        found[0].sub_(through_mass, alpha=scale)
        found[1].addcmul_(column_sum, mean_query, value=-scale)
        return *found, of_u

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Refuses.

        Raises:
            WrongUseError: always.
        """
        del ctx, grads
        raise WrongUseError("fused dnas and hnas have no second derivative; Kernel.compute('reference', ...) has")
