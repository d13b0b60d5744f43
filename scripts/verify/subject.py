"""The variant that is verified, and the small random inputs of the checks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.visibility import CallOption, Order, Visibility

SIZES = ((1, 1, 1, 2), (1, 1, 2, 2), (1, 2, 3, 2), (2, 2, 5, 4))
"""Batch, heads, queries and head_dim of the inputs, the smallest first: the first that fails is shown."""

DROPOUT = 0.3
"""Probability of the checks with dropout."""


class FailedCheckError(Exception):
    """A check found a fault. The message shows the smallest example."""


class NotApplicableError(Exception):
    """A check does not apply to the variant. The message says why."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """Tensors of one call, and what is visible in them."""

    query: Tensor
    key: Tensor
    value: Tensor
    visibility: Visibility
    bias: Tensor | None = None

    @property
    def label(self) -> str:
        """Sizes and settings, for messages."""
        batch, heads, queries, dim = self.query.shape
        parts = [f"order {self.visibility.order}", f"{queries} queries, {self.key.shape[2]} keys"]
        parts += [f"batch {batch}, {heads} heads, head_dim {dim}"]
        parts += ["with bias"] if self.bias is not None else []
        return ", ".join(parts)

    def run(self, kernel: Kernel) -> Tensor:
        """Returns the output."""
        output: Tensor = kernel(self.query, self.key, self.value, self.visibility, self.bias)
        return output

    def run_seeded(self, kernel: Kernel) -> Tensor:
        """Returns the output with the same random numbers at every call, so that dropout drops the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.run(kernel)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Example":
        """Returns the example with a function applied to query, key and value."""
        return replace(self, query=function(self.query), key=function(self.key), value=function(self.value))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The variant that is verified."""

    name: str
    config: AttentionConfig

    def kernel(self, heads: int = 2, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Kernel:
        """Returns a kernel in evaluation.

        Parameters that begin at 0 are set to 0.1. An output that is always 0 would pass most checks.
        """
        kernel = self.config.build(heads=heads, dropout=dropout).to(dtype).eval()
        for parameter in kernel.parameters():
            if not parameter.any():
                nn.init.constant_(parameter, 0.1)
        return kernel

    @property
    def modes(self) -> list[tuple[bool, float]]:
        """Whether a call is in training, and its dropout: evaluation, training, and training with dropout."""
        rates = (0.0, DROPOUT) if "dropout" in self.config.supports else (0.0,)
        return [(False, 0.0), *((True, rate) for rate in rates)]

    @property
    def orders(self) -> tuple[Order, ...]:
        """Orders that the config lists."""
        return self.config.orders

    def examples(self, orders: Sequence[Order] | None = None, *, memory: bool = False) -> Iterator[Example]:
        """Yields examples without padding of growing size, in each order; ``memory``: in causal order two more keys."""
        for size, order in itertools.product(SIZES, self.orders if orders is None else orders):
            yield example(order, *size, memory=2 if memory and order == "causal" else 0)


def example(
    order: Order, batch: int = 2, heads: int = 2, queries: int = 5, dim: int = 4, *, memory: int = 0,
    keys: int | None = None, dtype: torch.dtype = torch.float64, scale: float = 1.5, seed: int = 0,
) -> Example:  # fmt: skip
    """Returns random inputs. In other orders than causal there is one more key than queries."""
    generator = torch.Generator().manual_seed(seed)
    keys = queries + memory if order == "causal" else queries + 1 if keys is None else keys

    def draw(length: int) -> Tensor:
        return scale * torch.randn(batch, heads, length, dim, generator=generator, dtype=torch.float64).to(dtype)

    visibility = Visibility(order=order, memory=memory if order == "causal" else 0)
    return Example(query=draw(queries), key=draw(keys), value=draw(keys), visibility=visibility)


def require_support(subject: Subject, *options: CallOption) -> None:
    """Raises a ``NotApplicableError`` if the config does not list an option. The check ``refusals`` tries it."""
    missing = [each for each in options if each not in subject.config.supports]
    if missing:
        raise NotApplicableError(f"the config does not list {', '.join(missing)}")


def mode_name(is_training: bool, dropout: float) -> str:
    """Returns the mode of a call, for messages."""
    return f"in training with dropout {dropout:g}" if dropout else "in training" if is_training else "in evaluation"


def difference(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the largest value if that is above 1; infinite if not finite."""
    if found.shape != expected.shape:
        return float("inf")
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    gap = (found - expected).abs().max() / expected.abs().max().clamp(min=1.0)
    return float(gap) if bool(torch.isfinite(gap)) else float("inf")


def require_close(
    found: Tensor, expected: Tensor, where: str, tolerance: float = 1e-9, quantity: str = "output"
) -> None:
    """Raises a ``FailedCheckError`` if the tensors differ by more than the tolerance."""
    gap = difference(found, expected)
    if gap > tolerance:
        shown = f"differs by {gap:.2g}" if gap < float("inf") else "is not finite, or has another shape"
        raise FailedCheckError(f"{where}: the {quantity} {shown}")
