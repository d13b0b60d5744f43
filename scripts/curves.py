"""Draws the recorded curves of runs: loss, validation, bounded parameters, and diagnostics of each layer.

The training loss is that of the step, with dropout, augmentation and label smoothing; the validation loss has none.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from seqarena.common.errors import BadDataError, WrongUseError, printable
from seqarena.common.files import paths_below, write_atomically
from seqarena.common.parser import Parser
from seqarena.common.runs.folder import CURVES
from seqarena.common.seal import SEAL, seal

Curves = dict[str, dict[str, list[tuple[float, float]]]]
"""Panel -> line -> (step, value)."""
LOSS_PANELS = {"loss_per_token": "loss", "loss": "loss per word"}
"""Panels of validation losses if one of them is per token, as the training loss is: the two are drawn together."""
BOUNDED = "bounded parameters"
"""Panel of u of hnas and tau of de-escalation."""


def read_curves(folder: Path) -> Curves:
    """Returns every series of a run's ``metrics.jsonl``; each layer is a line of its own.

    Raises:
        BadDataError: an invalid line, other than a truncated last one, or one whose seal is broken. The lines of
            version 0.1 have no seal.
    """
    path = folder / "metrics.jsonl"
    curves: Curves = {}
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if SEAL in record and record.pop(SEAL) != seal(record):
                raise ValueError("its seal is broken: the line was changed after it was written")
            step = _number(record.pop("step"))
            for panel, name, value in _series(record):
                curves.setdefault(panel, {}).setdefault(name, []).append((step, _number(value)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            is_last = number == len(lines) and not text.endswith("\n")
            if is_last and isinstance(error, json.JSONDecodeError) and error.msg != "Extra data":  # truncated by a kill
                break
            raise BadDataError(f"{path}, line {number}: not a record of a step ({error})") from error
    return curves


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, found {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, found {number}")
    return number


def _series(record: dict[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Yields panel, line and value of every number in a record."""
    validation = record.get("validation")
    panels = LOSS_PANELS if isinstance(validation, dict) and "loss_per_token" in validation else {}
    for group, values in record.items():
        for name, value in values.items() if isinstance(values, dict) else [(group, values)]:
            if group == "diagnostics":
                yield from (
                    (name.replace("_", " "), f"layer {layer}", each)
                    for layer, each in enumerate(value, start=1)
                    if each is not None
                )
            elif group == "bounded":
                several = len(value) > 1
                yield from ((BOUNDED, f"{name} {index}" if several else name, each) for index, each in enumerate(value))
            elif group == "validation":
                yield panels.get(name, name).replace("_", " "), "validation", value
            else:
                yield name.replace("_", " "), "training", value


def _plain(text: str) -> str:
    """Returns text with every $ escaped, so that matplotlib does not parse formulas."""
    return printable(text).replace("$", r"\$")  # type: ignore[no-any-return]


def draw(curves: Curves, title: str, path: Path) -> None:
    """Writes the plot: one panel per quantity, one line per layer, coloured from dark to light."""
    columns = min(4, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(4 * columns, 2.8 * rows), layout="constrained")
    figure.suptitle(_plain(title))
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes, (panel, lines) in zip(panels, curves.items(), strict=False):
        for index, (name, points) in enumerate(lines.items()):
            colour = mpl.colormaps["viridis"](0.9 * index / max(1, len(lines) - 1)) if len(lines) > 2 else f"C{index}"
            steps, values = zip(*points, strict=True)
            axes.plot(
                steps, values, color=colour, label=_plain(name), linewidth=1.2, marker="." if len(points) < 20 else ""
            )
        axes.set(title=_plain(panel), xlabel="step")
        axes.grid(alpha=0.3)
        if len(lines) <= 8:
            axes.legend(fontsize="x-small")
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))


def find_runs(folder: Path) -> list[Path]:
    """Returns the folder if it is the directory of a run, else the directories of runs below it.

    Raises:
        WrongUseError: there are none.
    """
    own = folder / "metrics.jsonl"
    found = [own] if own.exists() else [path for path in paths_below(folder) if path.name == own.name]
    if not found:
        raise WrongUseError(
            f"no metrics.jsonl in or below {folder}; expected the directory of a run, such as "
            "runs/lra/listops/quick-..., or a folder of runs"
        )
    return [path.parent for path in found]


def parser() -> Parser:
    """Returns the parser of ``seqarena curves``."""
    made = Parser(prog="seqarena curves", description=__doc__)
    made.add_argument(
        "runs", nargs="+", type=Path, help="directories of runs, or folders that contain them; each gets a curves.png"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena curves`` and returns its exit code."""
    for given in parser().parse_args(arguments).runs:
        curves = {folder: read_curves(folder) for folder in find_runs(given)}
        if not any(curves.values()):
            raise WrongUseError(f"{given}: no step has been recorded yet")
        for folder, recorded in curves.items():
            if recorded:
                draw(recorded, folder.name, folder / CURVES)
                print(folder / CURVES)
    return 0
