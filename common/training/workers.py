"""Worker processes that end when their parent does, and whose own end is noticed."""

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, parent_process
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerEndedError(OSError):
    """A worker process ended before its work."""


def exit_with_parent() -> None:
    """Ends this worker process as soon as its parent ends, also if the parent is killed."""
    threading.Thread(target=_wait_and_exit, daemon=True).start()


def _wait_and_exit() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def worker_processes(count: int) -> Iterator[Executor]:
    """Gives an executor of worker processes, which are terminated if the context ends with an error.

    Raises:
        WorkerEndedError: a worker was killed. ``multiprocessing.Pool`` would wait for its result for ever.
    """
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), exit_with_parent) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise WorkerEndedError(
                "a worker process ended before its work: it was killed, for example because memory ran out, or the "
                'program that started it is a script without if __name__ == "__main__"'
            ) from error
        except BaseException:
            for worker in list((pool._processes or {}).values()):  # Python 3.14 has terminate_workers
                worker.terminate()
            raise


def run_in_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Returns the result of a function that is called in a process of its own.

    Raises:
        WorkerEndedError: the process was killed.
    """
    with worker_processes(1) as pool:
        return pool.submit(function, *arguments).result()


def map_ahead(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """Yields the results of a function for each item, in their order; at most ``ahead`` of them wait in memory."""
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
