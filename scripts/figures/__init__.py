"""Draws and checks claims of the papers that need no big training."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import torch

from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.parser import Parser
from seqarena.common.runs.external import add_code_option
from seqarena.common.saved_table import add_output_options, save_table
from seqarena.common.training.runtime import device_name
from seqarena.scripts.figures import (
    depth,
    p1_growth,
    p1_picture,
    p1_training,
    p2,
    p2_recall,
    p2_runs,
    p3_checkpoint,
    p3_eta,
    p3_losses,
    p3_pre_norm,
    p3_rates,
    p3_removal,
    p3_start,
    p3_steps,
    p3_tau,
)
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, MissingError, save

FIGURES: Mapping[str, Drawing] = MappingProxyType(
    {
        each.name: each
        for each in (
            p1_growth.DRAWING,
            *p1_training.DRAWINGS,
            p1_picture.DRAWING,
            *p2.DRAWINGS,
            p2_runs.DRAWING,
            p2_recall.DRAWING,
            p3_start.DRAWING,
            p3_rates.DRAWING,
            p3_steps.DRAWING,
            p3_eta.DRAWING,
            p3_pre_norm.DRAWING,
            p3_checkpoint.DRAWING,
            p3_tau.DRAWING,
            p3_removal.DRAWING,
            p3_tau.COMPARISON,
            p3_losses.DRAWING,
            *depth.DRAWINGS,
        )
    }
)
ALL = "all"
TITLE = "Claims that the figures check"
HEADINGS = ("claim: measured here", "figure", "verdict")
"""Title and columns of the table of ``--save``."""


def parser() -> Parser:
    """Returns the parser of ``seqarena figures``."""
    durations = {name: f" ({each.duration})" if each.duration else "" for name, each in FIGURES.items()}
    listed = "\n".join(f"  {name:<15} {each.source}: {each.shows}{durations[name]}" for name, each in FIGURES.items())
    made = Parser(
        prog="seqarena figures",
        description=f"{__doc__}\n\nfigures, and how long each takes on one or two CPU cores:\n{listed}\n"
        f"  {ALL:<15} all of them",
    )
    made.add_argument("names", nargs="+", metavar="NAME", help=f"figures, or {ALL}")
    made.add_argument("--quick", action="store_true", help="smaller sizes and fewer trials, as a first check")
    made.add_argument("--wikitext", help="folder or zip of WikiText-2, for depth (default: the bundled text)")
    made.add_argument("--cifar", help="files of CIFAR-10, for P1's trained figures (default: drawn digits)")
    made.add_argument("--checkpoint", type=Path, help="folder of a transformers model, for p3-checkpoint")
    made.add_argument(
        "--runs", type=Path, nargs="+", default=[], metavar="FOLDER",
        help="directories of runs, or folders of them, for p2-runs, p1-picture and p3-losses (default: runs), and for "
        "P1's trained figures (default: small models are trained)",
    )  # fmt: skip
    add_code_option(made)
    made.add_argument("--layers", type=int, nargs="+", default=[], metavar="LAYER", help="layers of P1's runs, from 1")
    made.add_argument(
        "--heads", type=int, nargs="+", default=[], metavar="HEAD",
        help="one head for all --layers, or one for each, from 1 (default: the first for p1-heads, the mean over heads "
        "for p1-picture)",
    )  # fmt: skip
    made.add_argument(
        "--pictures", type=int, nargs="+", default=[0, 1, 2, 3], metavar="NUMBER",
        help="numbers of test pictures of p1-picture, from 0; the prepared set is in the order of a hash of their "
        "content (default: 0 1 2 3)",
    )  # fmt: skip
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    made.add_argument("--out", type=Path, default=Path("figures"), help="output folder (default: figures)")
    add_output_options(made, "print the findings as one JSON object on the last line")
    return made


def available(drawings: Sequence[Drawing], settings: FigureOptions, skip: bool) -> list[Drawing]:
    """Returns the figures whose inputs exist. A missing input is an error, or printed if ``skip``."""
    ready = []
    for each in drawings:
        try:
            each.check(settings)
        except MissingError as error:
            if not skip:
                raise
            print(f"{each.name} is skipped: {error}", file=sys.stderr)
        else:
            ready.append(each)
    return ready


def select(names: Sequence[str]) -> list[Drawing]:
    """Returns the figures of these names; raises a ``WrongUseError`` that suggests the nearest name."""
    named = [look_up(FIGURES, name, "figure") for name in dict.fromkeys(names) if name != ALL]
    return list(FIGURES.values()) if ALL in names else named


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena figures`` and returns its exit code; a claim that does not hold is not a failure."""
    options = parser().parse_args(arguments)
    settings = FigureOptions(
        quick=options.quick, wikitext=options.wikitext, cifar=options.cifar, checkpoint=options.checkpoint,
        runs=tuple(options.runs), code=tuple(options.code), layers=tuple(options.layers), heads=tuple(options.heads),
        pictures=tuple(options.pictures), data=options.data_folder, trainings=options.out / "trainings",
    )  # fmt: skip
    for name in ("wikitext", "cifar"):
        if getattr(options, name) == "":
            raise WrongUseError(f"--{name}: expected a path, found nothing; omit the option to use the default")
    if options.out.exists() and not options.out.is_dir():
        raise WrongUseError(f"--out {options.out}: expected a folder, found a file")
    found = {}
    for drawing in available(select(options.names), settings, skip=ALL in options.names):
        started = time.monotonic()
        drawn = drawing.make(settings)
        paths = save(drawing, drawn, options.out)
        found[drawing.name] = [asdict(each) for each in drawn.findings]
        if not options.json:
            print(f"{drawing.name} ({drawing.source}), {time.monotonic() - started:.1f} s: {paths[0]}, .svg, .csv")
            if settings.quick and not drawn.findings:
                print("  too few steps to judge any claim")
            for each in drawn.findings:
                print(f"  {'agrees  ' if each.agrees else 'DIFFERS '} {each.claim}: {each.found}")
    if options.json:
        print(json.dumps(found))
    if options.save is not None:
        rows = [
            [f"{each['claim']}: {each['found']}", name, "agrees" if each["agrees"] else "differs"]
            for name, findings in found.items()
            for each in findings
        ]
        device = device_name(torch.device("cpu"))
        save_table(options.save, parser().prog, arguments, TITLE, HEADINGS, rows, [], device)
    return 0
