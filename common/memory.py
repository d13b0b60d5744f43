"""Settings of the C library's memory allocation for a process that trains or measures."""

import contextlib
import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""
KEPT, LARGEST = 2**31 - 1, 32 * 2**20
"""Bytes that the process keeps when they are freed, and the largest block that is kept, the most that glibc permits."""


def keep_freed_memory() -> None:
    """Lets the process keep the memory of freed tensors for later ones; works with glibc only.

    Otherwise glibc may return it to the system after each training step, and in the next step the system clears every
    page again. No number depends on this. A user's own setting of glibc (``MALLOC_TRIM_THRESHOLD_`` and others) stays.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, LARGEST)
