"""Worker processes that end when their parent does."""

import os
import threading
from multiprocessing import connection, parent_process


def exit_with_parent() -> None:
    """Ends this worker process as soon as its parent ends, also if the parent is killed.

    Initializer of a pool of ``multiprocessing``.
    """
    threading.Thread(target=_wait_and_exit, daemon=True).start()


def _wait_and_exit() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
