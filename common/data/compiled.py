"""Functions compiled by Numba, kept on disk where there is a place for them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from seqarena.common.runs.sources import digest, imported_by


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Returns a decorator that compiles a function, with Numba's options; its code is kept for the next process.

    Kept code is found again only while the sources of the function's module are the same: Numba itself would not
    notice an edit of a function that this one calls. Where nothing can be kept, each process compiles it anew.
    """

    def decorate(function: Any) -> Any:
        cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "seqarena" / "numba"
        config: Any = numba.config
        before, config.CACHE_DIR = config.CACHE_DIR, str(cache / digest(imported_by(function.__module__)))
        try:
            return numba.njit(cache=True, **options)(function)
        except (RuntimeError, OSError):  # no place for the cache
            return numba.njit(**options)(function)
        finally:
            config.CACHE_DIR = before

    return decorate
