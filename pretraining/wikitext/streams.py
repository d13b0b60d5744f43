"""One stream cut into parallel ones, read a segment at a time."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from seqarena.common.data.batches import Batch, TokenArray
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Labels, PerExample, Tokens


@dataclass(frozen=True, kw_only=True)
class SegmentBatch(Batch):
    """The next segment of parallel streams."""

    tokens: Tokens
    targets: Tokens
    """The next token after each token."""
    stream: Labels
    """The number of each row's stream, whose memory it goes on from."""
    fresh: PerExample
    """Whether a row begins its stream, with no memory."""

    def to(self, device: torch.device) -> "SegmentBatch":
        """Returns the batch with its tokens on a device; what chooses the memory stays where it can be read at once."""
        return replace(self, tokens=self.tokens.to(device), targets=self.targets.to(device))

    def weight(self) -> int:
        """Returns the number of targets."""
        return self.targets.numel()

    def token_count(self) -> int:
        """Returns the number of tokens that are read."""
        return self.tokens.numel()


@dataclass(frozen=True, kw_only=True)
class Streams:
    """A stream cut into so many of equal length, side by side, read a segment at a time; what is left over is not read.

    Epochs follow one another; at the beginning of each the memory is empty, as in the published PyTorch code.
    """

    ids: TokenArray
    count: int
    """Streams side by side."""
    length: int
    """Tokens of a segment; the last of an epoch may be shorter."""

    def __post_init__(self) -> None:
        if self.each < 2:
            raise WrongUseError(
                f"{len(self.ids):,} tokens are too few for {self.count:,} streams: each needs two at least"
            )
        if self.length > self.each - 1:
            raise WrongUseError(
                f"a segment of {self.length:,} tokens is longer than the {self.each - 1:,} targets of each of "
                f"{self.count:,} streams; fewer streams, or a shorter segment"
            )

    @property
    def each(self) -> int:
        """Tokens of each stream."""
        return len(self.ids) // self.count

    @property
    def segments(self) -> int:
        """Segments of an epoch."""
        return -(-(self.each - 1) // self.length)

    @property
    def targets(self) -> TokenArray:
        """Every token that is to be told from those before it, stream by stream."""
        return self._side_by_side[:, 1:].flatten()

    @property
    def _side_by_side(self) -> TokenArray:
        return self.ids[: self.each * self.count].reshape(self.count, self.each)

    def __getitem__(self, step: int) -> SegmentBatch:
        """Returns the batch of a step, counted from 0."""
        segment = step % self.segments
        start = segment * self.length
        stop = min(start + self.length, self.each - 1)
        rows = self._side_by_side[:, start : stop + 1].astype(np.int64)
        return SegmentBatch(
            tokens=torch.from_numpy(rows[:, :-1].copy()),
            targets=torch.from_numpy(rows[:, 1:].copy()),
            stream=torch.arange(self.count),
            fresh=torch.full((self.count,), segment == 0),
        )
