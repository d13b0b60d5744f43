"""Batches of masked sequences as a function of (seed, step)."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from seqarena.common.data.batches import Batch, Indices, ShuffledIndices, longer_mask, needed_mask
from seqarena.common.shapes import Mask, PerExample, PlacesOfRows, Tokens
from seqarena.pretraining.data.sequences import Sequences
from seqarena.pretraining.data.shards import Corpus
from seqarena.pretraining.masking import NONE, PADDING, SPECIAL, Masker


@dataclass(frozen=True, kw_only=True)
class MaskedBatch(Batch):
    """Sequences with some tokens hidden, and the original tokens."""

    tokens: Tokens
    types: Tokens
    """0 in the first segment, 1 in the second."""
    real: Mask | None
    """None: nothing is padded."""
    places: PlacesOfRows
    """Positions of each row's targets; 0 where the row has fewer than others."""
    targets: PlacesOfRows
    """Original tokens at these positions; ``NONE`` where the row has fewer."""
    order: PerExample
    """0: segments in their original order; 1: swapped or unrelated; ``ALONE``: a single segment."""
    targets_each: PerExample
    """Mean number of targets per row of the whole batch: the weight of one order loss relative to one token loss."""
    segments: Tokens | None = None
    """Index of each token's document within a packed row."""
    positions: Tokens | None = None
    """Position of each token in its document, in packed rows."""

    def to(self, device: torch.device) -> "MaskedBatch":
        """Returns the batch on a device, without a mask if nothing is padded."""
        return replace(super(MaskedBatch, replace(self, real=None)).to(device), real=needed_mask(self.real, device))

    def weight(self) -> int:
        """Returns the number of targets."""
        return int((self.targets != NONE).sum())

    def token_count(self) -> int:
        """Returns the number of real tokens."""
        return self.tokens.numel() if self.real is None else int(self.real.sum())

    def longer(self, length: int) -> "MaskedBatch":
        """Returns the batch padded to ``length``, at least its present length."""
        more = length - self.tokens.shape[1]
        if more < 0:
            raise ValueError(f"sequences of {self.tokens.shape[1]} tokens cannot be padded to {length}")

        def padded(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else torch.nn.functional.pad(tensor, (0, more))

        wide = {name: padded(getattr(self, name)) for name in ("tokens", "types", "positions")}
        apart = None if self.segments is None else torch.nn.functional.pad(self.segments, (0, more), value=length)
        real = longer_mask(self.real, self.tokens, more)
        return replace(self, **wide, real=real, segments=apart)  # type: ignore[arg-type]


class Builder:
    """Builds masked batches from sequences."""

    def __init__(self, corpus: Corpus, sequences: Sequences, masker: Masker, pad_to: int | None = None) -> None:
        """``pad_to``: fixed length of all batches, for compilation; None: length of the longest sequence in each."""
        self.corpus, self.sequences, self.masker, self.pad_to = corpus, sequences, masker, pad_to
        self.cls, self.sep, self.pad = (corpus.tokenizer.id(name) for name in ("[CLS]", "[SEP]", "[PAD]"))
        self.lengths = sequences.lengths

    def batch(self, examples: Indices, epochs: Indices) -> MaskedBatch:
        """Returns a batch of examples; ``epochs`` selects the masks of each."""
        sequences = self.sequences
        shape = len(examples), self.pad_to or int(self.lengths[examples].max())
        tokens = np.full(shape, self.pad, dtype=np.int32)
        segments = np.full(shape, PADDING, dtype=np.int32)
        part_of, positions = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        for row, example in enumerate(examples.tolist()):
            place = 0
            for number, part in enumerate(range(sequences.first[example], sequences.first[example + 1])):
                shard, start, stop = sequences.parts[part].tolist()
                text = self.corpus.shards[shard].tokens[start:stop]
                opens = number == 0 or sequences.packed
                end = place + opens + len(text) + 1
                if opens:
                    tokens[row, place] = self.cls
                tokens[row, place + opens : end - 1] = text
                tokens[row, end - 1] = self.sep
                segments[row, place:end] = SPECIAL
                segments[row, place + opens : end - 1] = number
                part_of[row, place:end] = number
                positions[row, place:end] = np.arange(end - place)
                place = end
            part_of[row, place:] = part_of[row, place - 1] + 1
        masked = self.masker(tokens, segments, examples, epochs)
        real = segments != PADDING
        each = (masked.targets != NONE).sum() / len(examples)
        packed = sequences.packed
        return MaskedBatch(
            tokens=_tensor(masked.tokens),
            types=_tensor(np.zeros(shape) if packed else np.where(real, part_of, 0)),
            real=torch.from_numpy(real),
            places=_tensor(masked.places),
            targets=_tensor(masked.targets),
            order=_tensor(sequences.order[examples]),
            targets_each=torch.full((len(examples),), float(each)),
            segments=_tensor(part_of) if packed else None,
            positions=_tensor(positions) if packed else None,
        )


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The training steps at one sequence length."""

    first: int
    """Number of the first step of the phase."""
    order: ShuffledIndices
    builder: Builder


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """Training batches by step, over all phases."""

    phases: tuple[Phase, ...]

    def __getitem__(self, step: int) -> MaskedBatch:
        phase = next(phase for phase in reversed(self.phases) if step >= phase.first)
        return phase.builder.batch(*phase.order.with_epochs(step - phase.first))
