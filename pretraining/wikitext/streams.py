"""Splits one token stream into parallel streams, read segment by segment."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from seqarena.common.data.batches import Batch, TokenArray, moved
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Labels, PerExample, Tokens


@dataclass(frozen=True, kw_only=True)
class SegmentBatch(Batch):
    """The next segment of parallel streams."""

    tokens: Tokens
    targets: Tokens
    """The token after each token; on the CPU, where the adaptive softmax sorts them into clusters."""
    stream: Labels
    """Number of each row's stream, which identifies its memory."""
    fresh: PerExample
    """Whether a row is at the start of its stream, where the memory is empty."""

    def to(self, device: torch.device) -> "SegmentBatch":
        """Returns the batch with its input tokens on a device; the rest stays on the CPU."""
        return replace(self, tokens=moved(self.tokens, device))

    def weight(self) -> int:
        """Returns the number of targets."""
        return self.targets.numel()

    def token_count(self) -> int:
        """Returns the number of input tokens."""
        return self.tokens.numel()


@dataclass(frozen=True, kw_only=True)
class Streams:
    """A token stream split into ``count`` parallel streams of equal length; the remainder is dropped.

    Batches are segments in order. Epochs repeat, each with an empty memory at its start, as in the published PyTorch
    code.
    """

    ids: TokenArray
    count: int
    """Number of parallel streams."""
    length: int
    """Tokens per segment; the last segment of an epoch may be shorter."""

    def __post_init__(self) -> None:
        if self.each < 2:
            raise WrongUseError(
                f"{len(self.ids):,} tokens are too few for {self.count:,} streams: each needs at least two"
            )
        if self.length > self.each - 1:
            raise WrongUseError(
                f"a segment of {self.length:,} tokens is longer than the {self.each - 1:,} targets of each of "
                f"{self.count:,} streams; use fewer streams or a shorter segment"
            )

    @property
    def each(self) -> int:
        """Tokens per stream."""
        return len(self.ids) // self.count

    @property
    def segments(self) -> int:
        """Segments per epoch."""
        return -(-(self.each - 1) // self.length)

    @property
    def targets(self) -> TokenArray:
        """All target tokens, stream by stream."""
        return self._side_by_side[:, 1:].flatten()

    @property
    def _side_by_side(self) -> TokenArray:
        return self.ids[: self.each * self.count].reshape(self.count, self.each)

    def __getitem__(self, step: int) -> SegmentBatch:
        """Returns the batch of a step; steps count from 0."""
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
