"""A run that is stopped, as Ctrl-C would, after some steps."""

from collections.abc import Callable
from typing import Any


def stops_after(steps: int, loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loss that is given so many times and then interrupts."""
    left = iter(range(steps))

    def stopping(*given: object) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return loss(*given)

    return stopping
