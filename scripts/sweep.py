"""The product of tasks, variants, norms and seeds: a plain loop, and a saved plan of the runs there should be."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.checkpoint import write_json
from common.cli import Parser, add_session_options, described, session_of
from common.config import fingerprint, to_json
from common.package import Package
from common.results import Result
from common.run import BaseRun, changed_from, row_name
from common.runtime import make_accelerator
from common.session import Session, execute, run_folder
from scripts.packages import find_package


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One run of a sweep, and the command that makes it alone."""

    package: Package
    run: BaseRun
    session: Session

    @property
    def folder(self) -> Path:
        """The directory the run will be in."""
        return run_folder(self.run, self.package.name, self.session)

    def entry(self) -> dict[str, Any]:
        """Returns what the saved plan says of this run, enough to show it as missing."""
        preset = self.package.preset(self.run)
        changes = changed_from(preset, self.run)
        return {
            "folder": str(self.folder.relative_to(self.session.runs)),
            "package": self.package.name,
            "task": self.run.task,
            "preset": self.run.preset,
            "changed": {path: [to_json(old), to_json(new)] for path, (old, new) in changes.items()},
            "run": to_json(self.run),
            "row": row_name(self.run, preset),
            "seed": self.run.seed,
            "command": self.session.command,
        }

    def measure(self) -> Result:
        """Runs it, or returns its result if it is finished."""
        return execute(self.package, self.run, self.session)


def parser() -> Parser:
    """Returns the parser of ``seqarena sweep``."""
    made = Parser(prog="seqarena sweep", description=f"{__doc__}\nFields are set for all runs: --path value.")
    made.add_argument("package", help="task package")
    made.add_argument("task", nargs="+", help="tasks of the package")
    made.add_argument("--preset", help="named run to start from (default: quick)")
    made.add_argument("--attention", nargs="+", default=[None], metavar="A", help="variants (default: the preset's)")
    made.add_argument("--norm", nargs="+", default=[None], metavar="N", help="norms (default: the preset's)")
    made.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S", help="seeds (default: 0)")
    add_session_options(made)
    return made


def plan(arguments: Sequence[str]) -> tuple[list[Planned], Session, bool]:
    """Returns the runs that the arguments mean, each checked, and whether JSON was asked for."""
    options, fields = parser().parse_known_args(arguments)
    package = find_package(options.package)
    planned = []
    for task in options.task:
        for attention in options.attention:
            for norm in options.norm:
                for seed in options.seeds:
                    run = described(package, task, options.preset, attention, norm, seed, fields, "seqarena sweep")
                    names = [
                        ("--preset", run.preset),
                        ("--attention", attention),
                        ("--norm", norm),
                        ("--seed", seed),
                    ]
                    words = [word for flag, name in names if name is not None for word in (flag, str(name))]
                    command = shlex.join(["seqarena", package.name, task, *words, *fields])
                    planned.append(Planned(package=package, run=run, session=session_of(options, command)))
    return planned, session_of(options, shlex.join(["seqarena", "sweep", *arguments])), options.json


def save_plan(planned: Sequence[Planned], session: Session) -> Path:
    """Writes the plan below ``runs/sweeps`` and returns its file; the same sweep has the same file."""
    path = session.runs / "sweeps" / f"{fingerprint([each.entry() for each in planned])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"command": session.command, "runs": [each.entry() for each in planned]})
    return path


def prepare_all(planned: Sequence[Planned]) -> None:
    """Makes or checks the data of every task once, before the first run: files that are missing are missed now."""
    todo = [each for each in planned if each.session.overwrite or not (each.folder / "result.json").exists()]
    first: dict[str, Planned] = {}
    for each in todo:
        first.setdefault(each.run.task, each)
    for each in first.values() if len(first) > 1 else ():
        each.package.assembly(each.run, each.session.data, make_accelerator(each.run.train.precision))


def run_all(planned: Sequence[Planned]) -> list[Result]:
    """Measures every run in turn and returns their results; a diverged run does not stop the others."""
    results = []
    for number, each in enumerate(planned, start=1):
        done = (each.folder / "result.json").exists() and not each.session.overwrite
        print(
            f"[{number}/{len(planned)}] {each.run.task} {each.entry()['row']} seed {each.run.seed}"
            f"{' (finished before)' if done else ''}",
            file=sys.stderr,
        )
        results.append(each.measure())
    return results


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena sweep`` and returns its exit code."""
    planned, session, as_json = plan(arguments)
    path = save_plan(planned, session)
    prepare_all(planned)
    results = run_all(planned)
    if as_json:
        print(json.dumps({"plan": str(path), "results": [dataclasses.asdict(each) for each in results]}))
    else:
        for result in results:
            score = "diverged" if result.score is None else f"{result.metric} {result.score:.4f}"
            print(f"{result.package} {result.task}  {result.row}  seed {result.seed}  {score}")
        print(f"plan: {path}; tables: seqarena leaderboard --runs {session.runs}")
    return 0 if all(result.status == "finished" for result in results) else 1
