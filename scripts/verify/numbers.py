"""Checks of the numbers: weights, bias, gradients, half precision, dropout, trained parameters."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.visibility import Order
from seqarena.scripts.verify.subject import (
    DROPOUT,
    Example,
    FailedCheckError,
    NotApplicableError,
    Subject,
    difference,
    example,
    require_close,
    require_support,
)

HIDING = -1e9
"""Bias that hides a pair, for variants whose config declares ``bias_hides``."""
HALF = 2
"""Largest error in half precision, relative to the largest output, in units of the dtype's precision."""
DRAWS = 400
"""Number of outputs with dropout whose mean is compared with the output without."""


def weights(subject: Subject) -> str:
    """The weights that ``Kernel.weights`` returns give the output, and are 0 where a pair is hidden."""
    for each in subject.examples():
        kernel = subject.kernel(each.query.shape[1])
        if not kernel.has_weights:
            raise NotApplicableError("the kernel has no matrix of weights")
        if type(kernel).transform is not Kernel.transform:
            raise NotApplicableError("the kernel transforms its inputs")
        found = kernel.weights(each.query, each.key, each.visibility)
        visible = each.visibility.pairs(each.query.shape[2], each.key.shape[2], each.query.device)
        if not bool((found.masked_select(~visible.expand_as(found)) == 0).all()):
            raise FailedCheckError(f"{each.label}: the weight of a hidden pair is not exactly 0")
        require_close(found @ each.value, each.run(kernel), f"weights times values; {each.label}")
    return "weights times values are the output"


def bias(subject: Subject) -> str:
    """A bias is added to the scores; a very low one hides a pair if the config declares ``bias_hides``."""
    require_support(subject, "bias")
    for each in subject.examples():
        kernel, heads = subject.kernel(each.query.shape[1]), each.query.shape[1]
        row, column = (0.5 * tensor[..., :1].sin() for tensor in (each.query, each.key))
        biased = replace(each, bias=row * column.mT)
        found, without = biased.run(kernel), each.run(kernel)
        # Sparse weights of few keys may all be 0 and 1, with and without it.
        if each.key.shape[2] > 4 and difference(found, without) < 1e-9:
            raise FailedCheckError(f"{biased.label}: the bias changes nothing; add it to the scores")
        if type(kernel).transform is Kernel.transform:
            # A bias of rank 1 is the same as one more dimension of queries and keys.
            width = each.query.shape[-1]
            wider = replace(
                each,
                query=torch.cat([each.query / width**0.5, row], dim=-1) * (width + 1) ** 0.5,
                key=torch.cat([each.key, column], dim=-1),
            )
            require_close(found, wider.run(kernel), f"{biased.label}: compared with the same numbers in the scores")
        if subject.config.bias_hides and each.key.shape[2] > 1:
            _require_hidden(each, kernel, heads)
    return "added to the scores" + (", hides a pair" if subject.config.bias_hides else "")


def _require_hidden(each: Example, kernel: Kernel, heads: int) -> None:
    """Raises a ``FailedCheckError`` if a key with a very low bias is not like a padded key."""
    low = torch.zeros(each.query.shape[0], heads, each.query.shape[2], each.key.shape[2], dtype=each.query.dtype)
    low[..., 0] = HIDING
    key_real = torch.ones(each.key.shape[0], each.key.shape[2], dtype=torch.bool)
    key_real[:, 0] = False
    first = 1 if each.visibility.order == "causal" and not each.visibility.memory else 0  # else it sees no key
    expected = replace(each, visibility=replace(each.visibility, key_real=key_real)).run(kernel)[:, :, first:]
    where = f"bias {HIDING:g} on key 0, compared with padding it; {each.label}"
    require_close(replace(each, bias=low).run(kernel)[:, :, first:], expected, where, 1e-6)


def gradients(subject: Subject) -> str:
    """Gradients equal finite differences in float64: of query, key, value, bias and the kernel's parameters.

    Of larger inputs in one direction; there, float32 has the same gradients.
    """
    for order in subject.orders:
        _require_directions(subject, order)
        for masked in (False, True) if "padding" in subject.config.supports else (False,):
            each = example(order, batch=1, heads=1, queries=3, dim=2)
            kernel = subject.kernel(1)
            visibility = each.visibility
            if masked:
                keys = torch.arange(each.key.shape[2])[None] < each.key.shape[2] - 1
                queries = torch.arange(3)[None] < 2
                visibility = replace(visibility, key_real=keys, query_real=queries)
            kind = "with padding" if masked else "unpadded"
            _require_gradients(
                replace(each, visibility=visibility), kernel, kind, has_bias="bias" in subject.config.supports
            )
    return "equal finite differences"


def _require_directions(subject: Subject, order: Order) -> None:
    """Raises a ``FailedCheckError`` if a gradient of several examples and heads is wrong."""
    each, kernel, single = example(order, 2, 3, 20), subject.kernel(3), subject.kernel(3, dtype=torch.float32)
    names = ["query", "key", "value", *(name for name, _ in kernel.named_parameters())]
    sums, inputs = [], []
    for dtype, some in ((torch.float64, kernel), (torch.float32, single)):
        leaves = each.map(lambda tensor, dtype=dtype: tensor.to(dtype).requires_grad_())  # type: ignore[misc]
        sums.append(functools.partial(_weighted_sum, leaves, some))
        inputs.append([leaves.query, leaves.key, leaves.value, *some.parameters()])
    found, found_single = (_gradients(total(), own) for total, own in zip(sums, inputs, strict=True))
    generator = torch.Generator().manual_seed(0)
    for name, leaf, gradient, other in zip(names, inputs[0], found, found_single, strict=True):
        direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        expected = difference_along(leaf, direction, lambda: float(sums[0]()))
        where, quantity = f"in one direction; {each.label}", f"gradient of {name}"
        require_close((gradient * direction).sum(), torch.tensor(expected), where, 1e-4, quantity)
        require_close(other, gradient, f"in float32; {each.label}", 1e-3, quantity)


def _weighted_sum(each: Example, kernel: Kernel) -> Tensor:
    output = each.run(kernel)
    return (output * _coefficients(output)).sum()


def _gradients(total: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns the gradient of each input, 0 for those that are not used."""
    if not total.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(each) if one is None else one for each, one in zip(inputs, found, strict=True)]


def _require_gradients(each: Example, kernel: Kernel, kind: str, *, has_bias: bool) -> None:
    shift = torch.zeros(*each.query.shape[:3], each.key.shape[2], dtype=each.query.dtype)
    leaves = [tensor.clone().requires_grad_() for tensor in (each.query, each.key, each.value, shift)]
    names = ["query", "key", "value", "bias", *(name for name, _ in kernel.named_parameters())]
    own = list(kernel.parameters())
    for parameter in own:
        parameter.requires_grad_()

    def run(query: Tensor, key: Tensor, value: Tensor, added: Tensor) -> Tensor:
        output: Tensor = kernel(query, key, value, each.visibility, added if has_bias else None)
        return (output * _coefficients(output)).sum()

    output = run(*leaves)
    inputs = [*leaves, *own]
    found = _gradients(output, inputs)
    with torch.no_grad():
        for name, leaf, gradient in zip(names, inputs, found, strict=True):
            expected = finite_differences(leaf, lambda: float(run(*leaves)))
            gap = difference(gradient, expected)
            if gap > 1e-4:
                raise FailedCheckError(f"{kind}; {each.label}: the gradient of {name} is off by {gap:.2g}")


def finite_differences(leaf: Tensor, value: Callable[[], float]) -> Tensor:
    """Returns central differences of a function with respect to a tensor that it reads."""
    step, found = 1e-6, torch.zeros_like(leaf)
    flat, out = leaf.view(-1), found.view(-1)
    for index in range(flat.numel()):
        kept = float(flat[index])
        flat[index] = kept + step
        above = value()
        flat[index] = kept - step
        out[index] = (above - value()) / (2 * step)
        flat[index] = kept
    return found


def difference_along(leaf: Tensor, direction: Tensor, value: Callable[[], float]) -> float:
    """Returns the central difference of a function, in one direction of a tensor that it reads."""
    step, start, found = 1e-6, leaf.detach().clone(), []
    with torch.no_grad():
        for sign in (1, -1):
            leaf.copy_(start + sign * step * direction)
            found.append(value())
        leaf.copy_(start)
    return (found[0] - found[1]) / (2 * step)


def _coefficients(output: Tensor) -> Tensor:
    """Returns fixed coefficients by which the output is summed, so that no gradient cancels."""
    return torch.arange(1, output.numel() + 1, dtype=output.dtype).sin().view_as(output)


def half_precision(subject: Subject) -> str:
    """In half precision the output is that of float64 rounded: sums and large scores neither overflow nor vanish."""
    for dtype in (torch.bfloat16, torch.float16):
        for order in subject.orders:
            for queries, dim, scale in ((3, 4, 1.0), (300, 4, 1.0), (3, 64, 128.0)):
                each = example(order, batch=1, heads=1, queries=queries, dim=dim, dtype=dtype, scale=scale)
                expected = each.map(lambda tensor: tensor.double()).run(subject.kernel(1))
                largest = float(expected.detach().abs().max())
                if not largest <= torch.finfo(dtype).max / 4:
                    continue  # the output itself is too large for this dtype
                with torch.autocast("cpu", dtype=dtype):  # as in training
                    found = each.run(subject.kernel(1, dtype=torch.float32))
                where = f"{dtype}, numbers up to {float(each.query.abs().max()):.0f}; {each.label}"
                if found.dtype != dtype:
                    raise FailedCheckError(f"{where}: the output has dtype {found.dtype}")
                scale_of_output = largest or 1.0
                require_close(found / scale_of_output, expected / scale_of_output, where, HALF * torch.finfo(dtype).eps)
    return "bfloat16 and float16 as float64, rounded"


def dropout(subject: Subject) -> str:
    """Dropout acts in training alone, keeps the mean of the output, and follows the seed.

    It differs between examples and between heads, and the output varies at least as if each weight were dropped by
    itself.
    """
    require_support(subject, "dropout")
    for order in subject.orders:
        _require_dropout(subject, order)
    return "in training alone, and keeps the mean"


def _require_dropout(subject: Subject, order: Order) -> None:
    single = example(order, batch=1, heads=1, queries=3, dim=2)
    each = single.map(lambda tensor: tensor.expand(2, 2, -1, -1).contiguous())  # all examples and heads are the same
    kernel, where = subject.kernel(2, DROPOUT), f"dropout {DROPOUT:g}; {each.label}"
    expected = each.run(subject.kernel(2))
    require_close(each.run(kernel), expected, f"{where}, in evaluation", 1e-12)
    kernel.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = torch.stack([each.run(kernel).detach() for _ in range(DRAWS)])
        torch.manual_seed(0)
        require_close(each.run(kernel), drawn[0], f"{where}, the same seed twice", 1e-12)
    spread = drawn.std(dim=0)
    if float(spread.max()) == 0.0:
        raise FailedCheckError(f"{where}, in training: it drops nothing")
    # Seven standard errors: less than one false alarm in a hundred million outputs.
    limit = 7 * spread / math.sqrt(DRAWS) + 1e-9
    if bool(((drawn.mean(dim=0) - expected).abs() > limit).any()):
        raise FailedCheckError(f"{where}, in training: the mean of {DRAWS} outputs is another one")
    if torch.equal(drawn[:, :1], drawn[:, 1:]) or torch.equal(drawn[:, :, :1], drawn[:, :, 1:]):
        raise FailedCheckError(f"{where}, in training: it drops the same weights in all examples or heads")
    if kernel.has_weights and type(kernel).transform is Kernel.transform:
        own = kernel.eval().weights(each.query, each.key, each.visibility)
        variance = DROPOUT / (1 - DROPOUT) * (own**2 @ each.value**2).sum()
        ratio = float(drawn.var(dim=0).sum() / variance.detach())
        if ratio < 0.75:
            raise FailedCheckError(
                f"{where}, in training: the outputs vary too little; their variance is {ratio:.2f} times that of "
                "dropping single weights"
            )


def parameters(subject: Subject) -> str:
    """Every parameter of the kernel is trained: it has a gradient, and is saved and loaded."""
    kernel = subject.kernel(2)
    if not list(kernel.parameters()):
        raise NotApplicableError("the kernel has no parameters")
    each = example(subject.orders[0])
    output = each.run(kernel)
    if output.requires_grad:
        torch.autograd.backward((output * _coefficients(output)).sum())
    without = [name for name, value in kernel.named_parameters() if value.grad is None or not bool(value.grad.any())]
    if without:
        raise FailedCheckError(f"{each.label}: no gradient of {', '.join(without)}")
    other = subject.kernel(2)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.mul_(0.9)
    other.load_state_dict(kernel.state_dict())
    require_close(each.run(other), each.run(kernel), "after saving and loading", 1e-12)
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in kernel.named_parameters())
