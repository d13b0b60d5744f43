"""Measures whole attention layers, with their projections, at growing lengths: each variant beside softmax.

The time is that of forward and backward. The last column of the table is the shortest measured length from which on a
variant is faster than softmax, which PyTorch's fused attention computes.
"""

import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS, find_attention, require_order
from seqarena.common.attention.mixer import LayerShape
from seqarena.common.attention.module import self_attention
from seqarena.common.attention.visibility import ORDERS, Order, Visibility
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.parser import Parser
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.tables import TableParts
from seqarena.common.training.runtime import device_name

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
Seconds = Mapping[str, Mapping[int, float]]
"""Median seconds of each variant at each length."""


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark layers``."""
    made = Parser(prog="seqarena benchmark layers", description=__doc__)
    made.add_argument("--attention", nargs="+", help="variants (default: all that are defined for the order)")
    made.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="numbers of tokens")
    made.add_argument("--order", default="none", help="none or causal (default: none)")
    made.add_argument("--batch", type=int, default=1, help="batch size (default: 1)")
    made.add_argument("--dim", type=int, default=64, help="width of the layer (default: 64)")
    made.add_argument("--heads", type=int, default=2, help="heads (default: 2)")
    made.add_argument("--repeats", type=int, default=3, help="timed rounds over all variants of a length (default: 3)")
    made.add_argument(
        "--longest-seconds", type=float, default=5.0,
        help="a variant that took this long is not measured at greater lengths (default: 5)",
    )  # fmt: skip
    add_output_options(made, json_help="print the median seconds as one JSON object")
    return made


def parse(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Returns the options and the names of the variants, softmax first.

    Raises:
        WrongUseError: an invalid number, an unknown name, or a variant that is not defined for the order.
    """
    options = parser().parse_args(arguments)
    for name in ("batch", "dim", "heads", "repeats"):
        if getattr(options, name) < 1:
            raise WrongUseError(f"--{name}: expected at least 1, found {getattr(options, name)}")
    if min(options.lengths) < 1:
        raise WrongUseError(f"--lengths: expected at least 1, found {min(options.lengths)}")
    if not options.longest_seconds > 0:
        raise WrongUseError(f"--longest-seconds: expected a number above 0, found {options.longest_seconds}")
    if options.dim % options.heads:
        raise WrongUseError(f"--heads: expected a divisor of --dim {options.dim}, found {options.heads}")
    if options.order not in ("none", "causal"):
        look_up(dict.fromkeys(ORDERS, 0), options.order, "order")
        raise WrongUseError("--order ordered_queries is the order of a cross-attention; expected none or causal")
    names = options.attention or [name for name, config in ATTENTIONS.items() if options.order in config.orders]
    for name in names:
        require_order(find_attention(name), options.order)
    return options, list(dict.fromkeys(["softmax", *names]))


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark layers`` and returns its exit code."""
    options, names = parse(arguments)
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for length in sorted(set(options.lengths)):
        some = [name for name in names if max(found[name].values(), default=0.0) < options.longest_seconds]
        if found["softmax"] and "softmax" not in some:
            break
        print(f"length {length:,}: {len(some)} variants ...", file=sys.stderr)
        for name, seconds in measure(some, length, options).items():
            found[name][length] = seconds
    if options.json:
        print(json.dumps(found))
    else:
        print_table(options, parser().prog, arguments, *_table(found, options), device_name(torch.device("cpu")))
    return 0


def measure(names: Sequence[str], length: int, options: Namespace) -> dict[str, float]:
    """Returns median seconds of forward and backward, in rounds over all variants."""
    shape = LayerShape(dim=options.dim, heads=options.heads, width=options.dim, length=length)
    layers = {name: self_attention(find_attention(name), shape) for name in names}
    hidden = torch.randn(options.batch, length, options.dim, generator=torch.Generator().manual_seed(0))
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(options.repeats + 1):
        for name, layer in layers.items():
            seconds = _time(layer, hidden, options.order)
            if repeat:
                rounds[name].append(seconds)
    return {name: statistics.median(each) for name, each in rounds.items()}


def _time(layer: nn.Module, hidden: torch.Tensor, order: Order) -> float:
    started = time.perf_counter()
    torch.autograd.backward(layer(hidden, Visibility(order=order)).sum())
    return time.perf_counter() - started


def faster_from(own: Mapping[int, float], softmax: Mapping[int, float]) -> int | None:
    """Returns the shortest length from which on, up to the greatest, a variant is faster than softmax; None: never."""
    found = None
    for length in sorted(softmax, reverse=True):
        if length not in own or own[length] >= softmax[length]:
            break
        found = length
    return found


def _table(found: Seconds, options: Namespace) -> TableParts:
    softmax = found["softmax"]
    rows = [["softmax, ms", *(f"{1000 * seconds:,.1f}" for seconds in softmax.values()), ""]]
    for name, own in found.items():
        if name == "softmax":
            continue
        ratios = [f"{own[length] / softmax[length]:.2f}" if length in own else "" for length in softmax]
        shortest = faster_from(own, softmax)
        rows.append([name, *ratios, "" if shortest is None else f"{shortest:,}"])
    headings = ["time / softmax", *(f"N = {length:,}" for length in softmax), "faster from"]
    notes = [
        f"order {options.order}, batch {options.batch}, width {options.dim}, {options.heads} heads, float32, forward "
        f"and backward, medians of {options.repeats} rounds, {torch.get_num_threads()} thread(s)",
        f"empty: not measured, since the shorter length took {options.longest_seconds:g} seconds or more",
    ]
    return "attention layers beside softmax", headings, rows, notes
