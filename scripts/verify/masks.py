"""Checks of what is visible: padding, empty rows, the future, other queries, segments, windows."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.visibility import CALL_OPTIONS, CallOption, Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.scripts.verify.subject import (
    Example,
    FailedCheckError,
    NotApplicableError,
    Subject,
    difference,
    example,
    mode_name,
    require_close,
    require_support,
)

LONG, TIMES = 300, (37, 100, 277)
"""Length of an example that a variant may compute in blocks, and queries in the middle of blocks of many sizes."""
CONTENTS = (("zeros", 0.0), ("huge numbers", 1e30), ("NaN", float("nan")), ("infinity", float("inf")))
"""Contents of padding."""


def padded_keys(subject: Subject) -> str:
    """Padded keys change no output, whatever they contain and however low the real scores are."""
    require_support(subject, "padding")
    for each in subject.examples():
        for shift, scores in ((0.0, "scores near 0"), (200.0, "scores near -30,000")):
            low = _shifted(each, shift)
            expected = low.run(subject.kernel(each.query.shape[1]))
            for content, number in CONTENTS:
                padded = _padded(low, 2, number, queries=each.visibility.order == "causal")
                found = padded.run(subject.kernel(each.query.shape[1]))[:, :, : each.query.shape[2]]
                where = f"two padded keys of {content} added, {scores}; {each.label}"
                require_close(found, expected, where, 1e-7)
        _require_any_side(subject, each)
    return "removing them is the same"


def _require_any_side(subject: Subject, each: Example) -> None:
    """Raises a ``FailedCheckError`` if padding in front of the real positions is not like padding behind them.

    Without an order, only of variants to which the order of keys is nothing.
    """
    kernel, count = subject.kernel(each.query.shape[1]), each.query.shape[2]
    expected = each.run(kernel)
    if each.visibility.order == "causal":
        found = _in_front(_padded(each, 2, 0.0, queries=True), queries=True).run(kernel)[:, :, -count:]
    elif difference(_turned(each).run(kernel), expected) > 1e-9:
        return
    else:
        found = _in_front(_padded(each, 2, 0.0, queries=False), queries=False).run(kernel)
    require_close(found, expected, f"two padded keys in front of the others; {each.label}", 1e-7)


def padded_queries(subject: Subject) -> str:
    """Padded queries have the output 0 and change no other output."""
    require_support(subject, "padding")
    for each in subject.examples():
        kernel, queries = subject.kernel(each.query.shape[1]), each.query.shape[2]
        expected = each.run(kernel)
        for content, number in CONTENTS:
            found = _padded(each, 2, number, queries=True, keys=each.visibility.order == "causal").run(kernel)
            where = f"two padded queries of {content} added; {each.label}"
            require_close(found[:, :, :queries], expected, where, 1e-7)
            if not bool((found[:, :, queries:] == 0).all()):
                raise FailedCheckError(f"{where}: the output of a padded query is not exactly 0")
    return "removing them is the same"


def empty_rows(subject: Subject) -> str:
    """A query without a visible key has the output 0, and all gradients are finite."""
    require_support(subject, "padding")
    for each in subject.examples():
        batch, heads, _, _ = each.query.shape
        key_real = torch.ones(batch, each.key.shape[2], dtype=torch.bool)
        key_real[-1] = False
        leaves = each.map(lambda tensor: tensor.clone().requires_grad_())
        output = replace(leaves, visibility=replace(each.visibility, key_real=key_real)).run(subject.kernel(heads))
        if not bool((output[-1] == 0).all()):
            raise FailedCheckError(f"all keys of one example padded; {each.label}: the output is not exactly 0")
        torch.autograd.backward(output.square().sum())
        if not all(tensor.grad is None or bool(torch.isfinite(tensor.grad).all()) for tensor in _tensors(leaves)):
            raise FailedCheckError(f"all keys of one example padded; {each.label}: a gradient is not finite")
    return "output 0, finite gradients"


def future(subject: Subject) -> str:
    """In causal order later tokens, and for ordered queries later queries, change no earlier output."""
    ordered = [order for order in subject.orders if order != "none"]
    if not ordered:
        raise NotApplicableError("the config lists only order 'none'")
    for memory in (False, True) if "memory" in subject.config.supports else (False,):
        for each in subject.examples(ordered, memory=memory):
            _require_no_future(subject.kernel(each.query.shape[1]), each, range(each.query.shape[2] - 1))
    for order, (is_training, dropout) in itertools.product(ordered, subject.modes):
        kernel = subject.kernel(1, dropout).train(is_training)
        _require_no_future(kernel, example(order, 1, 1, LONG, 4), TIMES, mode_name(is_training, dropout))
    return f"unchanged in {', '.join(ordered)}"


def _require_no_future(kernel: Kernel, each: Example, times: Iterable[int], mode: str = "in evaluation") -> None:
    """Raises a ``FailedCheckError`` if tokens after one of the queries ``times`` change an output up to it."""
    expected = each.run_seeded(kernel)
    for time in times:
        later = replace(each, query=_changed(each.query, time + 1))
        if each.visibility.order == "causal":
            at = time + each.visibility.memory
            later = replace(later, key=_changed(each.key, at + 1), value=_changed(each.value, at + 1))
        where = f"tokens after query {time} changed; {each.label}, {mode}"
        require_close(later.run_seeded(kernel)[:, :, : time + 1], expected[:, :, : time + 1], where, 1e-12)


def other_queries(subject: Subject) -> str:
    """A query's output depends on other queries only if the config declares ``sums_over_queries``."""
    depends = None
    for each in subject.examples():
        if each.query.shape[2] > 1 and depends is None:
            kernel, changed = subject.kernel(each.query.shape[1]), replace(each, query=_changed(each.query, stop=1))
            found, expected = (some.run(kernel)[:, :, -1:] for some in (changed, each))
            depends = None if difference(found, expected) < 1e-12 else each.label
    if depends and not subject.config.sums_over_queries:
        raise FailedCheckError(
            f"the last query's output changes with the first query; {depends}: set sums_over_queries in the config, so "
            "that padded queries are marked"
        )
    if subject.config.sums_over_queries and not depends:
        raise FailedCheckError("the config declares sums_over_queries, but no output depends on another query")
    return "depends on them, as declared" if depends else "independent of them"


def segments(subject: Subject) -> str:
    """Packed sequences give the same as the sequences alone."""
    require_support(subject, "segments")
    orders = [order for order in subject.orders if order != "ordered_queries"]
    if not orders:
        raise NotApplicableError("the config lists no order of self-attention")
    for each in subject.examples(orders):
        one = _self_attention(each)
        other = _self_attention(each.map(lambda tensor: tensor.flip(2) * 0.7))
        kernel, length = subject.kernel(each.query.shape[1]), one.query.shape[2]
        numbers = torch.tensor([0] * length + [1] * length).expand(each.query.shape[0], -1)
        packed = Example(
            query=torch.cat([one.query, other.query], dim=2),
            key=torch.cat([one.key, other.key], dim=2),
            value=torch.cat([one.value, other.value], dim=2),
            visibility=Visibility(order=each.visibility.order, segments=numbers),
        )
        expected = torch.cat([one.run(kernel), other.run(kernel)], dim=2)
        require_close(packed.run(kernel), expected, f"two segments in one row; {each.label}")
    return "packed equals apart"


def window(subject: Subject) -> str:
    """Under a window, keys that are older than it change no output."""
    require_support(subject, "window", "memory")
    if "causal" not in subject.orders:
        raise NotApplicableError("the config does not list order 'causal'")
    for each in subject.examples(["causal"], memory=True):
        narrow = replace(each, visibility=replace(each.visibility, window=2))
        # Keys outside the window of the last query change; its output must not. A sum over queries may reach it from
        # earlier queries, which see these keys, so such a variant gets the last query alone.
        if subject.config.sums_over_queries:
            narrow = replace(narrow, query=narrow.query[:, :, -1:], visibility=replace(
                narrow.visibility, memory=each.key.shape[2] - 1))  # fmt: skip
        kernel, old = subject.kernel(each.query.shape[1]), each.key.shape[2] - 2
        changed = replace(narrow, key=_changed(each.key, stop=old), value=_changed(each.value, stop=old))
        found, expected = changed.run(kernel)[:, :, -1:], narrow.run(kernel)[:, :, -1:]
        require_close(found, expected, f"keys before a window of 2 changed; {each.label}", 1e-12)
    return "older keys change nothing"


def refusals(subject: Subject) -> str:
    """A call with an option that the config does not list is refused."""
    missing = [each for each in CALL_OPTIONS if each not in subject.config.supports]
    if "causal" not in subject.orders:  # no other order has them
        missing = [each for each in missing if each not in ("window", "memory")]
    if not missing:
        raise NotApplicableError("all options are supported")
    for option in missing:
        order: Order = "causal" if option in ("window", "memory") else subject.orders[0]
        each, kernel = example(order, memory=2 if option == "memory" else 0), subject.kernel(dropout=0.3)
        try:
            _with_option(each, option).run(kernel.train(option == "dropout"))
        except WrongUseError:
            continue
        raise FailedCheckError(f"the config does not list {option}, but a call with it is not refused")
    return f"refused: {', '.join(missing)}"


def _with_option(each: Example, option: CallOption) -> Example:
    """Returns the example with an option of a call."""
    batch, heads, queries, keys = *each.query.shape[:3], each.key.shape[2]
    if option == "bias":
        return replace(each, bias=torch.ones(batch, heads, queries, keys, dtype=each.query.dtype))
    changes: dict[CallOption, dict[str, Any]] = {
        "padding": {"key_real": torch.arange(keys).expand(batch, -1) < keys - 1},
        "segments": {"segments": torch.arange(keys).expand(batch, -1) // 2},
        "window": {"window": 2},
    }
    return replace(each, visibility=replace(each.visibility, **changes.get(option, {})))


def _tensors(each: Example) -> tuple[Tensor, Tensor, Tensor]:
    return each.query, each.key, each.value


def _changed(tensor: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """Returns the tensor with other, larger numbers at the positions from ``start`` to before ``stop``."""
    changed = tensor.clone()
    changed[:, :, start:stop] = 3.0 * changed[:, :, start:stop].flip(-1) + 1.0
    return changed


def _self_attention(each: Example) -> Example:
    """Returns the example with as many keys as queries."""
    length = each.query.shape[2]
    return replace(each, key=each.key[:, :, :length], value=each.value[:, :, :length])


def _shifted(each: Example, shift: float) -> Example:
    """Returns the example with the square of a shift, over the root of head_dim, subtracted from each score."""
    if not shift:
        return each
    first = torch.zeros_like(each.query[0, 0, 0])
    first[0] = shift
    return replace(each, query=each.query + first, key=each.key - first)


def _turned(each: Example) -> Example:
    """Returns the example with its keys and values in the opposite order."""
    return replace(each, key=each.key.flip(2), value=each.value.flip(2))


def _in_front(each: Example, *, queries: bool) -> Example:
    """Returns the example with its two last keys, and queries, in front of the others."""
    seen = each.visibility
    real = [None if mask is None else mask.roll(2, dims=1) for mask in (seen.query_real, seen.key_real)]
    return replace(
        each,
        query=each.query.roll(2, dims=2) if queries else each.query,
        key=each.key.roll(2, dims=2),
        value=each.value.roll(2, dims=2),
        visibility=replace(seen, query_real=real[0] if queries else seen.query_real, key_real=real[1]),
    )


def _padded(each: Example, extra: int, content: float, *, queries: bool, keys: bool = True) -> Example:
    """Returns the example with padding of this content at the end of the keys, or queries, or both."""

    def longer(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0, 0, 0, extra), value=content)

    def real(tensor: Tensor, count: int) -> Tensor:
        return (torch.arange(tensor.shape[2] + count) < tensor.shape[2]).expand(tensor.shape[0], -1)

    visibility = replace(
        each.visibility,
        query_real=real(each.query, extra if queries else 0),
        key_real=real(each.key, extra if keys else 0),
    )
    made = replace(each, visibility=visibility)
    if queries:
        made = replace(made, query=longer(each.query))
    if keys:
        made = replace(made, key=longer(each.key), value=longer(each.value))
    return made
