"""Doubly-normalised and hybrid attention (P2) in two passes of PyTorch's fused softmax operator for CPUs.

Let c_j = logsumexp_i s_ij and e_j = exp(-c_j). The first pass attends from keys to queries, with the queries as values.
It returns c_j and m_j = sum_i X_ij q_i, where X is the softmax over queries. The second pass attends from queries to
keys: with S the softmax over keys it returns sum_j S_ij [v_j, e_j v_j, e_j]. The first part is softmax attention. The
second part divided by the third is sum_j P_ij v_j, P_ij = softmax_j(s_ij - c_j).

The backward of the second pass returns the gradient of e_j, and so of c_j. From c_j it flows to the keys through m_j,
and to the queries through one more forward pass, since X_ij = S_ij e_j exp(logsumexp_j s_ij).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.operators import Arguments, backward_operator, forward_operator, full_precision
from seqarena.common.attention.rule import EMPTY_LOGSUMEXP, HIDDEN, Rule
from seqarena.common.attention.tiles import blocks
from seqarena.common.attention.visibility import Visibility, for_backward
from seqarena.common.shapes import Key, Output, Query, Value

RANGE = 30.0
"""Largest supported range of c_j over keys. A key whose S_ij underflows float32 then has P_ij below 1e-24."""
GROUP_NUMBERS = 2**19
"""Number of elements of each tensor processed at once: fits into the cache, and is small beside the inputs."""
flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fused_doubly_normalized(
    rule: Rule, query: Query, key: Key, value: Value, visibility: Visibility, u: Tensor | None = None
) -> Output:
    """Computes u DNAS + (1 - u) softmax (None: u = 1); ``conditions.fused_doubly_normalized`` must be None.

    If the range of c_j is too large in some head, the blockwise engine computes the call by ``rule``.
    """
    # In half precision the operator would accumulate its gradients in half precision.
    wide = torch.promote_types(query.dtype, torch.float32)
    # The operator assumes that the last axis is contiguous.
    inputs = [each.to(wide).contiguous() for each in visibility.clear(query, key, value)]
    mixing_weight = None if u is None else u.to(wide)
    exact, *_ = fused_passes(*inputs, visibility.query_real, visibility.key_real, mixing_weight, rule.text)
    output: Tensor = exact.to(value.dtype)
    return output


class FusedArguments(NamedTuple):
    """Arguments of both operators. Padded queries, keys and values must be 0."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_real: Tensor | None
    key_real: Tensor | None
    u: Tensor | None
    rule: str

    def arguments(self) -> Arguments:
        """Returns the arguments of the blockwise engine."""
        return Arguments(
            query=self.query, key=self.key, value=self.value, bias=None, query_real=self.query_real,
            key_real=self.key_real, segments=None, state=None, mixing_weight=self.u,
            seed=torch.zeros((), dtype=torch.int64), rule=self.rule, order="none", memory=0, window=0, dropout=0.0,
        )  # fmt: skip

    def groups(self) -> list[slice]:
        """Returns groups of examples whose heads are a multiple of the threads: backward splits work by head."""
        batch, heads, keys, width = self.key.shape
        threads = torch.get_num_threads()
        step = threads // math.gcd(threads, heads)
        return blocks(batch, max(step, GROUP_NUMBERS // (2 * heads * keys * width) // step * step))

    def ranges_far(self, column_lse: Tensor) -> bool:
        """Returns whether the range of c_j (B H M) exceeds ``RANGE`` in some head."""
        least, most = (
            column_lse if self.key_real is None else column_lse.masked_fill(~self.key_real[:, None], end)
            for end in (math.inf, -math.inf)
        )
        return bool((most.amax(dim=2) - least.amin(dim=2) > RANGE).any())


class Group(NamedTuple):
    """Inputs of a group of examples."""

    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor | None
    """Bias that hides padded keys; B 1 1 M."""
    least: Tensor
    """Minimum of c_j over real keys; B H 1."""
    factor: Tensor
    """exp(least - c_j), 0 for padding; used instead of e_j, with the same quotients; B H M 1."""
    u: Tensor | None

    @classmethod
    def of(cls, inputs: FusedArguments, column_lse: Tensor, some: slice) -> "Group":
        """Returns the group of examples ``some``, given c_j of the whole call."""
        column_lse, real = column_lse[some], None if inputs.key_real is None else inputs.key_real[some]
        if real is not None:
            column_lse = column_lse.masked_fill(~real[:, None], math.inf)
        least = column_lse.amin(dim=2, keepdim=True).clamp_(max=-EMPTY_LOGSUMEXP)  # of padding alone: any finite number
        return cls(
            query=inputs.query[some],
            key=inputs.key[some],
            value=inputs.value[some],
            hidden=_padding_bias(real, column_lse.dtype),
            least=least,
            factor=(least - column_lse).exp_()[..., None],
            u=inputs.u,
        )

    def values(self) -> Tensor:
        """Returns [v_j, e_j v_j, e_j], without the first part if there is no softmax half; B H M W."""
        first = [] if self.u is None else [self.value]
        return torch.cat([*first, self.factor * self.value, self.factor], dim=3)

    def doubly(self, second: Tensor) -> Tensor:
        """Returns the doubly-normalised half, given the output of the second pass; B H N E."""
        return second[..., -self.value.shape[3] - 1 : -1] / _divisor(second)

    def pad(self, width: int) -> tuple[Tensor, Tensor]:
        """Returns queries and keys padded to the width of the values: the operator needs one width for all."""
        query, key = (F.pad(each, (0, width - each.shape[3])) for each in (self.query, self.key))
        return query, key


def _padding_bias(real: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if real is None else torch.zeros(real.shape, dtype=dtype).masked_fill_(~real, HIDDEN)[:, None, None]


def _divisor(second: Tensor) -> Tensor:
    divisor = second[..., -1:]
    return divisor + (divisor == 0)  # 1 for rows without a visible key


@torch.library.custom_op("seqarena::fused_passes", mutates_args=())
@full_precision
def fused_passes(
    query: Tensor, key: Tensor, value: Tensor, query_real: Tensor | None, key_real: Tensor | None, u: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the output; and for the gradient the second pass's output (B H N W), its logsumexp, m_j and c_j.

    The output of padded queries is undefined.
    """
    inputs = FusedArguments(query, key, value, query_real, key_real, u, rule)
    mean_query, column_lse = flash_forward(key, query, query, attn_mask=_padding_bias(query_real, query.dtype))
    column_lse = column_lse.contiguous()  # the operator returns it with heads as the innermost axis
    second, row_lse = query.new_zeros(*query.shape[:3], _second_width(inputs)), query.new_zeros(query.shape[:3])
    if inputs.ranges_far(column_lse):
        return forward_operator(*inputs.arguments())[0], second, row_lse, mean_query, column_lse
    output = torch.empty_like(query)
    for some in inputs.groups():
        group = Group.of(inputs, column_lse, some)
        values = group.values()
        part, row_lse[some] = flash_forward(
            *group.pad(values.shape[3]), values, attn_mask=group.hidden, scale=query.shape[3] ** -0.5
        )
        doubly = group.doubly(part)
        output[some] = doubly if u is None else torch.lerp(part[..., : doubly.shape[3]], doubly, u)
        second[some] = part
    return output, second, row_lse, mean_query, column_lse


@torch.library.custom_op("seqarena::fused_passes_backward", mutates_args=())
@full_precision
def fused_passes_backward(
    grad: Tensor, second: Tensor, row_lse: Tensor, mean_query: Tensor, column_lse: Tensor,
    query: Tensor, key: Tensor, value: Tensor, query_real: Tensor | None, key_real: Tensor | None, u: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key, value and u; the last is empty without u."""
    inputs = FusedArguments(query, key, value, query_real, key_real, u, rule)
    if inputs.ranges_far(column_lse):
        hidden = column_lse if key_real is None else column_lse.masked_fill(~key_real[:, None], EMPTY_LOGSUMEXP)
        found = backward_operator(grad, hidden.flatten(0, 1)[:, None].contiguous(), False, *inputs.arguments())
        return found[0], found[1], found[2], found[4]
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in (query, key, value))
    grad_u = query.new_zeros(1, query.shape[1], 1, 1)
    for some in inputs.groups():
        group, part = Group.of(inputs, column_lse, some), second[some]
        grad_second, more = _halves_backward(group, part, grad[some])
        if more is not None:
            grad_u += more
        grad_query[some], grad_key[some], grad_value[some], grad_lse = _second_pass_backward(
            group, grad_second, part, row_lse[some]
        )
        through, _ = flash_forward(group.query, group.key, grad_lse * group.factor * group.key, attn_mask=group.hidden)
        through *= (row_lse[some] - group.least).exp_()[..., None]
        if query_real is not None:
            through *= query_real[some, None, :, None]  # padded queries do not contribute to c_j
        scale = query.shape[3] ** -0.5
        grad_query[some].add_(through, alpha=scale)
        grad_key[some].addcmul_(grad_lse, mean_query[some], value=scale)
    grad_u = query.new_empty(0) if u is None else grad_u[0].sum_to_size(u.shape).contiguous()
    return grad_query, grad_key, grad_value, grad_u


def _halves_backward(group: Group, second: Tensor, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the gradients of the second pass's output and of u per head, given that of the mixture."""
    width, doubly, divisor = grad.shape[3], group.doubly(second), _divisor(second)
    grad_second, grad_doubly, grad_u = torch.empty_like(second), grad, None
    if group.u is not None:
        grad_doubly = grad * group.u
        torch.sub(grad, grad_doubly, out=grad_second[..., :width])
        grad_u = torch.linalg.vecdot(grad, doubly - second[..., :width]).sum(dim=(0, 2))[:, None, None]
    torch.div(grad_doubly, divisor, out=grad_second[..., -width - 1 : -1])
    torch.div(torch.linalg.vecdot(grad_doubly, doubly)[..., None].neg_(), divisor, out=grad_second[..., -1:])
    return grad_second, grad_u


def _second_pass_backward(
    group: Group, grad: Tensor, second: Tensor, row_lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of query, key, value and c_j (B H M 1) through the second pass."""
    width = group.value.shape[3]
    grad_query, grad_key, grad_values = flash_backward(
        grad, *group.pad(second.shape[3]), group.values(), second, row_lse, 0.0, False,
        attn_mask=group.hidden, scale=width**-0.5,
    )  # fmt: skip
    grad_weighted, grad_factor = grad_values[..., -width - 1 : -1], grad_values[..., -1:]
    grad_value = grad_weighted * group.factor
    if group.u is not None:
        grad_value += grad_values[..., :width]
    grad_factor = grad_factor + torch.linalg.vecdot(group.value, grad_weighted)[..., None]
    return grad_query[..., :width], grad_key[..., :width], grad_value, grad_factor.mul_(group.factor).neg_()


def _second_width(inputs: FusedArguments) -> int:
    return inputs.value.shape[3] * (1 if inputs.u is None else 2) + 1


@fused_passes.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = FusedArguments(*arguments)
    query, key = inputs.query, inputs.key
    return (
        torch.empty_like(query),
        query.new_empty(*query.shape[:3], _second_width(inputs)),
        query.new_empty(query.shape[:3]),
        torch.empty_like(key),
        key.new_empty(key.shape[:3]),
    )


@fused_passes_backward.register_fake
def _(
    grad: Tensor, second: Tensor, row_lse: Tensor, mean_query: Tensor, column_lse: Tensor, *arguments: Any
) -> tuple[Any, ...]:
    del grad, second, row_lse, mean_query, column_lse
    inputs = FusedArguments(*arguments)
    grad_u = inputs.query.new_empty(0) if inputs.u is None else torch.empty_like(inputs.u)
    return (*(torch.empty_like(each) for each in inputs[:3]), grad_u)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], *map(for_backward, inputs[:-1]))
    ctx.rule = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * len(FusedArguments._fields)
    grad_query, grad_key, grad_value, grad_u = fused_passes_backward(grad.contiguous(), *ctx.saved_tensors, ctx.rule)
    return grad_query, grad_key, grad_value, None, None, None if ctx.saved_tensors[-1] is None else grad_u, None


fused_passes.register_autograd(_backward, setup_context=_setup_context)
