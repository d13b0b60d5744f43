"""Measures time and memory of attention alone, by variant, length and implementation, against fused softmax."""

import importlib.metadata
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from seqarena.common.attention import find_attention, require_order
from seqarena.common.attention.base import IMPLEMENTATIONS
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.attention.triton.available import INSTALLED
from seqarena.common.attention.visibility import ORDERS, Order
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.files import write_json
from seqarena.common.parser import Parser
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.tables import TableParts
from seqarena.common.training.runtime import code_version, device_name
from seqarena.scripts.benchmark.cases import (
    PASSES,
    Case,
    Measurement,
    Setting,
    expressible,
    matmul_ceiling,
    measure,
    refusal,
)
from seqarena.scripts.benchmark.plot import plot

PROG = "seqarena benchmark attention"
VARIANTS = ["softmax", "dnas", "hnas", "x1", "x2", "x3"]


def parse(arguments: Sequence[str]) -> tuple[Setting, list[Case], Namespace]:
    """Returns setting, cases and options.

    Raises:
        WrongUseError: an invalid number, an unknown name, or a variant that is not defined for the order.
    """
    parser = Parser(prog=PROG, description=__doc__)
    parser.add_argument("--attention", nargs="+", default=VARIANTS, help=f"variants (default: {' '.join(VARIANTS)})")
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[1024, 2048, 4096], help="numbers of queries and keys"
    )
    parser.add_argument("--orders", nargs="+", default=["none"], help=f"{', '.join(ORDERS)} (default: none)")
    parser.add_argument(
        "--implementations", nargs="+", help=f"of {', '.join(IMPLEMENTATIONS)} (default: all applicable)"
    )
    parser.add_argument("--device", help="cpu or cuda (default: cuda if available)")
    parser.add_argument("--batch", type=int, default=8, help="batch size (default: 8)")
    parser.add_argument("--heads", type=int, default=2, help="heads (default: 2)")
    parser.add_argument("--head-dim", type=int, default=32, help="width of a head (default: 32)")
    parser.add_argument("--dropout", type=float, default=0.0, help="probability of dropping a weight (default: 0)")
    parser.add_argument("--padding", type=float, default=0.0, help="fraction of tokens that are padding (default: 0)")
    parser.add_argument("--precision", default="float32", help="float32, bfloat16 or float16 (default: float32)")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds over all cases of a length (default: 5)")
    parser.add_argument("--no-memory", action="store_true", help="skip peak memory, which takes a process per case")
    parser.add_argument("--out", type=Path, default=Path("benchmarks"), help="folder of the JSON file and the plot")
    add_output_options(parser, json_help="print the measurements as one JSON object")
    options = parser.parse_args(arguments)
    for name in ("batch", "heads", "head_dim", "repeats"):
        if getattr(options, name) < 1:
            raise WrongUseError(f"--{name.replace('_', '-')}: expected at least 1, found {getattr(options, name)}")
    for length in options.lengths:
        if length < 1:
            raise WrongUseError(f"--lengths: expected at least 1, found {length}")
    for name in ("dropout", "padding"):
        if not 0 <= getattr(options, name) < 1:
            raise WrongUseError(f"--{name}: expected 0 up to below 1, found {getattr(options, name)}")
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    look_up(dtypes, options.precision, "precision")
    for each in options.implementations or ():
        look_up(dict.fromkeys(IMPLEMENTATIONS, 0), each, "implementation")
    for order in options.orders:
        look_up(dict.fromkeys(ORDERS, 0), order, "order")
    setting = Setting(
        batch=options.batch,
        heads=options.heads,
        head_dim=options.head_dim,
        dropout=options.dropout,
        padding=options.padding,
        precision=options.precision,
        device=find_device(options.device),
        repeats=options.repeats,
    )
    for variant in options.attention:
        _require_variant(variant, options.orders)
    cases = [
        Case(variant=variant, order=order, implementation=implementation, length=length)
        for length in sorted(set(options.lengths))
        for order in options.orders
        for variant in options.attention
        if order in find_attention(variant).orders
        for implementation in reversed(IMPLEMENTATIONS)
        if options.implementations is None or implementation in options.implementations
    ]
    for each in options.implementations or ():
        own = [case for case in cases if case.implementation == each]
        if not any(expressible(setting, case) for case in own):
            raise WrongUseError(f"--implementations {each}: {refusal(setting, own[0]) or 'its matrices do not fit'}")
    return setting, cases, options


def _require_variant(name: str, orders: Sequence[Order]) -> None:
    """Raises a ``WrongUseError`` for a token mixer, and for a variant that is not defined for any of the orders."""
    config = find_attention(name)
    if isinstance(config, MixerConfig):
        raise WrongUseError(
            f"attention {name!r} is a token mixer, without a kernel; seqarena benchmark layers measures whole layers"
        )
    if not any(order in config.orders for order in orders):
        require_order(config, orders[0])


def find_device(name: str | None) -> str:
    """Returns the device of that name, which must exist; None: cuda if there is a GPU, else cpu.

    Raises:
        WrongUseError: no such device.
    """
    known = {"cpu": True, "cuda": torch.cuda.is_available()}
    if name is None:
        return "cuda" if known["cuda"] else "cpu"
    if not look_up(known, name, "device"):
        raise WrongUseError(
            "--device cuda: PyTorch finds no GPU (nvidia-smi shows whether there is one); --device cpu measures the CPU"
        )
    return name


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark attention`` and returns its exit code."""
    setting, cases, options = parse(arguments)
    found: list[Measurement] = []
    print("matrix multiply ...", file=sys.stderr)
    ceiling = matmul_ceiling(setting)
    lengths = sorted({case.length for case in cases})
    try:
        for length in lengths:
            some = [case for case in cases if case.length == length and expressible(setting, case)]
            found += measure(setting, some, not options.no_memory)
    except KeyboardInterrupt:
        lengths = sorted({each.case.length for each in found})
        if not lengths:
            raise
        print(f"interrupted; keeping the measured lengths: {', '.join(map(str, lengths))}", file=sys.stderr)
        if options.save is not None:  # the command in the file would be that of all lengths
            print(f"the table is not written to {options.save}", file=sys.stderr)
            options.save = None
    record = record_of(setting, found, ceiling)
    name = f"attention-{setting.device}-{setting.precision}"
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", record)
    plot(setting, found, out / f"{name}.png")
    if options.json:
        print(json.dumps(record))
        return 0
    print_table(options, PROG, arguments, *table(setting, found, ceiling, record["device"]), device=record["device"])
    print(f"{out / name}.json, {out / name}.png")
    return 0


def record_of(setting: Setting, found: Sequence[Measurement], ceiling: float) -> dict[str, Any]:
    """Returns the record that ``seqarena report`` reads; ``ceiling``: operations per second of a large product."""
    return {
        "setting": asdict(setting),
        "device": device_name(torch.device(setting.device)),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "triton": importlib.metadata.version("triton") if INSTALLED else None,
        **code_version(),
        "matmul_flops_per_second": ceiling,
        "measurements": [asdict(each) for each in found],
    }


def backends(found: Sequence[Measurement], order: str) -> str:
    """Returns the time of each backend of PyTorch's softmax at each length, as a note."""
    times_of = {each.case.length: each.backend_seconds[order] for each in found if order in each.backend_seconds}
    texts = [
        f"{length:,}: {', '.join(f'{name} {1000 * seconds:,.2f}' for name, seconds in times.items())}"
        for length, times in times_of.items()
    ]
    return f"{'/ causal' if order == 'causal' else '/ softmax'}, ms by backend: {'; '.join(texts)}"


def table(setting: Setting, found: Sequence[Measurement], ceiling: float, device: object) -> TableParts:
    """Returns title, headings, rows and notes."""
    causal = any(each.case.order == "causal" for each in found)
    headings = ["case", "length", *(f"{name}, ms" for name in PASSES), "IQR, %", "/ softmax",
                *(["/ causal"] if causal else []), "of matmul, %", "peak MiB"]  # fmt: skip
    rows = []
    for each in found:
        # At some lengths, no case of one order may be left.
        bases = [each.baseline_seconds.get(order) for order in ("none", "causal")[: 1 + causal]]
        rows.append(
            [
                each.case.label,
                f"{each.case.length:,}",
                *(f"{1000 * each.seconds[name]:,.1f}" for name in PASSES),
                f"{100 * each.spread:.0f}",
                *("" if base is None else f"{each.seconds['both'] / base:.2f}" for base in bases),
                "" if each.flops_per_second is None else f"{100 * each.flops_per_second / ceiling:.0f}",
                "" if each.peak_memory_bytes is None else f"{each.peak_memory_bytes / 2**20:,.0f}",
            ]
        )
    title = f"attention, batch {setting.batch}, {setting.heads} heads of {setting.head_dim}, {setting.precision}"
    notes = [
        f"dropout {setting.dropout}, {setting.padding:.0%} padding; {device}; medians over rounds of all cases of a "
        f"length, of which {setting.repeats} were timed after a warm-up; both: forward and backward",
        "/ softmax: both, over the time of PyTorch's scaled_dot_product_attention in the same rounds, with its fastest "
        "backend, without dropout or padding",
        *(["/ causal: the same in causal order"] if causal else []),
        *(backends(found, order) for order in ("none", *(["causal"] if causal else []))),
        "of matmul: operations per second of the required matrix products, padding included, over the "
        f"{ceiling / 1e9:,.0f} G/s of one large product",
        "peak: forward and backward in a process of its own, without inputs and libraries",
    ]
    return title, headings, rows, notes
