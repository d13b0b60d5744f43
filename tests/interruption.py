"""Runs that are stopped: by an interrupt after some steps, or in a process of their own that is killed."""

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def stops_after(steps: int, loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loss that is given so many times and then interrupts."""
    left = iter(range(steps))

    def stopping(*given: object) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return loss(*given)

    return stopping


def start(work: Callable[[], object], told: Path | str = os.devnull) -> int:
    """Starts work in a copy of this process and returns its number; what is written to standard error goes to a file.

    Much cheaper than an interpreter that has to import everything. The process ends with 0 if the work does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads; there are none at work
        child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException), open(told, "w") as errors, contextlib.redirect_stderr(errors):
            work()
            code = 0
        os._exit(code)
    return child
