"""Visibility of keys to queries: padding, order in time, memory, packed segments."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import KeyCounts, KeyMask, Pairs, QueryMask, Segments

Function = TypeVar("Function", bound=Callable[..., object])
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Size in bytes -> integers of that size."""


def assume_constant_result(function: Function) -> Function:
    """Marks a function that the compiler calls once, while tracing, like ``torch.compiler.assume_constant_result``.

    PyTorch's decorator imports the whole compiler, which takes half the import time of a task package.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@assume_constant_result  # the compiler itself guards on these states
def needs_formula() -> bool:
    """Returns whether forward-mode differentiation or a transform of ``torch.func`` is active.

    Operators of ``torch.library`` support reverse mode only: forward-mode derivatives through them are silently 0, and
    ``torch.func.grad`` and ``vmap`` fail or process one example at a time. The formula then computes attention.
    """
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


Layout = tuple[int, ...]
"""Dimensions of a tensor in the order of its memory, the outermost first."""
BY_HEADS, BY_TOKENS = (0, 1, 2, 3), (0, 2, 1, 3)
"""Layouts of a tensor (B H T width): contiguous, and contiguous after its heads are concatenated."""


def for_backward(tensor: Tensor | None) -> Tensor | None:
    """Returns what the backward pass keeps of an input: the tensor itself, or a copy of a mask.

    A mask of inference mode cannot be kept, and numpy can change one on a CPU.
    """
    if tensor is None or tensor.is_floating_point() or torch.compiler.is_compiling():
        return tensor
    return tensor.clone() if tensor.is_inference() or tensor.device.type == "cpu" else tensor


class ClearPadding(torch.autograd.Function):
    """Sets padding to 0 by a product of the bits, read as integers, with 0 or 1.

    Several times as fast as ``masked_fill`` on a CPU, and unlike a product of floats it also clears NaN.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, real: Tensor, layout: Layout | None) -> Tensor:
        """Returns the tensor (... B H length width) with 0 where the mask (B length) is False.

        The result has the given layout, or the tensor's own if it is None.
        """
        ctx.save_for_backward(for_backward(real))
        ctx.layout = None if layout is None else layout_of(tensor)
        bits = tensor.view(BITS[tensor.element_size()])
        out = None if layout is None else torch.empty_permuted(bits.shape, layout, dtype=bits.dtype, device=bits.device)
        return torch.mul(bits, real[:, None, :, None], out=out).view(tensor.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Returns the gradient with the same positions cleared; if a layout was given, in the tensor's."""
        (real,) = ctx.saved_tensors
        return ClearPadding.apply(grad, real, ctx.layout), None, None  # type: ignore[no-untyped-call]


def layout_of(tensor: Tensor) -> Layout:
    """Returns the layout of a tensor."""
    strides = tensor.stride()
    return tuple(sorted(range(len(strides)), key=lambda dimension: -strides[dimension]))


Order = Literal["none", "causal", "ordered_queries"]
ORDERS: tuple[Order, ...] = get_args(Order)
CallOption = Literal["padding", "bias", "dropout", "segments", "window", "memory"]
"""Parts of a call that some variants do not take into account."""
CALL_OPTIONS: tuple[CallOption, ...] = get_args(CallOption)


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Visibility of keys to queries.

    ``query_real`` and ``key_real`` mark padding with False (None: no padding). ``order`` is one of:

    - ``none``: every real key is visible to every real query.
    - ``causal``: queries and keys are one sequence, the keys preceded by ``memory`` earlier positions. Key j is visible
      to query i if j <= memory + i (bottom-right aligned).
    - ``ordered_queries``: all real keys are visible, but the queries are a sequence in time. The output of query i must
      not depend on a later query (a decoder's cross-attention).

    ``segments`` has the number of each key's packed sequence in self-attention; the queries are the last N keys.
    ``window`` (causal only): number of newest keys, including the query's own position, that are visible to a query.
    ``padded_at_end`` (causal only): queries and keys have one mask, and no padding comes before a real position. The
    order alone then hides padding from real queries. On a GPU this is not checked, because the host would wait.
    """

    query_real: QueryMask | None = None
    key_real: KeyMask | None = None
    order: Order = "none"
    memory: int = 0
    segments: Segments | None = None
    window: int | None = None
    padded_at_end: bool = False
    _shared: dict[tuple[object, ...], tuple[tuple[int, ...], Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Masks of ``share`` by name, each with the versions of the tensors that it was made from."""
    _clear: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Latest tensors of ``clear_together``, each with its version and that of the mask together."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields without tensors that were made from them."""
        return self.__dict__ | {"_shared": {}, "_clear": []}

    def share(self, name: tuple[object, ...], real: Tensor, make: Callable[[], Tensor], *others: Tensor) -> Tensor:
        """Returns a mask that ``make`` makes from ``real`` and others, once for all layers that share this visibility.

        It is made again if an operator of PyTorch changed one of them in place, and by each layer on a CPU, in
        inference mode and in compiled code.
        """
        # Compilers remove repeated operators. Tensors of inference mode could not be used in training later. On a CPU,
        # numpy may have changed ``real``.
        is_cheap = real.device.type == "cpu" or torch.compiler.is_compiling()
        if is_cheap or torch.is_inference_mode_enabled() or any(each.is_inference() for each in (real, *others)):
            return make()
        versions = real._version, *(each._version for each in others)
        found, mask = self._shared.get(name, ((), real))
        if found != versions:
            mask = make()
            self._shared[name] = versions, mask
        return mask

    def call_options(self, *, bias: bool, dropout: bool) -> set[CallOption]:
        """Returns the options of a call with this visibility, with or without a bias and dropout."""
        used: dict[CallOption, bool] = {
            "padding": self.query_real is not None or self.key_real is not None,
            "bias": bias,
            "dropout": dropout,
            "segments": self.segments is not None,
            "window": self.window is not None,
            "memory": self.memory > 0,
        }
        return {name for name, is_used in used.items() if is_used}

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raises a ``WrongUseError`` naming the argument whose shape, dtype or device does not fit query and key."""
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        # Their names in ``attend`` are added.
        query_real, key_real = "query_real (query_mask of attend)", "key_real (key_mask of attend)"
        for name, mask in ((query_real, self.query_real), (key_real, self.key_real), ("segments", self.segments)):
            if mask is not None and not isinstance(mask, Tensor):
                raise WrongUseError(f"{name}: expected a tensor, found {type(mask).__name__}")
            if mask is not None and mask.device != query.device:
                raise WrongUseError(
                    f"{name}: expected a tensor on {query.device}, like the query; found one on {mask.device}: "
                    f"move it by .to(query.device)"
                )
        if self.memory < 0:
            raise WrongUseError(f"memory: expected at least 0, found {self.memory}; are there fewer keys than queries?")
        for name, mask, length in ((query_real, self.query_real, queries), (key_real, self.key_real, keys)):
            if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, length)):
                raise WrongUseError(
                    f"{name}: expected a bool tensor of shape {(batch, length)}, True where real; "
                    f"found {mask.dtype} of shape {tuple(mask.shape)}"
                )
        if self.order == "causal" and keys != self.memory + queries:
            raise WrongUseError(
                f"order 'causal' with memory {self.memory}: expected {self.memory + queries} keys "
                f"for {queries} queries, found {keys}"
            )
        if self.order != "causal" and self.memory:
            raise WrongUseError(
                f"memory is {self.memory}, but only order 'causal' has a memory; order is {self.order!r}"
            )
        if self.window is not None and (
            not isinstance(self.window, int) or self.window < 1 or self.order != "causal" or self.segments is not None
        ):
            raise WrongUseError(
                "window: expected a whole number of at least 1, with order 'causal' and without segments; found "
                f"{self.window}, order {self.order!r}"
            )
        if self.segments is not None and (
            self.segments.is_floating_point()
            or self.segments.dtype == torch.bool
            or self.segments.shape != (batch, keys)
            or keys < queries
            or self.order == "ordered_queries"
        ):
            raise WrongUseError(
                f"segments: expected shape {(batch, keys)} of integers in self-attention (orders 'none' and 'causal'); "
                f"found {self.segments.dtype} of shape {tuple(self.segments.shape)} with order {self.order!r}"
            )

        if self.padded_at_end:
            self._check_padded_at_end()

    def _check_padded_at_end(self) -> None:
        if self.order != "causal" or self.memory or self.query_real is not self.key_real:
            raise WrongUseError(
                "padded_at_end: expected order 'causal' without memory, and one tensor as query_real and key_real; "
                f"found order {self.order!r}, memory {self.memory}"
            )
        real = self.key_real
        if real is None or real.device.type != "cpu" or torch.compiler.is_compiling() or needs_formula():
            return
        if bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise WrongUseError("padded_at_end: found a real position after padding; leave it out, or move padding")

    def clear(
        self, query: Tensor, key: Tensor, value: Tensor, *, contiguous: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the tensors (B H length width) with 0 at padding, so that not even a NaN there spreads.

        ``contiguous``: the returned tensors are contiguous, and the gradients have the layout of the arguments. If
        there is padding, this takes no further copy.

        Tensors of ``clear_together`` are returned as they are.
        """
        layout = BY_HEADS if contiguous else None
        return (
            self._cleared(query, self.query_real, layout),
            self._cleared(key, self.key_real, layout),
            self._cleared(value, self.key_real, layout),
        )

    def clear_together(self, parts: Tensor) -> tuple[Tensor, ...]:
        """Returns the parts of a tensor (B T parts H width), such as the queries, keys and values of self-attention.

        They are contiguous (B H T width), with 0 at padding, all cleared by one operator instead of one each. Without
        padding, with two masks, and in compiled code they are views that are not cleared.
        """
        real = self.key_real
        if real is None or not self._can_clear_together(parts, real):
            return tuple(each.transpose(1, 2) for each in parts.unbind(dim=2))
        joint: Tensor = ClearPadding.apply(parts.permute(2, 0, 3, 1, 4), real, (0, 1, 2, 3, 4))  # type: ignore[no-untyped-call]
        cleared = joint.unbind()
        self._clear[:] = [(weakref.ref(each), each._version + real._version) for each in cleared]
        return cleared

    def _can_clear_together(self, parts: Tensor, real: Tensor) -> bool:
        if torch.compiler.is_compiling() or needs_formula() or real is not self.query_real:
            return False
        if real.dtype is not torch.bool or real.shape != parts.shape[:2]:
            return False  # ``check`` will refuse it
        # Tensors of inference mode have no versions.
        return not (torch.is_inference_mode_enabled() or parts.is_inference() or real.is_inference())

    def clear_output(self, tensor: Tensor) -> Tensor:
        """Returns an output (B H N width) with 0 at padded queries, also in its gradient: a NaN there does not spread.

        On a GPU, it has the layout in which heads are concatenated without a copy.
        """
        return self._cleared(tensor, self.query_real, BY_TOKENS if tensor.is_cuda else None)

    def _cleared(self, tensor: Tensor, real: Tensor | None, layout: Layout | None) -> Tensor:
        """Returns a tensor (B H length width) with 0, also of its gradient, where ``real`` (B length) is False.

        It has the given layout if that is ``BY_HEADS``, or if it costs no copy.
        """
        contiguous = layout == BY_HEADS
        if real is None:
            return tensor.contiguous() if contiguous else tensor
        if self._is_clear(tensor, real):
            return tensor
        if needs_formula():
            masked = tensor.masked_fill(~real[:, None, :, None], 0.0)
            return masked.contiguous() if contiguous else masked
        # The compiler writes into no tensor of another layout.
        written = None if torch.compiler.is_compiling() else layout
        cleared: Tensor = ClearPadding.apply(tensor, real, written)  # type: ignore[no-untyped-call]
        return cleared.contiguous() if contiguous else cleared

    def _is_clear(self, tensor: Tensor, real: Tensor) -> bool:
        """Returns whether a tensor is one of ``clear_together``, and neither it nor the mask was changed since."""
        if torch.compiler.is_compiling() or not self._clear:
            return False
        return any(each() is tensor and version == tensor._version + real._version for each, version in self._clear)

    def counts(self, batch: int, queries: int, keys: int, device: torch.device) -> KeyCounts:
        """Returns the number of keys visible to each query; 0 for padded queries."""
        real = self.key_real
        if real is None:
            real = torch.ones(batch, keys, dtype=torch.bool, device=device)
        if self.order == "causal":
            seen = real.cumsum(dim=1)
            counts = seen[:, self.memory :]
            if self.window is not None:
                older = torch.nn.functional.pad(seen, (min(self.window, keys), 0))[:, self.memory : keys]
                counts = counts - older
        else:
            counts = real.sum(dim=1, keepdim=True).expand(batch, queries)
        if self.segments is not None:
            counts = _segment_counts(self.segments, real, queries, self.order == "causal")
        return counts if self.query_real is None else counts * self.query_real

    def pairs(self, queries: int, keys: int, device: torch.device) -> Pairs:
        """Returns the mask over pairs of query and key; rows of padded queries are False."""
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if self.order == "causal":
            allowed = allowed.tril(diagonal=self.memory)
        if self.window is not None:
            allowed = allowed.triu(diagonal=self.memory - self.window + 1)
        if self.segments is not None:
            own = self.segments[:, keys - queries :]  # B N
            allowed = allowed & (own[:, None, :, None] == self.segments[:, None, None, :])  # B 1 N M
        if self.key_real is not None:
            allowed = allowed & self.key_real[:, None, None, :]
        if self.query_real is not None:
            allowed = allowed & self.query_real[:, None, :, None]
        return allowed


def _segment_counts(segments: Segments, real: KeyMask, queries: int, causal: bool) -> KeyCounts:
    """Returns the number of real keys in each query's segment; if ``causal``, of those up to the query."""
    order = segments.argsort(dim=1, stable=True)  # by segment, then by time
    ordered = segments.gather(1, order).contiguous()
    before = torch.nn.functional.pad(real.gather(1, order).cumsum(dim=1), (1, 0))  # B M+1
    first = torch.searchsorted(ordered, ordered, right=False)
    stop = torch.arange(1, segments.shape[1] + 1, device=segments.device).expand_as(first)
    if not causal:
        stop = torch.searchsorted(ordered, ordered, right=True)
    counts = before.gather(1, stop) - before.gather(1, first)
    return torch.empty_like(counts).scatter_(1, order, counts)[:, segments.shape[1] - queries :]
