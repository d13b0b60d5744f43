"""Compiles the CUDA kernels and counts their instructions. It needs no GPU and measures no time.

A kernel is fast if it executes few instructions per pair of query and key besides its matrix products. On Hopper, in
bfloat16, the products take as long as head_dim / 16 other instructions per pair; an exponential counts as 8.
"""

import importlib.metadata
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from seqarena.common.attention import find_attention
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.attention.triton.available import INSTALLED, INTERPRETED, LEAST_WIDTH, MOST_WIDTH
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.saved_table import add_output_options, print_table

if TYPE_CHECKING:
    from seqarena.common.attention.triton.launch import Role
    from seqarena.scripts.benchmark.compiled import CompiledKernel

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MIXED = {"dnas": False, "hnas": True}
"""Variants with the kernels of doubly-normalised attention -> whether these compute a mixture with softmax."""
KINDS = {
    "causal": "in causal order", "drops": "with dropout", "biased": "with a bias", "segments": "with packed sequences",
    "window": "with a window",
}  # fmt: skip
"""Options of the command -> their words in the title."""
CAPABILITIES = {"8.0": 80, "8.6": 86, "8.9": 89, "9.0": 90, "10.0": 100}
"""Compute capabilities of A100, of two later generations, of H100 and H200, and of B200."""


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark kernels`` and returns its exit code."""
    options = _parse(arguments)
    found = []
    for capability, precision, width in itertools.product(options.capability, options.precision, options.head_dim):
        for variant in options.attention:
            print(f"compiling {variant} for {capability}, {precision}, head_dim {width}", file=sys.stderr)
            for each in compiled_of(variant, capability, precision, width, options):
                found.append((variant, capability, precision, width, each))
    if options.json:
        names = ("attention", "capability", "precision", "head_dim")
        print(json.dumps([dict(zip(names, case, strict=True)) | asdict(each) for *case, each in found]))
        return 0
    headings = ["kernel", "for", "head_dim", "tile", "registers", "spills", "KiB", "instructions", "exponentials"]
    rows = [
        [
            f"{variant} {each.role.replace('_', ' ')}", f"{capability} {precision}", str(width),
            f"{each.tiles.own} x {each.tiles.others}", str(each.registers), str(each.spills),
            f"{each.shared_bytes / 1024:.0f}", f"{each.instructions:.1f}", f"{each.exponentials:.1f}",
        ]
        for variant, capability, precision, width, each in found
    ]  # fmt: skip
    notes = [
        "tile: rows or keys per program, times those per iteration; registers: per thread, at most 255; KiB: shared "
        "memory",
        "spills: instructions in the loop over tiles that store or reload registers; instructions, exponentials: per "
        "pair of query and key, without the matrix products",
    ]
    kinds = [words for name, words in KINDS.items() if getattr(options, name)]
    title = ", ".join(["instruction counts of the compiled kernels", *kinds])
    compiler = f"compiled by Triton {importlib.metadata.version('triton')}"
    print_table(options, parser().prog, arguments, title, headings, rows, notes, compiler)
    return 0


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark kernels``."""
    parser = Parser(prog="seqarena benchmark kernels", description=__doc__)
    parser.add_argument("--attention", nargs="+", default=["x3", "dnas"], help="variants (default: x3 dnas)")
    parser.add_argument("--capability", nargs="+", default=["9.0"], help=f"of {', '.join(CAPABILITIES)} (default: 9.0)")
    parser.add_argument("--precision", nargs="+", default=["bfloat16"], help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--head-dim", nargs="+", type=int, default=[64, 128], help="widths of a head (default: 64 128)")
    parser.add_argument(
        "--causal", action="store_true", help="causal order; for dnas and hnas the kernels of prefix normalisation"
    )
    parser.add_argument("--drops", action="store_true", help="with dropout")
    parser.add_argument(
        "--biased", action="store_true", help="with a trained bias; for dnas and hnas with --causal only"
    )
    parser.add_argument("--segments", action="store_true", help="with packed sequences")
    parser.add_argument("--window", action="store_true", help="with a window; needs --causal")
    parser.add_argument("--length", type=int, default=4096, help="only divisibility by 16 matters (default: 4096)")
    add_output_options(parser, json_help="print a list of JSON objects")
    return parser


def _parse(arguments: Sequence[str]) -> Any:
    options = parser().parse_args(arguments)
    for each in options.capability:
        look_up(CAPABILITIES, each, "capability")
    for each in options.precision:
        look_up(PRECISIONS, each, "precision")
    require_kernels(options.attention, options.head_dim)
    at_least_one(options, "length")
    if options.biased and not options.causal and not MIXED.keys().isdisjoint(options.attention):
        raise WrongUseError("--biased: dnas and hnas have kernels with a bias in causal order only; add --causal")
    if options.window and not options.causal:
        raise WrongUseError("--window: windows are in causal order only; add --causal")
    if options.window and options.segments:
        raise WrongUseError("--window: a call has a window or packed sequences, not both; omit --segments")
    if not INSTALLED:
        raise WrongUseError("this needs a package: pip install triton")
    if INTERPRETED:
        raise WrongUseError("TRITON_INTERPRET=1 is set, but the interpreter does not compile kernels; unset it")
    return options


def require_kernels(variants: Sequence[str], widths: Sequence[int]) -> None:
    """Raises a ``WrongUseError`` for a variant or a head width without CUDA kernels."""
    for width in widths:
        if not LEAST_WIDTH <= width <= MOST_WIDTH:
            raise WrongUseError(f"--head-dim: expected {LEAST_WIDTH} to {MOST_WIDTH}, found {width}")
    for each in variants:
        if each not in MIXED and not isinstance(find_attention(each), Elementwise):
            raise WrongUseError(
                f"--attention {each}: expected dnas, hnas or an elementwise variant; others have no kernels"
            )


def kernels_of(
    variant: str, *, causal: bool = False, drops: bool = False, biased: bool = False
) -> list[tuple["Role", Any]]:
    """Returns the kernels of a variant, in execution order, in causal order, with dropout or with a bias."""
    from seqarena.common.attention.triton import doubly_normalized, elementwise, prefix  # noqa: PLC0415  # need Triton
    from seqarena.common.attention.triton.launch import HEAVY, heavy_roles  # noqa: PLC0415

    if variant in MIXED and causal:
        return [
            ("prefix_keys", prefix.prefix_columns), ("prefix_rows", prefix.prefix_forward),
            ("prefix_keys", prefix.prefix_backward_keys), ("prefix_rows", prefix.prefix_backward_queries),
        ]  # fmt: skip
    if variant in MIXED:
        forward, keys, queries = heavy_roles(MIXED[variant] or drops)
        return [
            ("columns", doubly_normalized.column_logsumexp), (forward, doubly_normalized.normalized_forward),
            (keys, doubly_normalized.normalized_backward_keys),
            (queries, doubly_normalized.normalized_backward_queries),
        ]  # fmt: skip
    roles: list[tuple[Role, Any]] = [
        ("forward", elementwise.elementwise_forward), ("keys", elementwise.elementwise_backward_keys),
        ("queries", elementwise.elementwise_backward_queries),
    ]  # fmt: skip
    return [(HEAVY[role], kernel) for role, kernel in roles] if biased else roles


def settings_of(
    variant: str, *, causal: bool, drops: bool, biased: bool, segmented: bool = False, windowed: bool = False
) -> dict[str, Any]:
    """Returns the constants with which the kernels of a variant are compiled."""
    settings: dict[str, Any] = {
        "CAUSAL": causal,
        "DROPS": drops,
        "BIASED": biased,
        "LEARNS": biased,
        "SEGMENTED": segmented,
        "WINDOWED": windowed,
    }
    if variant in MIXED:
        return settings | {"MIXED": MIXED[variant]}
    rule: Any = find_attention(variant).build(1).rule
    return settings | {"PHI": rule.phi, "POWER": rule.power}


def compiled_of(variant: str, capability: str, precision: str, width: int, options: Any) -> list["CompiledKernel"]:
    """Returns the statistics of each kernel of a variant."""
    from seqarena.scripts.benchmark.compiled import compile_kernel  # noqa: PLC0415  # needs Triton

    settings = settings_of(
        variant, causal=options.causal, drops=options.drops, biased=options.biased, segmented=options.segments,
        windowed=options.window,
    )  # fmt: skip
    return [
        compile_kernel(kernel, role, PRECISIONS[precision], width, CAPABILITIES[capability], settings, options.length)
        for role, kernel in kernels_of(variant, causal=options.causal, drops=options.drops, biased=options.biased)
    ]
