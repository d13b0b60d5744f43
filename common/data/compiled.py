"""Functions compiled by Numba at their first call, cached on disk if possible."""

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqarena.common.runs.sources import digest, imported_by

LOCK = threading.RLock()
"""Held while Numba's cache folder is replaced."""


class CompiledFunction:
    """A function that Numba compiles at its first call, from Python or from another compiled function.

    Commands that compute nothing do not wait for Numba.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.options = function, options

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function."""
        import numba  # noqa: PLC0415  # takes a third of a second

        config: Any = numba.config
        with LOCK:
            before = config.CACHE_DIR
            try:
                cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "seqarena" / "numba"
                config.CACHE_DIR = str(cache / digest(imported_by(self.function.__module__)))
                return numba.njit(cache=True, **self.options)(self.function)
            except (RuntimeError, OSError):  # no place for the cache, or no home directory
                return numba.njit(**self.options)(self.function)
            finally:
                config.CACHE_DIR = before

    @property
    def _numba_type_(self) -> Any:
        """Numba's type of the function. Numba reads it where another compiled function calls this one."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        """Calls the compiled function."""
        return self.dispatcher(*arguments)


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Returns a decorator that compiles a function with Numba's options and caches its code for the next process.

    Cached code is reused only while the sources of the function's module are the same. Numba itself would not notice
    an edit of a function that this one calls. If nothing can be cached, each process compiles it again.
    """
    return lambda function: CompiledFunction(function, options)
