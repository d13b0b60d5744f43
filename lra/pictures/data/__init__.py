"""The data config that every task of pictures extends, and the batch type."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from seqarena.common.data.batches import Batch, moved
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.common.shapes import Labels, PerExample, PictureBytes
from seqarena.lra.pictures.data.store import PictureSplits


@dataclass(frozen=True, kw_only=True)
class PictureData(ABC):
    """Config of a task's pictures. Each task's own config adds its fields."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Path of your own files. none: the pictures are drawn, or downloaded from the hub."""
    classes: int
    """Number of classes."""
    side: int
    """Rows and columns of a picture as the model reads it, in pixels."""
    held_out: int
    """Number of training pictures that form the validation set: those with the smallest hashes."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        for name in ("classes", "side", "held_out"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, found {getattr(self, name)}")

    @abstractmethod
    def load(self, folder: Path) -> tuple[PictureSplits, str]:
        """Returns train, validation and test, and their checksum. Prepared pictures are stored below ``folder``.

        Raises:
            BadDataError: files are missing or damaged. The message names the file, the content found and the content
                expected.
        """


@dataclass(frozen=True, kw_only=True)
class PictureBatch(Batch):
    """Batch of labelled pictures of equal size."""

    pictures: PictureBytes
    labels: Labels
    seeds: PerExample
    """Seed of each picture's random augmentation."""
    tokens: PerExample
    """Number of tokens that the model makes of each picture."""

    def to(self, device: torch.device) -> "PictureBatch":
        """Returns the batch with its pictures and labels on a device; the host reads the rest."""
        return replace(self, pictures=moved(self.pictures, device), labels=moved(self.labels, device))

    def token_count(self) -> int:
        """Returns the number of tokens of all pictures."""
        return int(self.tokens.sum())
