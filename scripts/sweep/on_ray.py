"""Runs a sweep on a Ray cluster, one task per run; a run on a lost worker is retried from its last checkpoint.

Nodes that share the folder of runs write to it. Other nodes work in a local folder, and an actor on the sweep's node
stores a copy of each checkpoint and finally of all outputs. A run therefore resumes from its last checkpoint on any
node, also when the sweep is started again.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
import threading
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.errors import WrongUseError
from seqarena.common.files import write_atomically
from seqarena.common.runs.folder import delete_versions, start_anew
from seqarena.common.runs.results import Result
from seqarena.scripts.sweep.planned_run import PlannedRun, from_description
from seqarena.scripts.sweep.progress import FAILED, RUNNING, Board

RETRIES = 3
POLL_SECONDS = 1.0
COPY_SECONDS = 5.0
"""Interval between checks for a new checkpoint to copy."""
RESULT = "result.json"
STATE = "checkpoint/last.pt"


def import_ray() -> Any:
    """Returns the module Ray, imported on demand because it is slow to import.

    Raises:
        WrongUseError: it is not installed.
    """
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise WrongUseError("--launcher ray: Ray is not installed; pip install 'seqarena[ray]'") from error
    return ray


def run_on_ray(
    planned: Sequence[PlannedRun], runs: Path, logs: Path, cpus: float, gpus: float | None
) -> list[Result | None]:
    """Measures all runs on the cluster of RAY_ADDRESS, or on a new one on this machine, and returns their results.

    ``gpus`` None: one per run if the cluster has any. The output of each run is written to its own file in ``logs``.

    Raises:
        WrongUseError: no node of the cluster has enough resources for a run.
    """
    ray = import_ray()
    todo = [number for number, each in enumerate(planned) if each.finished() is None]
    runs.mkdir(parents=True, exist_ok=True)
    mark = runs.absolute() / f".sweep-{uuid.uuid4().hex}"
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        _start(ray)
        gpus = _room(ray, cpus, gpus)
        mark.touch()
        for number in todo:
            each = planned[number]
            if each.session.overwrite:  # here and once, because a retry must not start from scratch
                start_anew(each.run, each.folder)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        keeper = (
            ray.remote(Keeper)
            .options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)
            .remote(str(runs.absolute()), str(logs.absolute()))
        )
        task = ray.remote(_measure).options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)
        waiting = {
            task.remote(number, _without_overwrite(planned[number]), str(mark), keeper, COPY_SECONDS): number
            for number in todo
        }
        results = _collect(ray, planned, waiting, keeper)
        for each, result in zip(planned, results, strict=True):
            if result is not None and (each.session.overwrite or each.session.overwrite_outdated):
                delete_versions(each.run, each.folder)
        return results
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


def _without_overwrite(each: PlannedRun) -> dict[str, Any]:
    session = dataclasses.replace(each.session, overwrite=False, overwrite_outdated=False)
    return dataclasses.replace(each, session=session).description()


def _start(ray: Any) -> None:
    """Connects to the cluster of RAY_ADDRESS, or starts one on this machine."""
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises plain exceptions, for example if its start times out
        reason = str(error).strip().partition("\n")[0]
        raise WrongUseError(f"Ray could not be started or reached: {reason}; --parallel needs no Ray") from error


def _room(ray: Any, cpus: float, gpus: float | None) -> float:
    """Returns the number of GPUs per run; raises if no node could ever start one."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    most = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    wanted = min(1.0, most) if gpus is None else gpus
    if not any(node.get("CPU", 0.0) >= cpus and node.get("GPU", 0.0) >= wanted for node in nodes):
        available = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise WrongUseError(
            f"no node of the Ray cluster has {cpus:g} CPUs and {wanted:g} GPUs for a run (nodes: {available}); "
            "reduce --cpus or --gpus"
        )
    return wanted


def _collect(ray: Any, planned: Sequence[PlannedRun], waiting: Mapping[Any, int], keeper: Any) -> list[Result | None]:
    results = [each.finished() for each in planned]
    pending = dict(waiting)
    with Board(planned) as board:
        for number, each in enumerate(results):
            if each is not None:
                board.set_result(number, each, " (finished before)")
        while pending:
            done, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
            for number, news in ray.get(keeper.all_news.remote()).items():
                if number in pending.values():
                    board.set_state(number, RUNNING, news)
            for reference in done:
                number = pending.pop(reference)
                try:
                    results[number] = found = Result(**ray.get(reference))
                    board.set_result(number, found)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    lines = str(cause).strip().splitlines() or [type(cause).__name__]
                    board.set_state(number, FAILED, lines[-1])
    return results


def _measure(number: int, description: dict[str, Any], mark: str, keeper: Any, copy_seconds: float) -> dict[str, Any]:
    """Measures a run on a node and returns its result, once all its outputs are in the sweep's folder of runs."""
    ray = import_ray()
    planned = from_description(description)
    node = ray.util.get_node_ip_address()
    ray.get(keeper.add_news.remote(number, f"on {node}"))
    with _log_to(keeper, planned.folder.name):
        try:
            if Path(mark).exists():
                return dataclasses.asdict(planned.measure())
            return _measure_locally(planned, keeper, copy_seconds)
        except Exception:
            traceback.print_exc()
            raise


def _measure_locally(planned: PlannedRun, keeper: Any, copy_seconds: float) -> dict[str, Any]:
    """Measures a run in a folder of this node and sends its outputs to the keeper."""
    ray = import_ray()
    shared = planned.session.runs
    root = Path(tempfile.gettempdir()) / f"seqarena-{os.getuid()}"
    local = dataclasses.replace(
        planned, session=dataclasses.replace(planned.session, runs=root / "runs", data=root / "data")
    )
    name = str(planned.folder.relative_to(shared))
    write_files(local.folder, ray.get(keeper.files.remote(name)))
    stop = threading.Event()
    copying = threading.Thread(target=_copy, args=(local.folder, name, keeper, copy_seconds, stop), daemon=True)
    copying.start()
    try:
        result = local.measure()
    finally:
        stop.set()
        copying.join()
    ray.get(keeper.keep.remote(name, read_files(local.folder)))
    shutil.rmtree(local.folder)
    return dataclasses.asdict(result)


def _copy(folder: Path, name: str, keeper: Any, seconds: float, stop: threading.Event) -> None:
    ray = import_ray()
    copied = None
    while not stop.wait(seconds):
        if (found := _checkpoint_time(folder)) not in (None, copied):
            with contextlib.suppress(OSError):  # files changed while being read; the next check copies them
                files = read_files(folder)
                if _checkpoint_time(folder) == found:  # else the files may belong to two checkpoints
                    ray.get(keeper.keep.remote(name, files))
                    copied = found


def _checkpoint_time(folder: Path) -> int | None:
    try:
        return (folder / STATE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def read_files(folder: Path) -> dict[str, bytes]:
    """Returns all files of a run's directory by relative path, except locks and files being written."""
    return {name: (folder / name).read_bytes() for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return [str(path.relative_to(folder)) for path in files]


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replaces the content of a run's directory by these files, each written atomically.

    The files that mark a checkpoint or a run as complete are written last; a result not among them is deleted first.
    """
    if RESULT not in files:
        (folder / RESULT).unlink(missing_ok=True)
    late = [name for name in (STATE, RESULT) if name in files]
    for name in (*(each for each in files if each not in late), *late):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file, name=name: file.write(files[name]))  # type: ignore[misc]
    for name in set(_names(folder)) - set(files):
        (folder / name).unlink()


class Keeper:
    """Actor on the sweep's node: writes files of nodes that do not share its folder, and collects news of runs."""

    def __init__(self, runs: str, logs: str) -> None:
        self.runs, self.logs = Path(runs), Path(logs)
        self.news: dict[int, str] = {}

    def add_news(self, number: int, news: str) -> None:
        """Stores where a run is executed."""
        again = ", again" if number in self.news else ""
        self.news[number] = f"{news}{again}"

    def all_news(self) -> dict[int, str]:
        """Returns where the started runs are executed."""
        return self.news

    def keep(self, name: str, files: dict[str, bytes]) -> None:
        """Writes the files of a run's directory."""
        write_files(self.runs / name, files)

    def files(self, name: str) -> dict[str, bytes]:
        """Returns the stored files of a run."""
        return read_files(self.runs / name)

    def log(self, name: str, text: str) -> None:
        """Appends output of a run to its log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("a", encoding="utf-8") as file:
            file.write(text)


class _LineSender:
    """A stream that sends its text to the keeper's log."""

    def __init__(self, keeper: Any, name: str) -> None:
        self.keeper, self.name = keeper, name

    def write(self, text: str) -> int:
        """Sends text."""
        self.keeper.log.remote(self.name, text)
        return len(text)

    def flush(self) -> None:
        """Does nothing, because nothing is buffered."""

    def isatty(self) -> bool:
        """Returns False."""
        return False


@contextlib.contextmanager
def _log_to(keeper: Any, name: str) -> Iterator[None]:
    """Sends standard output and standard error to the keeper's log."""
    sender: Any = _LineSender(keeper, name)
    with contextlib.redirect_stderr(sender), contextlib.redirect_stdout(sender):
        yield
