"""Results with anything in any field: each is named and skipped, or counted; the others count; nothing is raised."""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import plotly.offline
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import run_command
from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.common.seal import SEAL, seal
from seqarena.lra.presets import PRESETS
from seqarena.scripts.leaderboard import FORMATS
from seqarena.scripts.leaderboard.table import tables
from seqarena.scripts.leaderboard.verdict import verdict_of
from seqarena.scripts.seqarena import dispatch
from tests.earlier import LATER
from tests.scripts.results import result
from tests.scripts.test_leaderboard_files import CONTROL, TEXTS

RUN: dict[str, Any] = to_json(PRESETS["listops"]["quick"].run)
Place = tuple[str | int, ...]
MISSING = object()
VALUES = [
    MISSING, None, True, 0, -1, 10**19, 10**400, 1e308, -1e308, 5e-324, float("nan"), "", "1", *TEXTS, "x" * 5000,
    [], [[]], {}, [None], [1e308, 1e308], {"a": None}, {"class": "Run"}, {"": {"": []}},
    json.loads("[" * 60 + "]" * 60), json.loads("[" * 900 + "]" * 900),
]  # fmt: skip


def valid(row: str, seed: int) -> Result:
    """Returns a result as a run of this version leaves it, all fields filled."""
    environment = {"device": "a CPU", "precision": "float32", "commit": "abc", "clean": True, "python": "3.12",
                   "threads": 2, "processes": 1, "platform": "Linux", "libraries": {"torch": "2"}}  # fmt: skip
    return replace(
        result(row, seed, 50 + seed), environment=environment, segments=[{"after_step": 0, **environment}] * 2,
        sources={"lra/model.py": "0" * 12}, metrics={"accuracy": (50 + seed) / 200}, validation={"accuracy": 0.5},
        bounded={"u": [0.5]}, changed={"train.steps": [1000, 500]}, notes=["note"], message="m",
        run=RUN | {"seed": seed, "model": RUN["model"] | {"attention": to_json(ATTENTIONS[row])}},
    )  # fmt: skip


def places(values: Any, place: Place = ()) -> Iterator[Place]:
    """Yields where every value is, of long lists the first."""
    if place:
        yield place
    items = values.items() if isinstance(values, dict) else enumerate(values[:1]) if isinstance(values, list) else ()
    for name, value in items:
        yield from places(value, (*place, name))


PLACES = list(places(asdict(valid("softmax", 2))))


def changed(values: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """Returns the values with another one at a place, or without it."""
    values = deepcopy(values)
    holder: Any = values
    for name in place[:-1]:
        holder = holder[name]
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return values


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Returns what a result file holds whose author knows how it is sealed."""
    try:
        return values | {SEAL: seal(values)}
    except RecursionError:
        return values


def write(folder: Path, values: Any) -> None:
    folder.mkdir(parents=True)
    with contextlib.suppress(RecursionError):
        (folder / "result.json").write_text(json.dumps(values))


def commands(runs: Path) -> Iterator[tuple[list[str], int, str, str]]:
    """Runs every command that reads a folder of results; yields the exit code and all that was said."""
    for form in (*FORMATS, "side by side"):
        more = ["--side-by-side"] if form == "side by side" else ["--format", form]
        yield _said(["leaderboard", "--runs", str(runs), *more])
    yield _said(["report", "--runs", str(runs), "--benchmarks", str(runs / "none")])


def _said(arguments: list[str]) -> tuple[list[str], int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run_command(dispatch, arguments)
    return arguments, code, out.getvalue(), err.getvalue()


def check(mutated: dict[str, Any]) -> None:
    """Writes three results of softmax, two of dnas, and one that was changed, and looks at what is said of them."""
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        for each in (*(valid("softmax", seed) for seed in range(3)), *(valid("dnas", seed) for seed in range(2))):
            write(runs / f"{each.row}{each.seed}", sealed(asdict(each)))
        write(runs / "odd", mutated)
        for arguments, code, out, err in commands(runs):
            assert (code, "Traceback" in err) == (0, False), (arguments, err)
            assert not CONTROL.search(out + err), arguments
            skipped = [line for line in err.splitlines() if line.startswith("skipped")]
            assert len(skipped) <= 1, err
            assert all("odd/result.json: " in line for line in skipped), err
            if "json" in arguments:
                rows = [row for table in json.loads(out)["tables"] for row in table["rows"]]
                counted = sum(len(row["seeds"]) + len(row["diverged"]) for row in rows)
                superseded = "using the newest" in err
                assert counted + len(skipped) + superseded == 6, err


@pytest.fixture(autouse=True, scope="module")
def _small_page() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotly.offline, "get_plotlyjs", lambda: "")
        yield


@settings(max_examples=4, suppress_health_check=list(HealthCheck))  # every field in the extras
@given(st.sampled_from(PLACES), st.sampled_from(VALUES), st.booleans())
@example(("run", "model", "dropout"), None, False)
@example(("run", "model", "layers"), -1, False)
@example(("steps",), -1, True)
def test_a_result_with_anything_in_a_field_stops_nothing(place: Place, value: Any, is_old: bool) -> None:
    check(mutation(place, value, is_old))


def test_a_score_whose_square_is_infinite_stops_nothing() -> None:
    huge = {"package": "other", "score": 1e308, "metrics": {"accuracy": 1e308}, "example_scores": [1e308] * 200}
    check(sealed(asdict(valid("dnas", 2)) | huge))


@pytest.mark.extras
@pytest.mark.parametrize("part", range(4))
def test_every_field_stops_nothing(part: int) -> None:
    """A value a field, each value in turn; all pairs of them would take an hour."""
    for number, place in list(enumerate(PLACES))[part::4]:
        check(mutation(place, VALUES[number % len(VALUES)], number % 3 == 0))


def mutation(place: Place, value: Any, is_old: bool) -> dict[str, Any]:
    """Returns a changed result, sealed, or of the format that had no seals."""
    values = changed(asdict(valid("dnas", 2)), place, value)
    if is_old:
        return {name: each for name, each in values.items() if name not in LATER} | {"format": 1}
    return sealed(values)


@pytest.mark.parametrize(("metric", "lower_is_better"), [("loss", True), ("accuracy", False), ("taste", False)])
def test_a_task_of_another_version_has_the_direction_of_its_metric(metric: str, lower_is_better: bool) -> None:
    """The task is not known here; its metric usually is."""
    scores = {"softmax": (50, 52, 48), "dnas": (70, 72, 74)}
    found = [
        result(name, seed, correct, package="lra", task="of tomorrow", metric=metric)
        for name, each in scores.items()
        for seed, correct in enumerate(each)
    ]
    (table,) = tables(found, [], "softmax")
    assert table.title == "lra of tomorrow (version 1), preset quick"
    assert table.metric == metric
    assert table.unit == ("nats" if lower_is_better else "share")
    assert [verdict_of(row, higher_is_better=table.higher_is_better) for row in table.rows] == [
        "not compared", "worse" if lower_is_better else "better",
    ]  # fmt: skip
