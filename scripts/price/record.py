"""Record of measured prices: time and memory of the training steps of several variants, measured side by side."""

import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

from seqarena.common.errors import BadDataError, printable
from seqarena.common.files import paths_below, read_strict_json, write_json
from seqarena.common.runs.config import fingerprint
from seqarena.common.runs.results import fits, row_parts
from seqarena.common.runs.run import RowParts
from seqarena.common.seal import SEAL, seal

FOLDER = "prices"
"""Name of the folder of records in a folder of runs."""
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Price:
    """Measurements of one variant; seconds are of one step, a median per round."""

    row: RowParts
    forward_seconds: list[float]
    training_seconds: list[float]
    """Forward and backward. The optimiser's update, which is the same for all, is excluded."""
    peak_memory_bytes: int
    """Peak memory of a process of its own, libraries included."""
    implementations: list[str]
    """Implementations that computed the attentions."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source files that the variant's numbers depend on, with hashes; empty in records of earlier versions."""
    row_values: dict[str, Any] = field(default_factory=dict)
    """Field path -> value of the fields that the row names, since a name can get other values; empty likewise."""


@dataclass(frozen=True, kw_only=True)
class PriceRatio:
    """Price of a variant divided by that of the baseline."""

    time: float
    """Median over rounds of the ratio of the training steps' times."""
    least: float
    """Smallest ratio of a round."""
    most: float
    memory: float
    """Ratio of the peak memories."""


@dataclass(frozen=True, kw_only=True)
class PriceRecord:
    """Prices of several variants of one task, measured in the same rounds on one machine."""

    format: int
    package: str
    task: str
    preset: str
    run: dict[str, Any]
    """JSON of the first variant's run."""
    config_version: int
    prices: list[Any]
    """``Price`` of each variant; plain values in a file."""
    environment: dict[str, Any]
    load: list[float]
    """Number of busy processes of the machine before and after, averaged over a minute."""
    command: str
    measured_at: str
    """UTC."""
    data_checksum: str | None = None
    """Checksum of the data; None in records of earlier versions."""
    tokens_per_step: float | None = None
    """Real tokens of a batch, a mean over the batches of a round; None in records of earlier versions.

    Records from before the correction in CHANGELOG.md have the mean over the batches from the first on, which is not
    timed.
    """

    def write(self, runs: Path) -> Path:
        """Writes the record below a folder of runs and returns its path."""
        values = asdict(self)
        stamp = "".join(each for each in self.measured_at if each.isdigit())
        path = runs / FOLDER / f"{self.package}-{self.task}-{self.preset}-{fingerprint(self.run)}-{stamp}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, values | {SEAL: seal(values)})
        return path

    def is_of(self, row: RowParts, sources: Mapping[str, str], row_values: Mapping[str, Any]) -> bool:
        """Returns whether a row was measured with these sources and values, as far as they are known."""
        measured = next(price for price in self.prices if price.row == row)
        if measured.sources and sources and measured.sources != dict(sources):
            return False
        # A record of another version may have a field whose role has changed since.
        shared = measured.row_values.keys() & row_values.keys()
        return all(measured.row_values[path] == row_values[path] for path in shared)

    def ratio(self, row: RowParts, baseline: RowParts) -> PriceRatio | None:
        """Returns the price of a row divided by the baseline's; None if the record lacks either."""
        found = {price.row: price for price in self.prices}
        if row not in found or baseline not in found:
            return None
        mine, theirs = found[row], found[baseline]
        ratios = [one / other for one, other in zip(mine.training_seconds, theirs.training_seconds, strict=True)]
        memory = mine.peak_memory_bytes / theirs.peak_memory_bytes
        return PriceRatio(time=median(ratios), least=min(ratios), most=max(ratios), memory=memory)


def read_price(path: Path) -> PriceRecord:
    """Returns the record in a file.

    Raises:
        BadDataError: the file is damaged, edited or of another format.
    """
    try:
        found = read_strict_json(path)
        values = printable(found)
    except (OSError, ValueError) as error:
        raise BadDataError(f"{path}: not readable as JSON ({error}); delete it and measure again") from error
    hints = typing.get_type_hints(PriceRecord)
    if not isinstance(values, dict) or values.get("format") != FORMAT or values.pop(SEAL, None) != seal(found):
        raise BadDataError(f"{path}: not a record of seqarena price, or edited; delete it and measure again")
    if not _has_fields_of(PriceRecord, values) or not all(fits(hints[name], value) for name, value in values.items()):
        raise BadDataError(f"{path}: not the fields of a record of prices; delete it and measure again")
    prices = [_price(path, each) for each in values["prices"]]
    if len({len(each.training_seconds) for each in prices}) > 1:
        raise BadDataError(f"{path}: rounds differ between variants; delete it and measure again")
    return PriceRecord(**values | {"prices": prices})


def _has_fields_of(kind: type, values: dict[str, Any]) -> bool:
    """Returns whether values have the fields of a class; those with a default are absent from earlier records."""
    optional = {each.name for each in fields(kind) if (each.default, each.default_factory) != (MISSING, MISSING)}
    return {each.name for each in fields(kind)} - optional <= set(values) <= {each.name for each in fields(kind)}


def _price(path: Path, values: Any) -> Price:
    if isinstance(values, dict) and "row" in values:
        values = values | {"row": row_parts(values["row"], "")}
    hints = typing.get_type_hints(Price)
    is_whole = isinstance(values, dict) and _has_fields_of(Price, values)
    if not is_whole or not all(fits(hints[name], value) for name, value in values.items()):
        raise BadDataError(f"{path}: a price has other fields than {', '.join(sorted(hints))}; delete it")
    price = Price(**values)
    if not price.training_seconds or min(*price.training_seconds, price.peak_memory_bytes) <= 0:
        raise BadDataError(f"{path}: a price without a positive time or memory; delete it and measure again")
    return price


def read_prices(runs: Path) -> tuple[list[PriceRecord], list[str]]:
    """Returns all records below a folder of runs, the newest first, and a message for each unreadable file."""
    found, problems = [], []
    for path in paths_below(runs):
        if path.suffix == ".json" and path.parent.name == FOLDER:
            try:
                found.append(read_price(path))
            except BadDataError as error:
                problems.append(printable(str(error)))
    return sorted(found, key=lambda record: record.measured_at, reverse=True), problems


def ratio_text(ratio: PriceRatio) -> str:
    """Returns a ratio of times with the smallest and the largest of a round, if they differ."""
    if ratio.least == ratio.most:
        return f"{ratio.time:.2f}"
    return f"{ratio.time:.2f} ({ratio.least:.2f} to {ratio.most:.2f})"
