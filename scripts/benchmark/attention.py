"""Time and memory of attention alone: variants, lengths and implementations, in one run beside fused softmax."""

import importlib.metadata
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from seqarena.common.attention import find_attention, require_order
from seqarena.common.attention.base import IMPLEMENTATIONS
from seqarena.common.attention.triton.available import INSTALLED
from seqarena.common.attention.visibility import ORDERS
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.files import write_json
from seqarena.common.runs.cli import Parser
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
from seqarena.scripts.tables import render

VARIANTS = ["softmax", "dnas", "hnas", "x1", "x2", "x3"]


def parse(arguments: Sequence[str]) -> tuple[Setting, list[Case], Path, bool, bool]:
    """Returns what to measure from the command line, the output folder, and whether to measure memory and print JSON.

    Raises:
        WrongUseError: a number that makes no sense, an unknown name, or a variant without the order asked for.
    """
    parser = Parser(prog="seqarena benchmark attention", description=__doc__)
    parser.add_argument("--attention", nargs="+", default=VARIANTS, help=f"variants (default: {' '.join(VARIANTS)})")
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[1024, 2048, 4096], help="numbers of queries and keys"
    )
    parser.add_argument("--orders", nargs="+", default=["none"], help=f"{', '.join(ORDERS)} (default: none)")
    parser.add_argument(
        "--implementations", nargs="+", help=f"of {', '.join(IMPLEMENTATIONS)} (default: all that can run)"
    )
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--batch", type=int, default=8, help="examples (default: 8)")
    parser.add_argument("--heads", type=int, default=2, help="heads (default: 2)")
    parser.add_argument("--head-dim", type=int, default=32, help="width of a head (default: 32)")
    parser.add_argument("--dropout", type=float, default=0.0, help="probability of dropping a weight (default: 0)")
    parser.add_argument("--padding", type=float, default=0.0, help="share of the tokens that is padding (default: 0)")
    parser.add_argument("--precision", default="float32", help="float32, bfloat16 or float16 (default: float32)")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds over all cases of a length (default: 5)")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory, which takes a process a case")
    parser.add_argument("--out", type=Path, default=Path("benchmarks"), help="folder of JSON and plot")
    parser.add_argument("--json", action="store_true", help="print the measurements as one JSON object")
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
        device=_device(options.device),
        repeats=options.repeats,
    )
    for variant in options.attention:
        if not any(order in find_attention(variant).orders for order in options.orders):
            require_order(find_attention(variant), options.orders[0])
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
    return setting, cases, options.out, not options.no_memory, options.json


def _device(asked: str | None) -> str:
    known = {"cpu": True, "cuda": torch.cuda.is_available()}
    if asked is None:
        return "cuda" if known["cuda"] else "cpu"
    if not look_up(known, asked, "device"):
        raise WrongUseError("--device cuda: PyTorch finds none here (nvidia-smi tells more, if there is one)")
    return asked


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark attention`` and returns its exit code."""
    setting, cases, out, memory, as_json = parse(arguments)
    found: list[Measurement] = []
    print("matrix multiply ...", file=sys.stderr)
    ceiling = matmul_ceiling(setting)
    lengths = sorted({case.length for case in cases})
    try:
        for length in lengths:
            some = [case for case in cases if case.length == length and expressible(setting, case)]
            found += measure(setting, some, memory)
    except KeyboardInterrupt:
        lengths = sorted({each.case.length for each in found})
        if not lengths:
            raise
        print(f"interrupted; the lengths that were measured are kept: {', '.join(map(str, lengths))}", file=sys.stderr)
    record = {
        "setting": asdict(setting),
        "device": device_name(torch.device(setting.device)),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "triton": importlib.metadata.version("triton") if INSTALLED else None,
        **code_version(),
        "matmul_flops_per_second": ceiling,
        "measurements": [asdict(each) for each in found],
    }
    name = f"attention-{setting.device}-{setting.precision}"
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", record)
    plot(setting, found, out / f"{name}.png")
    if as_json:
        print(json.dumps(record))
        return 0
    print(render(*table(setting, found, ceiling, record["device"]), "terminal"))
    print(f"{out / name}.json, {out / name}.png")
    return 0


def backends(found: Sequence[Measurement], order: str) -> str:
    """Returns what each backend of PyTorch's softmax took at each length."""
    taken = {each.case.length: each.backend_seconds[order] for each in found}
    texts = [
        f"{length:,}: {', '.join(f'{name} {1000 * seconds:,.2f}' for name, seconds in times.items())}"
        for length, times in taken.items()
    ]
    return f"{'/ causal' if order == 'causal' else '/ softmax'}, ms by backend: {'; '.join(texts)}"


def table(
    setting: Setting, found: Sequence[Measurement], ceiling: float, device: object
) -> tuple[str, list[str], list[list[str]], list[str]]:
    """Returns title, headings, rows and notes."""
    causal = any(each.case.order == "causal" for each in found)
    headings = ["case", "length", *(f"{name}, ms" for name in PASSES), "IQR, %", "/ softmax",
                *(["/ causal"] if causal else []), "of matmul, %", "peak MiB"]  # fmt: skip
    rows = []
    for each in found:
        bases = [each.baseline_seconds["none"], *([each.baseline_seconds["causal"]] if causal else [])]
        rows.append(
            [
                each.case.label,
                f"{each.case.length:,}",
                *(f"{1000 * each.seconds[name]:,.1f}" for name in PASSES),
                f"{100 * each.spread:.0f}",
                *(f"{each.seconds['both'] / base:.2f}" for base in bases),
                "" if each.flops_per_second is None else f"{100 * each.flops_per_second / ceiling:.0f}",
                "" if each.peak_memory_bytes is None else f"{each.peak_memory_bytes / 2**20:,.0f}",
            ]
        )
    title = f"attention, batch {setting.batch}, {setting.heads} heads of {setting.head_dim}, {setting.precision}"
    notes = [
        f"dropout {setting.dropout}, {setting.padding:.0%} padding; {device}; medians of {setting.repeats} rounds over "
        "all cases of a length, after one to warm up; both: forward and backward",
        "/ softmax, / causal: both, over PyTorch's scaled_dot_product_attention (causal) of the same rounds by its "
        "fastest backend, without dropout or padding",
        *(backends(found, order) for order in ("none", *(["causal"] if causal else []))),
        "of matmul: operations that the matrix products of the form cannot do without, a second, over the "
        f"{ceiling / 1e9:,.0f} G/s of one large product",
        "peak: of a process of its own, forward and backward, beyond inputs and libraries",
    ]
    return title, headings, rows, notes
