"""The blockwise engine as two PyTorch operators, each a single node for torch.compile, checkpointing and profilers."""

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from seqarena.common.attention.blockwise import backward, forward
from seqarena.common.attention.rule import Rule
from seqarena.common.attention.tiles import Call
from seqarena.common.attention.visibility import Order, Visibility, for_backward
from seqarena.common.runs.config import from_json

Function = TypeVar("Function", bound=Callable[..., Any])
ARGUMENTS = """Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? query_real, Tensor? key_real,
    Tensor? segments, Tensor? state, Tensor? mixing_weight, Tensor seed, str rule, str order, int memory, int window,
    float dropout"""


def full_precision(function: Function) -> Function:
    """Disables autocast in the body of an operator, whose first argument is a tensor."""

    @functools.wraps(function)
    def body(*arguments: Any) -> Any:
        with torch.autocast(arguments[0].device.type, enabled=False):
            return function(*arguments)

    return cast("Function", body)


class Arguments(NamedTuple):
    """Arguments of both operators: tensors in the shapes of ``Kernel``, the rest in types that a schema allows."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    query_real: Tensor | None
    key_real: Tensor | None
    segments: Tensor | None
    state: Tensor | None
    mixing_weight: Tensor | None
    seed: Tensor
    rule: str
    order: Order
    memory: int
    window: int
    """0 for no window."""
    dropout: float

    def call(self) -> Call:
        """Returns the arguments as a ``Call``."""
        visibility = Visibility(
            query_real=self.query_real,
            key_real=self.key_real,
            order=self.order,
            memory=self.memory,
            segments=self.segments,
            window=self.window or None,
        )
        return Call(
            self.query, self.key, self.value, self.bias, visibility, rule_of(self.rule), self.mixing_weight,
            self.dropout, int(self.seed) if self.dropout else 0,
        )  # fmt: skip


TENSORS = Arguments._fields.index("rule")
"""Number of tensor arguments, which come first."""


@functools.lru_cache
def rule_of(text: str) -> Rule:
    """Parses a rule from ``Rule.text``."""
    return from_json(Rule, json.loads(text))  # type: ignore[type-abstract]


def attend_blockwise(
    rule: Rule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    bias: Tensor | None = None,
    *,
    mixing_weight: Tensor | None = None,
    dropout: float = 0.0,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Returns the output (B H N E) in the dtype of ``value``, and for prefix forms the state after the last query.

    ``mixing_weight`` has the shape (H or 1) 1 1. ``state`` is each key's logsumexp over earlier queries. Dropout draws
    one seed from PyTorch's generator.
    """
    seed = torch.randint(2**62, ()) if dropout else torch.zeros((), dtype=torch.int64)
    arguments = Arguments(
        query, key, value, bias, visibility.query_real, visibility.key_real, visibility.segments, state, mixing_weight,
        seed, rule.text, visibility.order, visibility.memory, visibility.window or 0, dropout,
    )  # fmt: skip
    output, _, last = forward_operator(*arguments)
    return output, last if rule.rounds and visibility.order != "none" else None


@torch.library.custom_op(
    "seqarena::attend_blockwise", mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
)
@full_precision
def forward_operator(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output (B H N E), column logsumexps over all queries (L rounds M), and the last state (B H M)."""
    arguments = Arguments(*given)
    call = arguments.call()
    output, column_lse, last = forward(call, arguments.state)
    shape = arguments.query.shape[:2]
    return (
        output.view(*shape, *output.shape[1:]).to(arguments.value.dtype),
        column_lse,
        last.view(*shape, -1) if call.is_prefix else last,
    )


@forward_operator.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    arguments = Arguments(*given)
    rule, wide = rule_of(arguments.rule), torch.promote_types(arguments.query.dtype, torch.float32)
    (batch, heads, queries, _), (keys, width) = arguments.query.shape, arguments.value.shape[2:]
    columns = arguments.order == "none"
    return (
        arguments.value.new_empty(batch, heads, queries, width),
        arguments.key.new_empty(batch * heads, rule.rounds if columns else 0, keys, dtype=wide),
        arguments.key.new_empty((batch, heads, keys) if rule.rounds and not columns else 0, dtype=wide),
    )


@torch.library.custom_op(
    "seqarena::attend_blockwise_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor column_lse, bool bias_grad, {ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
@full_precision
def backward_operator(grad: Tensor, column_lse: Tensor, bias_grad: bool, *given: Any) -> tuple[Tensor, ...]:
    """Returns the gradients of query, key, value, bias and mixing weight; the last two are empty if not needed."""
    arguments = Arguments(*given)
    call = arguments.call()
    query, key, value, bias, mixing_weight = (
        arguments.query,
        arguments.key,
        arguments.value,
        arguments.bias,
        arguments.mixing_weight,
    )
    flat = grad.to(call.query.dtype).reshape(*call.query.shape[:2], -1)
    gradients = backward(call, flat, column_lse, arguments.state, bias_grad)
    found = [
        total.reshape(tensor.shape).to(tensor.dtype)
        for total, tensor in zip(gradients.totals(), (query, key, value), strict=True)
    ]
    found = list(call.visibility.clear(found[0], found[1], found[2]))  # no gradient at padding
    grad_bias = grad_mixing_weight = None
    if gradients.bias is not None and bias is not None:
        grad_bias = gradients.bias.to(bias.dtype)
    if gradients.mixing_weight is not None and mixing_weight is not None:
        by_head = gradients.mixing_weight.view(call.batch, -1, 1, 1).sum(dim=0)
        grad_mixing_weight = by_head.sum_to_size(mixing_weight.shape).to(mixing_weight.dtype)
    return (*found, *(query.new_empty(0) if each is None else each for each in (grad_bias, grad_mixing_weight)))


@backward_operator.register_fake
def _(grad: Tensor, column_lse: Tensor, bias_grad: bool, *given: Any) -> tuple[Tensor, ...]:
    del grad, column_lse
    arguments = Arguments(*given)
    wanted = (
        arguments.query,
        arguments.key,
        arguments.value,
        arguments.bias if bias_grad else None,
        arguments.mixing_weight,
    )
    return tuple(
        arguments.query.new_empty(0) if each is None else torch.empty_like(each, memory_format=torch.contiguous_format)
        for each in wanted
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Saves the inputs and the column logsumexps; everything else is recomputed."""
    ctx.save_for_backward(*map(for_backward, inputs[:TENSORS]), output[1])
    ctx.settings = inputs[TENSORS:]
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    """Returns a gradient for each argument of the forward operator."""
    gradients: dict[str, Tensor] = {}
    if grad is not None:
        *tensors, column_lse = ctx.saved_tensors
        arguments = Arguments(*tensors, *ctx.settings)
        bias_grad = bool(ctx.needs_input_grad[Arguments._fields.index("bias")])
        found = backward_operator(grad, column_lse, bias_grad, *arguments)
        gradients = dict(zip(("query", "key", "value", "bias", "mixing_weight"), found, strict=True))
        gradients = {name: tensor for name, tensor in gradients.items() if getattr(arguments, name) is not None}
        if not bias_grad:
            gradients.pop("bias", None)
    return tuple(gradients.get(name) for name in Arguments._fields)


forward_operator.register_autograd(_backward, setup_context=_setup_context)
