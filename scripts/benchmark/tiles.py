"""Finds the fastest tiles of each CUDA kernel on this GPU and writes them to a file for later runs.

A run uses them if the environment variable SEQARENA_TILES names the file. Its results then differ from those with the
default tiles in the last bits, but are reproducible. Candidates whose results differ beyond the tolerance are
skipped.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqarena.common.attention.triton.available import INSTALLED, INTERPRETED
from seqarena.common.attention.triton.self_test import TOLERANCE
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.files import read_strict_json, write_json
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.tables import render
from seqarena.common.training.runtime import device_name
from seqarena.scripts.benchmark.cases import Case, Setting, expressible, forward, refusal, time_run
from seqarena.scripts.benchmark.kernels import MIXED, PRECISIONS, kernels_of, require_kernels

OWN, OTHERS, WARPS, STAGES = (32, 64, 128), (32, 64, 128), (4, 8), (2, 3)
"""Values of each tile parameter; all combinations are tried."""


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark tiles``."""
    parser = Parser(prog="seqarena benchmark tiles", description=__doc__)
    parser.add_argument("--attention", nargs="+", default=["x3", "dnas"], help="variants; all elementwise ones share "
                        "their tiles (default: x3 dnas)")  # fmt: skip
    parser.add_argument("--precision", nargs="+", default=["bfloat16"], help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--head-dim", nargs="+", type=int, default=[64, 128], help="widths of a head (default: 64 128)")
    parser.add_argument("--order", nargs="+", choices=["none", "causal"], default=["none", "causal"],
                        help="orders; of dnas and hnas only none: causal tiles are fixed (default: both)")  # fmt: skip
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1], help="dropout probabilities; all above "
                        "0 share their tiles (default: 0 0.1)")  # fmt: skip
    parser.add_argument("--length", type=int, default=4096, help="numbers of queries and keys (default: 4096)")
    parser.add_argument("--batch", type=int, default=4, help="batch size (default: 4)")
    parser.add_argument("--heads", type=int, default=16, help="heads (default: 16)")
    parser.add_argument("--repeats", type=int, default=20, help="timed runs per candidate (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("tiles.json"), help="file to create or extend (tiles.json)")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark tiles`` and returns its exit code."""
    options = parser().parse_args(arguments)
    for name in ("length", "batch", "heads", "repeats"):
        at_least_one(options, name)
    if options.order == ["causal"] and MIXED.keys() >= set(options.attention):
        raise WrongUseError("--order causal: the tiles of causal dnas and hnas are fixed; name an elementwise variant")
    if sum(each > 0 for each in options.dropout) > 1:
        raise WrongUseError("--dropout: expected at most one probability above 0, because all share their tiles")
    for each in options.dropout:
        if not 0 <= each < 1:
            raise WrongUseError(f"--dropout: expected at least 0 and below 1, found {each}")
    for each in options.precision:
        look_up(PRECISIONS, each, "precision")
    require_kernels(options.attention, options.head_dim)
    if not INSTALLED:
        raise WrongUseError("this needs a package: pip install triton")
    if not (INTERPRETED or torch.cuda.is_available()):
        raise WrongUseError(
            "tiles are measured on a GPU, but PyTorch finds none (nvidia-smi shows whether there is one)"
        )
    device = "cpu" if INTERPRETED else "cuda"
    known, card = _read_tiles(options.out), device_name(torch.device(device))
    rows: list[list[str]] = []
    variants: dict[str, str] = {}
    for each in options.attention:
        variants.setdefault(each if each in MIXED else "elementwise", each)
    for variant, precision, width, order, dropout in itertools.product(
        variants.values(), options.precision, options.head_dim, options.order, options.dropout
    ):
        if variant in MIXED and order == "causal":
            continue
        setting = Setting(
            batch=options.batch, heads=options.heads, head_dim=width, dropout=dropout, padding=0.0, precision=precision,
            device=device, repeats=options.repeats,
        )  # fmt: skip
        case = Case(variant=variant, order=order, implementation="triton", length=options.length)
        if not expressible(setting, case):
            raise WrongUseError(f"--attention {variant}: {refusal(setting, case)}")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        found, lines = search(setting, case)
        rows += lines
        known.setdefault(card, {}).update(found)
        write_json(options.out, known)
    headings = ["kernel", "present tiles", "ms", "best", "ms", "tried"]
    notes = [
        "tiles: own, others, warps, stages; ms: medians of the forward pass, or of both passes for keys and queries",
        f"{card}; set SEQARENA_TILES={options.out} to use the best tiles",
    ]
    print(render(f"tiles, length {options.length:,}", headings, rows, notes, "terminal"))
    return 0


def _read_tiles(file: Path) -> dict[str, dict[str, Any]]:
    if not file.exists():
        return {}
    try:
        found = read_strict_json(file)
    except (OSError, ValueError) as error:
        raise WrongUseError(f"--out {file}: expected a file of this command ({error}); choose another name") from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise WrongUseError(f"--out {file}: expected a file of this command; choose another name")
    return found


def search(setting: Setting, case: Case) -> tuple[dict[str, list[int]], list[list[str]]]:
    """Returns the best tiles of each of a variant's kernels by name, and a table row for each."""
    from seqarena.common.attention.triton import launch  # noqa: PLC0415  # needs Triton

    dtype, tensors, call = PRECISIONS[setting.precision], setting.tensors(case.length), forward(setting, case)
    expected = numbers_of(call, tensors)
    found, rows = {}, []
    try:
        drops, causal, mixed = setting.dropout > 0, case.order == "causal", MIXED.get(case.variant, False)
        for role, kernel in kernels_of(case.variant, causal=causal, drops=drops):
            of_columns = role == "columns"
            kinds = {"causal": causal, "drops": drops and not of_columns, "mixed": mixed and not of_columns}
            name = launch.name_of(kernel, role, dtype, setting.head_dim, **kinds)
            both = "forward" not in role and role != "columns"
            before = launch.choose_tiles(kernel, role, tensors[0], setting.head_dim, **kinds)
            tried = [before, *itertools.starmap(launch.Tiles, itertools.product(OWN, OTHERS, WARPS, STAGES))]
            times: dict[launch.Tiles, float] = {}
            for number, tiles in enumerate(dict.fromkeys(tried), 1):
                print(f"{name}: {number} of {len(set(tried))} ...", file=sys.stderr)
                launch.OVERRIDES[name] = tiles
                try:
                    if agree(numbers_of(call, tensors), expected, TOLERANCE[dtype]):
                        runs = [time_run(call, tensors, both) for _ in range(setting.repeats)]
                        times[tiles] = statistics.median(runs)
                    else:
                        print(f"{name}: {tuple(tiles)} skipped: results differ", file=sys.stderr)
                except Exception as error:  # too large for the GPU, or any other error of Triton or the driver
                    print(f"{name}: {tuple(tiles)} skipped: {type(error).__name__}", file=sys.stderr)
            if not times:
                raise WrongUseError(
                    f"{name}: no tiles reproduce the results of the present ones on this GPU; please report it"
                )
            best = min(times, key=lambda tiles: times[tiles])
            launch.OVERRIDES[name] = best  # used while the next kernels are measured
            found[name] = list(best)
            rows.append([name, _text(before), _milliseconds(times.get(before)), _text(best),
                         _milliseconds(times[best]), f"{len(times)} of {len(set(tried))}"])  # fmt: skip
    finally:
        launch.OVERRIDES.clear()
    return found, rows


def numbers_of(call: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the output and the gradients of query, key and value, always with the same dropout."""
    torch.manual_seed(0)
    output = call(tensors)
    return [output.detach(), *torch.autograd.grad(output, list(tensors[:3]), tensors[3])]


def agree(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> bool:
    """Returns whether all differences are within ``tolerance`` times the largest value."""
    pairs = zip(found, expected, strict=True)
    return all(bool((one - other).abs().max() <= tolerance * other.abs().max()) for one, other in pairs)


def _text(tiles: Sequence[int]) -> str:
    return ", ".join(map(str, tiles))


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.2f}"
