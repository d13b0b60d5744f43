"""The runs of a sweep on a Ray cluster, a task each: retried on a lost worker from the last checkpoint.

Where the nodes see the folder of runs, they write there. Where they do not, a node works in a folder of its own, and an
actor beside the sweep keeps a copy of each checkpoint and, at the end, all that the run left: so a run goes on from its
last checkpoint on whichever node it is retried, and the same sweep, typed again, goes on from there too.
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
from seqarena.scripts.sweep.planned import PlannedRun, from_description
from seqarena.scripts.sweep.progress import FAILED, RUNNING, Board

RETRIES = 3
POLL_SECONDS = 1.0
COPY_SECONDS = 5.0
"""Between looks at whether there is a new checkpoint to copy."""
RESULT = "result.json"
STATE = "checkpoint/last.pt"


def imported() -> Any:
    """Returns Ray, which is slow to import.

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
    """Measures all runs on the cluster that RAY_ADDRESS names, or a new one of this machine, and returns their results.

    ``gpus`` None: one a run where the cluster has any. What a run says goes to a file of its own in ``logs``.

    Raises:
        WrongUseError: no node of the cluster has room for a run.
    """
    ray = imported()
    todo = [number for number, each in enumerate(planned) if each.finished() is None]
    runs.mkdir(parents=True, exist_ok=True)
    mark = runs.absolute() / f".sweep-{uuid.uuid4().hex}"
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
        gpus = _room(ray, cpus, gpus)
        mark.touch()
        for number in todo:
            each = planned[number]
            if each.session.overwrite:  # once, now: a retry must not begin again
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
        results = _collected(ray, planned, waiting, keeper)
        for each, result in zip(planned, results, strict=True):
            if result is not None and (each.session.overwrite or each.session.overwrite_outdated):
                delete_versions(each.run, each.folder)
        return results
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


def _without_overwrite(each: PlannedRun) -> dict[str, Any]:
    session = dataclasses.replace(each.session, overwrite=False, overwrite_outdated=False)
    return dataclasses.replace(each, session=session).described()


def _room(ray: Any, cpus: float, gpus: float | None) -> float:
    """Returns how many GPUs a run gets; refuses what would wait for ever."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    most = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    asked = min(1.0, most) if gpus is None else gpus
    if not any(node.get("CPU", 0.0) >= cpus and node.get("GPU", 0.0) >= asked for node in nodes):
        there = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise WrongUseError(
            f"no node of the Ray cluster has room for a run of {cpus:g} CPUs and {asked:g} GPUs (nodes: {there}); "
            "set --cpus and --gpus"
        )
    return asked


def _collected(ray: Any, planned: Sequence[PlannedRun], waiting: Mapping[Any, int], keeper: Any) -> list[Result | None]:
    results = [each.finished() for each in planned]
    left = dict(waiting)
    with Board(planned) as board:
        for number, each in enumerate(results):
            if each is not None:
                board.ended(number, each, " (finished before)")
        while left:
            done, _ = ray.wait(list(left), timeout=POLL_SECONDS)
            for number, news in ray.get(keeper.told.remote()).items():
                if number in left.values():
                    board.tell(number, RUNNING, news)
            for reference in done:
                number = left.pop(reference)
                try:
                    results[number] = found = Result(**ray.get(reference))
                    board.ended(number, found)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    said = str(cause).strip().splitlines() or [type(cause).__name__]
                    board.tell(number, FAILED, said[-1])
    return results


def _measure(number: int, description: dict[str, Any], mark: str, keeper: Any, copy_seconds: float) -> dict[str, Any]:
    """Runs on a node: measures a run and returns its result, once all that it left is where the sweep's runs are."""
    ray = imported()
    planned = from_description(description)
    node = ray.util.get_node_ip_address()
    ray.get(keeper.tell.remote(number, f"on {node}"))
    with _logged(keeper, planned.folder.name):
        try:
            if Path(mark).exists():
                return dataclasses.asdict(planned.measure())
            return _fetched(planned, keeper, copy_seconds)
        except Exception:
            traceback.print_exc()
            raise


def _fetched(planned: PlannedRun, keeper: Any, copy_seconds: float) -> dict[str, Any]:
    """Measures in a folder of this node and gives what was left to the keeper."""
    ray = imported()
    outside = planned.session.runs
    place = Path(tempfile.gettempdir()) / f"seqarena-{os.getuid()}"
    local = dataclasses.replace(
        planned, session=dataclasses.replace(planned.session, runs=place / "runs", data=place / "data")
    )
    name = str(planned.folder.relative_to(outside))
    write_files(local.folder, ray.get(keeper.given.remote(name)))
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
    ray = imported()
    copied = None
    while not stop.wait(seconds):
        if (found := _moment(folder)) not in (None, copied):
            with contextlib.suppress(OSError):  # it changed meanwhile: the next look sees it
                files = read_files(folder)
                if _moment(folder) == found:  # nothing that a checkpoint names goes before the next is there
                    ray.get(keeper.keep.remote(name, files))
                    copied = found


def _moment(folder: Path) -> int | None:
    try:
        return (folder / STATE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def read_files(folder: Path) -> dict[str, bytes]:
    """Returns all files of a run's directory by their paths in it, but for locks and what is being written."""
    return {name: (folder / name).read_bytes() for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return [str(path.relative_to(folder)) for path in files]


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Makes a run's directory hold these files and no others, each whole or not at all.

    What says that a checkpoint or a run is whole comes last; a result that is not among them goes first.
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
    """An actor beside the sweep: writes what comes from nodes that do not see its folder, and hears their news."""

    def __init__(self, runs: str, logs: str) -> None:
        self.runs, self.logs = Path(runs), Path(logs)
        self.news: dict[int, str] = {}

    def tell(self, number: int, news: str) -> None:
        """Hears where a run is."""
        again = ", again" if number in self.news else ""
        self.news[number] = f"{news}{again}"

    def told(self) -> dict[int, str]:
        """Returns where the runs are that have begun."""
        return self.news

    def keep(self, name: str, files: dict[str, bytes]) -> None:
        """Writes what is in a run's directory."""
        write_files(self.runs / name, files)

    def given(self, name: str) -> dict[str, bytes]:
        """Returns what was kept of a run so far."""
        return read_files(self.runs / name)

    def log(self, name: str, text: str) -> None:
        """Adds to what a run has said."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("a", encoding="utf-8") as file:
            file.write(text)


class _LineSender:
    """A stream whose lines go to the keeper."""

    def __init__(self, keeper: Any, name: str) -> None:
        self.keeper, self.name = keeper, name

    def write(self, text: str) -> int:
        """Sends a text."""
        self.keeper.log.remote(self.name, text)
        return len(text)

    def flush(self) -> None:
        """Has nothing to do: nothing is held."""

    def isatty(self) -> bool:
        """Is none."""
        return False


@contextlib.contextmanager
def _logged(keeper: Any, name: str) -> Iterator[None]:
    """Sends what is said on standard error and output to the keeper."""
    said: Any = _LineSender(keeper, name)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        yield
