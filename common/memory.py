"""Settings of the C library's memory allocation for a process that trains or measures."""

import contextlib
import ctypes
import os

SETTINGS = ((-1, 2**31 - 1), (-3, 32 * 2**20))
"""Parameters of glibc's ``mallopt`` and their values in bytes.

M_TRIM_THRESHOLD: free memory beyond this number is returned to the system. M_MMAP_THRESHOLD: a block of this number or
more is returned as soon as it is freed. The value is the largest that the manual page of mallopt allows.
"""


def keep_freed_memory() -> None:
    """Lets the process keep the memory of freed tensors for later ones. Works with glibc only.

    Otherwise glibc may return this memory to the system after each training step, and in the next step the system
    clears every page again. No result depends on it. If the user set one of glibc's variables, such as
    ``MALLOC_TRIM_THRESHOLD_``, nothing is changed.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library
        library = ctypes.CDLL(None)
        for parameter, value in SETTINGS:
            library.mallopt(parameter, value)
