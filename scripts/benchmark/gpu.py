"""Measures a GPU, and writes one file of its name: attention by every implementation, and training steps.

docs/attention.md and docs/index.html show the files in docs/benchmarks. To add your GPU, send its file.
"""

import itertools
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import IMPLEMENTATIONS
from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.files import read_strict_json, write_json
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.runs.results import row_parts
from seqarena.common.runs.run import row_name
from seqarena.common.tables import RENDERERS, render
from seqarena.common.training.runtime import device_name
from seqarena.scripts.benchmark.attention import find_device, record_of
from seqarena.scripts.benchmark.cases import Case, Measurement, Setting, expressible, matmul_ceiling, measure
from seqarena.scripts.benchmark.selection import chosen
from seqarena.scripts.price.record import Price, PriceRecord

FOLDER = Path("docs/benchmarks")
VARIANTS = ["softmax", "dnas", "hnas", "x1", "x2", "x3"]
TASKS = [
    ["lra", "listops", "xiong2021"], ["pretraining", "wikitext2", "quick"], ["qa", "squad1", "quick"],
    ["summarization", "wire", "quick"], ["vqa", "scenes", "toy"],
]  # fmt: skip
"""A task of each package whose data need no download, and its preset."""
PRECISIONS = "bfloat16", "float32"
HEADINGS = ["device", "measurement", "variant", "computed by", "ms", "/ softmax", "of matmul, %", "tokens/s"]


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark gpu``."""
    made = Parser(prog="seqarena benchmark gpu", description=__doc__)
    made.add_argument("--attention", nargs="+", default=VARIANTS, help=f"variants (default: {' '.join(VARIANTS)})")
    made.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096], help="numbers of queries and keys")
    made.add_argument("--batch", type=int, default=8, help="batch size of attention (default: 8)")
    made.add_argument(
        "--task", nargs=3, action="append", metavar=("PACKAGE", "TASK", "PRESET"),
        help=f"task whose steps are measured, may be repeated (default: {'; '.join(' '.join(each) for each in TASKS)})",
    )  # fmt: skip
    made.add_argument("--rounds", type=int, default=7, help="rounds in which all variants take turns (default: 7)")
    made.add_argument("--steps", type=int, default=4, help="steps of a variant per round (default: 4)")
    made.add_argument("--device", help="cuda, or cpu to try the command (default: cuda)")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    made.add_argument("--out", type=Path, default=FOLDER, help=f"folder of the file (default: {FOLDER})")
    made.add_argument("--show", action="store_true", help="print the files in the folder, and measure nothing")
    made.add_argument("--format", default="terminal", help=f"{', '.join(RENDERERS)} (default: terminal)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark gpu`` and returns its exit code."""
    options = parser().parse_args(arguments)
    look_up(RENDERERS, options.format, "format")
    if options.show:
        print(tables_of(options.out, options.format))
        return 0
    for name in ("batch", "rounds", "steps"):
        at_least_one(options, name)
    if min(options.lengths) < 1:
        raise WrongUseError(f"--lengths: expected at least 1, found {min(options.lengths)}")
    device = find_device(options.device or "cuda")
    tasks = [_options(options, each) for each in options.task or TASKS]
    for task, variant in itertools.product(tasks, options.attention):  # an unknown name ends it before anything runs
        chosen(task, variant, [], "seqarena benchmark gpu")
    command = f"seqarena benchmark gpu {shlex.join(arguments)}".strip()
    name = device_name(torch.device(device))
    record = {
        "device": name,
        "command": command,
        "attention": [_attention(options, device, precision) for precision in PRECISIONS],
        "steps": [asdict(_steps(each, options.attention, command)) for each in tasks],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    write_json(path, record)
    print(_table([record], options.format))
    print(path)
    return 0


def _options(options: Namespace, task: Sequence[str]) -> Namespace:
    """Returns the options of ``seqarena price`` for a task."""
    package, name, preset = task
    return Namespace(
        package=package, task=name, preset=preset, norm=None, data_folder=options.data_folder, rounds=options.rounds,
        steps=options.steps,
    )  # fmt: skip


def _steps(task: Namespace, variants: Sequence[str], command: str) -> PriceRecord:
    from seqarena.scripts.price.command import measure_record  # noqa: PLC0415  # it imports this package

    print(f"steps of {task.package} {task.task}, preset {task.preset} ...", file=sys.stderr)
    return measure_record(task, [(each, None) for each in variants], [], command)


def _attention(options: Namespace, device: str, precision: str) -> dict[str, Any]:
    setting = Setting(
        batch=options.batch, heads=8, head_dim=64, dropout=0.0, padding=0.0, precision=precision, device=device,
        repeats=options.rounds,
    )  # fmt: skip
    print(f"attention in {precision} ...", file=sys.stderr)
    ceiling, found = matmul_ceiling(setting), list[Measurement]()
    for length in sorted(set(options.lengths)):
        cases = [
            Case(variant=variant, order=order, implementation=implementation, length=length)
            for order in ("none", "causal")
            for variant in options.attention
            if order in find_attention(variant).orders
            for implementation in IMPLEMENTATIONS
            if implementation not in ("chunked", "reference")
        ]
        found += measure(setting, [case for case in cases if expressible(setting, case)], memory=False)
    return record_of(setting, found, ceiling)


def tables_of(folder: Path, style: str) -> str:
    """Returns the tables of all files in a folder, or that there are none.

    Raises:
        BadDataError: a file is damaged, or of something else.
    """
    paths = sorted(folder.glob("*.json"))
    return _table([_read(path) for path in paths], style) if paths else "No GPU has been measured yet."


def _read(path: Path) -> dict[str, Any]:
    try:
        record = read_strict_json(path)
        if not isinstance(record, dict):
            raise TypeError("expected an object")
        _rows(record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadDataError(
            f"{path}: not a file of seqarena benchmark gpu ({type(error).__name__}: {error}); remove it"
        ) from error
    return record


def _table(records: Sequence[dict[str, Any]], style: str) -> str:
    rows = [row for record in records for row in _rows(record)]
    notes = [
        "forward and backward, medians of rounds in turns; / softmax: over PyTorch's fused softmax, or over a step "
        "with the first variant",
        "of matmul: operations per second of the required matrix products, over those of one large product",
    ]
    return render("devices", HEADINGS, rows, notes, style)


def _rows(record: dict[str, Any]) -> list[list[str]]:
    rows = [row for part in record["attention"] for row in _attention_rows(part)]
    rows += [row for part in record["steps"] for row in _step_rows(part)]
    return [[record["device"], *row] for row in rows]


def _attention_rows(part: dict[str, Any]) -> list[list[str]]:
    setting, ceiling = part["setting"], part["matmul_flops_per_second"]
    rows = []
    for each in part["measurements"]:
        case, time, speed = each["case"], each["seconds"]["both"], each["flops_per_second"]
        order = "" if case["order"] == "none" else f", {case['order']}"
        rows.append([
            f"attention, {case['length']:,} keys{order}, {setting['precision']}", case["variant"],
            case["implementation"], f"{1000 * time:,.2f}", f"{time / each['baseline_seconds'][case['order']]:.2f}",
            "" if speed is None else f"{100 * speed / ceiling:.0f}", "",
        ])  # fmt: skip
    return rows


def _step_rows(part: dict[str, Any]) -> list[list[str]]:
    prices = [Price(**each | {"row": row_parts(each["row"], "")}) for each in part["prices"]]
    record, rows = PriceRecord(**part | {"prices": prices}), []
    for price in prices:
        time, ratio = median(price.training_seconds), record.ratio(price.row, prices[0].row)
        assert ratio is not None
        rows.append([
            f"step of {record.package} {record.task} {record.preset}, {record.environment['precision']}",
            row_name(price.row), ", ".join(price.implementations), f"{1000 * time:,.1f}", f"{ratio.time:.2f}", "",
            f"{part['tokens_per_step'] / time:,.0f}",
        ])  # fmt: skip
    return rows
