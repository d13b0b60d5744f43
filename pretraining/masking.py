"""N-gram masking: chooses and replaces the target tokens, drawn from (seed, epoch, example) alone.

P2 says "n-gram masking, n <= 3, length randomly selected" and cites Joshi et al. 2020 (SpanBERT). Weights 1 / n are
inferred from ALBERT's code, which shares authors with P2. Both laws are available here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, no_type_check

import numpy as np
import numpy.typing as npt

from seqarena.common.data.compiled import compiled
from seqarena.common.data.counter import GOLDEN, hash64, mix64
from seqarena.common.data.tokenization import Tokenizer
from seqarena.common.errors import BadDataError, WrongUseError

Matrix = npt.NDArray[np.int32]
SCOPES = ("piece", "word", "span")


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Settings of n-gram masking. A span stays in its segment without its special tokens, and overlaps no other."""

    law: Literal["inverse", "geometric", "uniform", "single"] = "inverse"
    """Distribution of span lengths: n with weight 1 / n (ALBERT), geometric (SpanBERT), uniform, or always 1."""
    longest: int = 3
    """Maximum number of units in a span."""
    geometric: float = 0.2
    """Success probability of the geometric distribution."""
    unit: Literal["word", "piece"] = "word"
    """Unit of a span: whole words, or pieces of words."""
    scope: Literal["piece", "word", "span"] = "piece"
    """Unit that is masked, replaced or left unchanged as a whole: a piece (BERT, ALBERT), a word, a span (SpanBERT)."""
    share: float = 0.15
    """Fraction of a sequence's tokens that become targets, counted in pieces; ``[CLS]`` and ``[SEP]`` are
    included."""
    masked: float = 0.8
    """Fraction of the targets that become ``[MASK]``."""
    replaced: float = 0.1
    """Fraction of the targets that become a random token; the rest stay unchanged."""
    source: Literal["vocabulary", "everything", "unigram"] = "vocabulary"
    """Random tokens: uniform without special ones, uniform over all (BERT, ALBERT), or by frequency in the corpus."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid fractions, or lengths below 1."""
        if self.longest < 1 or not 0 < self.geometric < 1:
            raise WrongUseError("expected data.masking.longest of at least 1 and 0 < data.masking.geometric < 1")
        if not 0 < self.share < 1:
            raise WrongUseError(
                f"data.masking.share: expected a number between 0 and 1 (exclusive), found {self.share}"
            )
        if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
            raise WrongUseError("data.masking.masked and replaced: expected fractions >= 0 that add up to at most 1")

    def targets(self, length: int) -> int:
        """Returns the number of targets in a sequence of ``length`` tokens: at least 1."""
        return max(1, int(self.share * length + 0.5))

    def weights(self) -> npt.NDArray[np.float64]:
        """Returns the weight of each span length, starting at 1."""
        n = np.arange(1, (1 if self.law == "single" else self.longest) + 1, dtype=np.float64)
        if self.law == "inverse":
            return 1 / n
        return (1 - self.geometric) ** (n - 1) if self.law == "geometric" else np.ones_like(n)


class MaskedSequences(NamedTuple):
    """Masked sequences and their targets."""

    tokens: Matrix
    """B T: tokens with the targets hidden."""
    places: Matrix
    """B K: positions of each row's targets, in order; 0 where the row has fewer."""
    targets: Matrix
    """B K: original tokens at these positions; ``NONE`` where the row has fewer."""


NONE = -100
"""Missing target; PyTorch's cross-entropy ignores this value."""


class Masker:
    """Draws the masks of a run. They depend on seed, epoch and example only, not on the batch or the process."""

    def __init__(self, masking: Masking, tokenizer: Tokenizer, counts: npt.NDArray[np.int64], seed: int) -> None:
        """``counts``: occurrences of each token in the corpus, for random tokens drawn by frequency."""
        self.masking, self.seed = masking, seed
        self.mask = tokenizer.id("[MASK]")
        self.continues = tokenizer.continues if masking.unit == "word" else np.zeros(len(tokenizer), dtype=np.bool_)
        allowed = np.ones(len(tokenizer)) if masking.source == "everything" else (~tokenizer.special).astype(np.float64)
        self.cumulative = np.cumsum(allowed * counts if masking.source == "unigram" else allowed)
        if not self.cumulative[-1] > 0:
            raise BadDataError("the text has no token to draw random replacements from: is every token unknown?")

    def __call__(
        self, tokens: Matrix, segments: Matrix, examples: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]
    ) -> MaskedSequences:
        """Returns the masked rows. ``segments`` (B T): segment of each token; below 0: never masked.

        ``examples`` and ``epochs`` (B): example and epoch of each row.
        """
        masking = self.masking
        keys = hash64(self.seed, epochs, examples)
        hidden = tokens.copy()
        lengths = (segments != PADDING).sum(axis=1)
        budgets = np.array([masking.targets(int(length)) for length in lengths])
        width = masking.targets(tokens.shape[1])
        places = np.zeros((len(tokens), width), dtype=np.int32)
        targets = np.full((len(tokens), width), NONE, dtype=np.int32)
        _mask_rows(
            hidden, segments, self.continues, keys, budgets, masking.weights(), SCOPES.index(masking.scope),
            masking.masked, masking.replaced, self.mask, self.cumulative, places, targets,
        )  # fmt: skip
        return MaskedSequences(hidden, places, targets)


PADDING, SPECIAL = -2, -1
"""Values in ``segments``: padding, and a special token, which is never a target."""

mix = compiled(inline="always")(mix64)


@compiled(inline="always")
@no_type_check
def _uniform(bits):
    return (bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)  # the upper 53 bits


@compiled(nogil=True)
@no_type_check
def _mask_rows(
    hidden, segments, continues, keys, budgets, weights, scope, masked, replaced, mask, cumulative, places, targets
):
    """Fills ``hidden``, ``places`` and ``targets``, row by row."""
    length = hidden.shape[1]
    units = np.empty((length, 3), dtype=np.int64)
    order = np.empty(length, dtype=np.int64)
    draws = np.empty(length, dtype=np.int64)
    for row in range(len(hidden)):
        count = _units(hidden[row], segments[row], continues, units)
        key = _spans(units[:count], weights, scope, budgets[row], keys[row], order, draws)
        _hide(hidden[row], draws, key, masked, replaced, mask, cumulative, places[row], targets[row])


@compiled()
@no_type_check
def _units(tokens, segments, continues, units):
    """Writes start, end and segment of each unit; returns the number of units."""
    count = 0
    for place in range(len(tokens)):
        segment = segments[place]
        if segment < 0:
            continue
        goes_on = count > 0 and units[count - 1, 1] == place and units[count - 1, 2] == segment
        if goes_on and continues[tokens[place]]:
            units[count - 1, 1] = place + 1
        else:
            units[count, 0], units[count, 1], units[count, 2] = place, place + 1, segment
            count += 1
    return count


@compiled()
@no_type_check
def _spans(units, weights, scope, budget, key, order, draws):
    """Writes the draw number of each target, from 1 (0: not a target); returns the advanced random key.

    Span starts are tried in random order. Each span has a random length, limited by its segment. It is shortened to
    the remaining budget, and skipped if it touches another span. If no unit fits into the budget, the first one tried
    is cut.
    """
    draws[:] = 0
    order[: len(units)] = np.arange(len(units))
    drawn = 0
    left = budget
    for tried in range(len(units)):
        if left == 0:
            break
        key += GOLDEN
        other = tried + np.int64(mix(key) % np.uint64(len(units) - tried))
        order[tried], order[other] = order[other], order[tried]
        first = order[tried]
        key += GOLDEN
        last = first + _length(units, first, weights, _uniform(mix(key))) - 1
        while last >= first and units[last, 1] - units[first, 0] > left:
            last -= 1
        touches = False
        for unit in range(first, last + 1):
            touches = touches or draws[units[unit, 0]] > 0
        if last < first or touches:
            continue
        for unit in range(first, last + 1):
            drawn += unit == first or scope == 1
            for place in range(units[unit, 0], units[unit, 1]):
                drawn += scope == 0
                draws[place] = drawn
        left -= units[last, 1] - units[first, 0]
    if len(units) > 0 and drawn == 0:
        draws[units[order[0], 0] : units[order[0], 0] + budget] = 1
    return key


@compiled()
@no_type_check
def _length(units, first, weights, uniform):
    """Returns a span length drawn from ``weights``, truncated and renormalised to the rest of the segment."""
    available = 1
    while available < len(weights) and first + available < len(units):
        before, after = units[first + available - 1], units[first + available]
        if before[1] != after[0] or before[2] != after[2]:
            break
        available += 1
    drawn = uniform * weights[:available].sum()
    count = 1
    while count < available and drawn >= weights[count - 1]:
        drawn -= weights[count - 1]
        count += 1
    return count


@compiled()
@no_type_check
def _hide(tokens, draws, key, masked, replaced, mask, cumulative, places, targets):
    """Writes the targets and hides them. Tokens with one draw number share its fate; random tokens differ."""
    written = 0
    for place in range(len(tokens)):
        if draws[place] == 0:
            continue
        places[written] = place
        targets[written] = tokens[place]
        written += 1
        fate = _uniform(mix(mix(key) + np.uint64(draws[place]) * GOLDEN))
        if fate < masked:
            tokens[place] = mask
        elif fate < masked + replaced:
            uniform = _uniform(mix(mix(key ^ GOLDEN) + np.uint64(place) * GOLDEN))
            tokens[place] = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
