"""Converts a detector's output to a folder of regions for runs: ``seqarena prepare vqa features --from PATH``.

After an interruption, the same command continues.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.data.prepared import origin
from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.parser import Parser
from seqarena.common.runs.sources import digest, imported_by
from seqarena.vqa.formats import READERS, count, format_of, pictures
from seqarena.vqa.regions import read, write


def parser() -> Parser:
    """Returns the parser of ``seqarena prepare vqa features``."""
    made = Parser(prog="seqarena prepare vqa features", description=__doc__)
    made.add_argument("--from", dest="source", type=Path, help="a .tsv, .hdf5, an LMDB, or a folder of .npz or .npy")
    made.add_argument("--out", type=Path, required=True, help="folder to write: one for each split and detector")
    made.add_argument("--detector", help="the detector's name; a model works only with detectors of the same names")
    made.add_argument("--boxes", type=int, default=100, help="maximum number of boxes per picture (default: 100)")
    made.add_argument("--format", help=f"one of {', '.join(READERS)} (default: detected from the files)")
    made.add_argument("--trust-pickles", action="store_true", help="read pickled files, which may run code")
    made.add_argument("--verify", action="store_true", help="compare the checksum of an existing --out folder")
    return made


def features(arguments: Sequence[str]) -> int:
    """Runs ``seqarena prepare vqa features`` and returns its exit code."""
    options = parser().parse_args(arguments)
    if options.boxes < 1:
        raise WrongUseError(f"--boxes: expected at least 1, found {options.boxes}")
    if options.verify:
        found = read(options.out, verify=True)
        if options.detector not in (None, found.header.detector):
            raise BadDataError(
                f"{options.out}: expected regions of --detector {options.detector}, found {found.header.detector}"
            )
    elif options.source is None or options.detector is None:
        raise WrongUseError("expected --from and --detector, or --verify for an existing folder")
    else:
        kind = options.format or format_of(options.source)
        look_up(READERS, kind, "format")
        counted = count(options.source, kind, options.trust_pickles)
        found_by = pictures(options.source, kind, options.trust_pickles)
        first = next(found_by, None)
        if first is None:
            raise BadDataError(f"{options.source}: expected pictures, found none")
        source = f"{options.source} ({origin(options.source)}, sources {digest(imported_by(__name__))})"
        found = write(
            options.out, itertools.chain([first], found_by), detector=options.detector,
            pictures=counted, boxes=options.boxes,
            width=first.features.shape[-1], source=source,
        )  # fmt: skip
    header, filled = found.header, found.counts
    print(f"{options.out}: {header.pictures:,} pictures by {header.detector}, {header.width} features per box, "
          f"{filled.min()} to {filled.max()} boxes, sha256 {header.sha256[:12]}...")  # fmt: skip
    return 0
