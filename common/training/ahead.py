"""Makes a process's share of the next batch in a thread while a GPU computes a step."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from seqarena.common.data.batches import Batch


@dataclass(frozen=True, kw_only=True)
class Share:
    """One process's share of a batch."""

    parts: list[Batch]
    """The share in micro-batches."""
    weight: int
    """Number of terms of the mean loss of the whole batch."""
    tokens: int
    """Number of real tokens of the whole batch."""


def make_ahead(make: Callable[[int], Share], steps: range) -> Iterator[Share]:
    """Yields the share of each step. A thread makes the next share meanwhile.

    The same thread makes all shares, so that ``make`` may keep a cache. Its errors are raised at their step.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as executor:
        following: Future[Share] | None = None
        for step in steps:
            share = (following or executor.submit(make, step)).result()
            following = executor.submit(make, step + 1) if step + 1 in steps else None
            yield share
