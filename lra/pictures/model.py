"""The vision transformer: one token per patch, the house's encoder, and a linear classifier."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.positions import AbsolutePositions
from seqarena.common.model.transformer import Encoder, EncoderConfig, ModelConfig
from seqarena.common.shapes import Hidden, Logits, Pixels

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's red, green and blue, by which the pictures of all tasks are normalised."""


@dataclass(frozen=True, kw_only=True)
class PictureModel(ModelConfig):
    """Base config of the models of pictures. Subclasses define ``build``."""

    side: int
    """Rows and columns of a picture, in pixels."""
    classes: int
    """Number of classes."""

    @abstractmethod
    def build(self) -> nn.Module:
        """Returns the model, which maps pictures (B, 3, side, side) of numbers from 0 to 1 to logits (B, classes)."""

    def check_picture(self) -> None:
        """Raises a ``WrongUseError`` for a model that cannot work."""


@dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(EncoderConfig, PictureModel):
    """A vision transformer (Dosovitskiy et al. 2021) with any attention, norm and depth."""

    patch: int
    """Rows and columns of a patch, in pixels."""
    pooling: Literal["cls", "mean"] = "cls"
    """Input of the classifier. cls: output of a learned token before the patches; mean: mean over the patches."""
    position_std: float = 0.02
    """Standard deviation of the initial positions and of the class token."""
    activation: Literal["gelu", "relu", "gelu_tanh"] = "gelu"
    """Activation of the feed-forward."""

    @property
    def longest(self) -> int:
        """Number of tokens, with the class token."""
        return (self.side // self.patch) ** 2 + (self.pooling == "cls")

    def check_picture(self) -> None:
        """Raises a ``WrongUseError`` for a model that cannot work."""
        self.check(order="none", mean_pooled=self.pooling == "mean")
        if self.patch < 1 or self.side % self.patch:
            raise WrongUseError(f"model.patch: expected a divisor of model.side {self.side}, found {self.patch}")
        if self.position_std < 0:
            raise WrongUseError(f"model.position_std: expected at least 0, found {self.position_std}")

    def build(self) -> nn.Module:
        """Returns the model."""
        return VisionTransformer(self)


class VisionTransformer(nn.Module):
    """Maps pictures of numbers from 0 to 1 to class logits."""

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        self.patch = config.patch
        self.embedding = nn.Linear(3 * config.patch**2, config.dim)
        self.cls = nn.Parameter(torch.randn(config.dim) * config.position_std) if config.pooling == "cls" else None
        self.positions = AbsolutePositions("learned", length=config.longest, dim=config.dim, std=config.position_std)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.dim, config.classes)

    def forward(self, pixels: Pixels) -> Logits:
        """Returns class logits (B, classes)."""
        hidden = self.encoder(self.embed(pixels), Visibility())
        logits: Tensor = self.head(hidden[:, 0] if self.cls is not None else hidden.mean(dim=1))
        return logits

    def embed(self, pixels: Pixels) -> Hidden:
        """Returns the stream before the first layer: the class token, then the patches row by row."""
        hidden: Tensor = self.embedding(patches(normalized(pixels), self.patch))
        if self.cls is not None:
            hidden = torch.cat([self.cls.expand(len(hidden), 1, -1).to(hidden.dtype), hidden], dim=1)
        dropped: Tensor = self.dropout(self.positions(hidden))
        return dropped


def normalized(pixels: Pixels) -> Pixels:
    """Returns pictures of numbers from 0 to 1 with about mean 0 and deviation 1 in each colour."""
    colours = zip(pixels.unbind(dim=1), MEAN, DEVIATION, strict=True)
    # A tensor of the means would be a copy from the host in each step.
    return torch.stack([(colour - mean) / deviation for colour, mean, deviation in colours], dim=1)


def patches(pixels: Pixels, side: int) -> Hidden:
    """Returns the patches of pictures, row by row: (B, patches, 3 side^2)."""
    batch, colours, rows, columns = pixels.shape
    cut = pixels.view(batch, colours, rows // side, side, columns // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, colours * side * side)
