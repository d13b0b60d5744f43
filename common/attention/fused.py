"""Doubly-normalised and hybrid attention (P2) in two passes of PyTorch's fused softmax operator for CPUs.

Let c_j = logsumexp_i s_ij and e_j = exp(-c_j). The first pass attends from keys to queries, with the queries as values.
It returns c_j and m_j = sum_i X_ij q_i, where X is the softmax over queries. The second pass attends from queries to
keys: with S the softmax over keys it returns sum_j S_ij [v_j, e_j v_j, e_j]. The first part is softmax attention. The
second part divided by the third is sum_j P_ij v_j, P_ij = softmax_j(s_ij - c_j).

The backward of the second pass returns the gradient of e_j, and so of c_j. From c_j it flows to the keys through m_j,
and to the queries through one more forward pass, since X_ij = S_ij e_j exp(logsumexp_j s_ij).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.operators import Arguments, backward_operator, forward_operator
from seqarena.common.attention.rule import HIDDEN, NOTHING, Rule
from seqarena.common.attention.tiles import blocks, full_precision
from seqarena.common.attention.visibility import Visibility
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
    inputs = [each.to(wide).contiguous() for each in visibility.cleared(query, key, value)]
    share = None if u is None else u.to(wide)
    exact, *_ = fused_passes(*inputs, visibility.query_real, visibility.key_real, share, rule.text)
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
            key_real=self.key_real, segments=None, state=None, share=self.u, seed=torch.zeros((), dtype=torch.int64),
            rule=self.rule, order="none", memory=0, window=0, dropout=0.0,
        )  # fmt: skip

    def groups(self) -> Iterator[slice]:
        """Yields groups of examples whose heads are a multiple of the threads, because backward splits work by head."""
        batch, heads, keys, width = self.key.shape
        threads = torch.get_num_threads()
        step = threads // math.gcd(threads, heads)
        return blocks(batch, max(step, GROUP_NUMBERS // (2 * heads * keys * width) // step * step))

    def ranges_far(self, mass: Tensor) -> bool:
        """Returns whether the range of c_j (B H M) exceeds ``RANGE`` in some head."""
        least, most = (
            mass if self.key_real is None else mass.masked_fill(~self.key_real[:, None], end)
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
    def of(cls, given: FusedArguments, mass: Tensor, some: slice) -> "Group":
        """Returns the group of examples ``some``, given c_j of the whole call."""
        mass, real = mass[some], None if given.key_real is None else given.key_real[some]
        if real is not None:
            mass = mass.masked_fill(~real[:, None], math.inf)
        least = mass.amin(dim=2, keepdim=True).clamp_(max=-NOTHING)  # of padding alone: any finite number
        return cls(
            query=given.query[some],
            key=given.key[some],
            value=given.value[some],
            hidden=_hidden(real, mass.dtype),
            least=least,
            factor=(least - mass).exp_()[..., None],
            u=given.u,
        )

    def values(self) -> Tensor:
        """Returns [v_j, e_j v_j, e_j], without the first part if there is no softmax half; B H M W."""
        first = [] if self.u is None else [self.value]
        return torch.cat([*first, self.factor * self.value, self.factor], dim=3)

    def doubly(self, second: Tensor) -> Tensor:
        """Returns the doubly-normalised half, given the output of the second pass; B H N E."""
        return second[..., -self.value.shape[3] - 1 : -1] / _divisor(second)

    def padded(self, width: int) -> tuple[Tensor, Tensor]:
        """Returns queries and keys padded to the width of the values: the operator needs one width for all."""
        query, key = (F.pad(each, (0, width - each.shape[3])) for each in (self.query, self.key))
        return query, key


def _hidden(real: Tensor | None, dtype: torch.dtype) -> Tensor | None:
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
    given = FusedArguments(query, key, value, query_real, key_real, u, rule)
    mean_query, mass = flash_forward(key, query, query, attn_mask=_hidden(query_real, query.dtype))
    mass = mass.contiguous()  # the operator returns it with heads as the innermost axis
    second, row = query.new_zeros(*query.shape[:3], _second_width(given)), query.new_zeros(query.shape[:3])
    if given.ranges_far(mass):
        return forward_operator(*given.arguments())[0], second, row, mean_query, mass
    output = torch.empty_like(query)
    for some in given.groups():
        group = Group.of(given, mass, some)
        values = group.values()
        part, row[some] = flash_forward(
            *group.padded(values.shape[3]), values, attn_mask=group.hidden, scale=query.shape[3] ** -0.5
        )
        doubly = group.doubly(part)
        output[some] = doubly if u is None else torch.lerp(part[..., : doubly.shape[3]], doubly, u)
        second[some] = part
    return output, second, row, mean_query, mass


@torch.library.custom_op("seqarena::fused_passes_backward", mutates_args=())
@full_precision
def fused_passes_backward(
    grad: Tensor, second: Tensor, row: Tensor, mean_query: Tensor, mass: Tensor,
    query: Tensor, key: Tensor, value: Tensor, query_real: Tensor | None, key_real: Tensor | None, u: Tensor | None,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key, value and u; the last is empty without u."""
    given = FusedArguments(query, key, value, query_real, key_real, u, rule)
    if given.ranges_far(mass):
        hidden = mass if key_real is None else mass.masked_fill(~key_real[:, None], NOTHING)
        found = backward_operator(grad, hidden.flatten(0, 1)[:, None].contiguous(), False, *given.arguments())
        return found[0], found[1], found[2], found[4]
    of_query, of_key, of_value = (torch.empty_like(each) for each in (query, key, value))
    of_u = query.new_zeros(1, query.shape[1], 1, 1)
    for some in given.groups():
        group, part = Group.of(given, mass, some), second[some]
        of_second, more = _pull_halves(group, part, grad[some])
        if more is not None:
            of_u += more
        of_query[some], of_key[some], of_value[some], of_mass = _pull_second(group, of_second, part, row[some])
        through, _ = flash_forward(group.query, group.key, of_mass * group.factor * group.key, attn_mask=group.hidden)
        through *= (row[some] - group.least).exp_()[..., None]
        if query_real is not None:
            through *= query_real[some, None, :, None]  # padded queries do not contribute to c_j
        scale = query.shape[3] ** -0.5
        of_query[some].add_(through, alpha=scale)
        of_key[some].addcmul_(of_mass, mean_query[some], value=scale)
    return of_query, of_key, of_value, query.new_empty(0) if u is None else of_u[0].sum_to_size(u.shape).contiguous()


def _pull_halves(group: Group, second: Tensor, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the gradients of the second pass's output and of u per head, given that of the mixture."""
    width, doubly, divisor = grad.shape[3], group.doubly(second), _divisor(second)
    of_second, of_doubly, of_u = torch.empty_like(second), grad, None
    if group.u is not None:
        of_doubly = grad * group.u
        torch.sub(grad, of_doubly, out=of_second[..., :width])
        of_u = torch.linalg.vecdot(grad, doubly - second[..., :width]).sum(dim=(0, 2))[:, None, None]
    torch.div(of_doubly, divisor, out=of_second[..., -width - 1 : -1])
    torch.div(torch.linalg.vecdot(of_doubly, doubly)[..., None].neg_(), divisor, out=of_second[..., -1:])
    return of_second, of_u


def _pull_second(group: Group, grad: Tensor, second: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of query, key, value and c_j (B H M 1) through the second pass."""
    width = group.value.shape[3]
    of_query, of_key, of_values = flash_backward(
        grad, *group.padded(second.shape[3]), group.values(), second, row, 0.0, False,
        attn_mask=group.hidden, scale=width**-0.5,
    )  # fmt: skip
    of_weighted, of_factor = of_values[..., -width - 1 : -1], of_values[..., -1:]
    of_value = of_weighted * group.factor
    if group.u is not None:
        of_value += of_values[..., :width]
    of_factor = of_factor + torch.linalg.vecdot(group.value, of_weighted)[..., None]
    return of_query[..., :width], of_key[..., :width], of_value, of_factor.mul_(group.factor).neg_()


def _second_width(given: FusedArguments) -> int:
    return given.value.shape[3] * (1 if given.u is None else 2) + 1


@fused_passes.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = FusedArguments(*arguments)
    query, key = given.query, given.key
    return (
        torch.empty_like(query),
        query.new_empty(*query.shape[:3], _second_width(given)),
        query.new_empty(query.shape[:3]),
        torch.empty_like(key),
        key.new_empty(key.shape[:3]),
    )


@fused_passes_backward.register_fake
def _(grad: Tensor, second: Tensor, row: Tensor, mean_query: Tensor, mass: Tensor, *arguments: Any) -> tuple[Any, ...]:
    del grad, second, row, mean_query, mass
    given = FusedArguments(*arguments)
    of_u = given.query.new_empty(0) if given.u is None else torch.empty_like(given.u)
    return (*(torch.empty_like(each) for each in given[:3]), of_u)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[:-1])
    ctx.rule = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _pull(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * len(FusedArguments._fields)
    of_query, of_key, of_value, of_u = fused_passes_backward(grad.contiguous(), *ctx.saved_tensors, ctx.rule)
    return of_query, of_key, of_value, None, None, None if ctx.saved_tensors[-1] is None else of_u, None


fused_passes.register_autograd(_pull, setup_context=_keep)
