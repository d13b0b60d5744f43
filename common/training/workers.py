"""Worker processes that end when their parent does."""

import os
import threading
from multiprocessing import connection, parent_process


def leave_with_the_parent() -> None:
    """Ends this worker as soon as its parent is gone, killed without a chance to say so included.

    The first thing that a worker of ``multiprocessing`` does: the initializer of its pool.
    """
    threading.Thread(target=_leave, daemon=True).start()


def _leave() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
