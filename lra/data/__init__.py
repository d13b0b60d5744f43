"""The data of each task, and the batch that all of them fill."""

from dataclasses import dataclass

import numpy as np
import torch

from common.data import Batch, Indices, Ragged, Shuffled
from common.shapes import Labels, Mask, Tokens


@dataclass(frozen=True, kw_only=True)
class Sequences(Batch):
    """Labelled token sequences, padded at the end with token 0."""

    tokens_padded: Tokens
    real: Mask
    labels: Labels

    def tokens(self) -> int:
        """Returns the number of real tokens."""
        return int(self.real.sum())


def sequences(split: Ragged, examples: Indices) -> Sequences:
    """Returns a batch of some examples, as long as the longest of them."""
    tokens, real = split.padded(examples)
    labels = torch.from_numpy(split.labels[examples].astype(np.int64))
    return Sequences(tokens_padded=tokens, real=real, labels=labels)


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """The batch of every training step."""

    split: Ragged
    order: Shuffled

    def __getitem__(self, step: int) -> Sequences:
        return sequences(self.split, self.order[step])
