"""Results that tests compare."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result, row_parts
from seqarena.common.runs.run import RowParts
from seqarena.lra.presets import PRESETS
from seqarena.lra.tasks import LISTOPS
from seqarena.scripts.leaderboard.table import Table

DATA = to_json(PRESETS["listops"]["quick"].run)["data"]
CORRECT = {
    "softmax": (50, 52, 48),
    "dnas": (70, 72, 74),
    "x3": (50, 49, 51),
}


def row_of_name(name: str) -> RowParts:
    norm = next((norm for norm in ("post", "pre", "deescalated") if f", {norm}" in name), "")
    parts: RowParts = row_parts(name, norm)
    return parts


def run(row: str, preset: str, steps: int, seed: int = 0) -> dict[str, Any]:
    values = to_json(PRESETS["listops"].get(preset, PRESETS["listops"]["quick"]).run)
    model, train = values["model"] | {"attention": {"class": row}}, values["train"] | {"steps": steps}
    return values | {"preset": preset, "seed": seed, "model": model, "train": train}


def result(row: str, seed: int, correct: int | None, **changes: object) -> Result:
    """Returns a result of 200 test examples, the first ``correct`` of them right; None: diverged."""
    made = Result(
        package="lra", task="listops", task_version=1, preset="quick", changed={}, row=row_of_name(row), attention=row,
        norm="pre", layers=2, seed=seed, status="diverged" if correct is None else "finished", metric="accuracy",
        score=None if correct is None else correct / 200,
        example_scores=[] if correct is None else [float(n < correct) for n in range(200)],
        steps=10, floors={"majority class": 0.12}, data_checksum=LISTOPS.checksums["quick"],
        parameters=1000, training_seconds=1.0, tokens_per_second=100.0 + seed, peak_memory_bytes=2**20 * (seed + 1),
        environment={"device": "a CPU", "precision": "float32"}, run=run(row, "quick", 1000, seed),
        command="c", finished_at=f"2026-01-01T00:00:0{seed}",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def only(made: Sequence[Table]) -> Table:
    assert len(made) == 1
    return made[0]
