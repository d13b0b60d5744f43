"""XCiT (El-Nouby et al. 2021, arXiv 2106.09681): attention between the channels of a head, by any variant.

A block adds three branches to the stream X, each after a LayerNorm and times a trained factor per channel:

    cross-covariance attention   softmax(t Q K^T) V over channels, Q and K normalised over the patches, t trained
    local patch interaction      3 x 3 convolution per channel, GELU, batch norm, 3 x 3 convolution per channel
    feed-forward

Q, K, V are those of a head, (channels, patches): a variant gets channels as its tokens, and t Q K^T as its scores.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention import require_order
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.feed_forward import feed_forward
from seqarena.common.runs.roles import Role, role
from seqarena.common.shapes import Hidden, Logits, Pixels, Pooled
from seqarena.lra.pictures.model import PictureModel, normalized

EPS = 1e-6
"""Added to the variance in every LayerNorm."""
STD = 0.02
"""Standard deviation of the initial matrices and of the class token."""
WAVES, LONGEST_WAVE = 32, 10_000
"""Number of sines and cosines of a patch's row, and of its column; ratio of the longest wave to the shortest."""


@dataclass(frozen=True, kw_only=True)
class XCiTConfig(PictureModel):
    """XCiT with any attention between channels.

    The class attention of the last layers is softmax under every variant: P1 does not say what its XCiT has there. As
    in the paper, these layers change the class token only; the authors' code also changes the patches.
    """

    patch: int = 16
    """Rows and columns of a patch, in pixels: a power of two, for each convolution halves rows and columns."""
    layers: int = field(metadata=role(Role.ROW))
    """Number of blocks with attention between channels."""
    class_layers: int = 2
    """Number of further layers, in which the class token attends to the patches."""
    dim: int
    """Width of the stream."""
    heads: int
    """Number of attention heads, each with dim / heads channels."""
    ffn_dim: int
    """Hidden width of the feed-forward."""
    eta: float = 1.0
    """Initial factor of every branch (LayerScale)."""

    @property
    def longest(self) -> int:
        """Number of patches."""
        return (self.side // self.patch) ** 2

    @property
    def norm_label(self) -> str:
        """Name of the block normalisation in tables: always pre."""
        return "pre"

    @property
    def depth_label(self) -> int:
        """Number of blocks, without the layers of class attention."""
        return self.layers

    def check_picture(self) -> None:
        """Raises a ``WrongUseError`` for a model that cannot work."""
        for name in ("layers", "class_layers", "dim", "heads", "ffn_dim"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"model.{name}: expected at least 1, found {getattr(self, name)}")
        if self.patch < 2 or self.patch & (self.patch - 1):
            raise WrongUseError(f"model.patch: expected a power of two from 2 on, found {self.patch}")
        if self.side < 1 or self.side % self.patch:
            raise WrongUseError(f"model.patch: expected a divisor of model.side {self.side}, found {self.patch}")
        for name, divisor in (("heads", self.heads), ("patch / 2", self.patch // 2)):
            if self.dim % divisor:
                raise WrongUseError(f"model.dim {self.dim} is not a multiple of model.{name}, {divisor}")
        require_order(self.attention, "none")
        self.attention.build(self.heads)  # refuses token mixers

    def build(self) -> nn.Module:
        """Returns the model."""
        return XCiT(self)


class XCiT(nn.Module):
    """Maps pictures of numbers from 0 to 1 to class logits."""

    def __init__(self, config: XCiTConfig) -> None:
        super().__init__()
        self.embedding = PatchEmbedding(config.patch, config.dim)
        self.positions = FourierPositions(config.side // config.patch, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.class_layers = nn.ModuleList(ClassLayer(config) for _ in range(config.class_layers))
        self.cls = nn.Parameter(torch.empty(config.dim))
        self.norm = nn.LayerNorm(config.dim, eps=EPS)
        self.head = nn.Linear(config.dim, config.classes)
        nn.init.trunc_normal_(self.cls, std=STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)

    def forward(self, pixels: Pixels) -> Logits:
        """Returns class logits (B, classes)."""
        hidden = self.embed(pixels)
        for layer in self.layers:
            hidden = layer(hidden)
        cls = self.cls.to(hidden.dtype).expand(len(hidden), -1)
        for layer in self.class_layers:
            cls = layer(cls, hidden)
        logits: Tensor = self.head(self.norm(cls))
        return logits

    def embed(self, pixels: Pixels) -> Hidden:
        """Returns the stream before the first block, patches row by row."""
        grid: Tensor = self.embedding(normalized(pixels))
        positions: Tensor = self.positions()
        return (grid + positions.to(grid.dtype)).flatten(2).transpose(1, 2)  # B T C


class PatchEmbedding(nn.Sequential):
    """Convolutions that halve rows and columns and double the channels, up to one vector of width ``dim`` per patch."""

    def __init__(self, patch: int, dim: int) -> None:
        count = patch.bit_length() - 1
        widths = [3, *(dim >> (count - 1 - number) for number in range(count))]
        parts: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            parts += [convolution, nn.BatchNorm2d(after), nn.GELU()]
        super().__init__(*parts[:-1])  # none after the last


class FourierPositions(nn.Module):
    """Sines and cosines of a patch's row and column, from 1 / side to 1 of a turn and slower, projected to ``dim``."""

    def __init__(self, side: int, dim: int) -> None:
        super().__init__()
        turns = 2 * math.pi * torch.arange(1, side + 1, dtype=torch.float64) / side
        periods = LONGEST_WAVE ** (2 * torch.arange(WAVES // 2, dtype=torch.float64) / WAVES)
        angles = turns[:, None] / periods  # side, WAVES / 2
        waves = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).T  # WAVES, side
        grids = [waves[:, :, None].expand(-1, -1, side), waves[:, None, :].expand(-1, side, -1)]
        self.register_buffer("waves", torch.cat(grids)[None], persistent=False)  # rows, then columns
        self.projection = nn.Conv2d(2 * WAVES, dim, 1)

    def forward(self) -> Tensor:
        """Returns the encoding of every patch; (1, dim, side, side)."""
        encoded: Tensor = self.projection(self.waves.to(self.projection.weight.dtype))
        return encoded


class CrossCovarianceAttention(nn.Module):
    """Attention between the channels of a head.

    A kernel divides scores by the root of the width of its queries, here the number of patches. The queries are
    multiplied by that root, so that the scores are t Q K^T.
    """

    def __init__(self, config: XCiTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.temperature = nn.Parameter(torch.ones(config.heads))
        self.output = nn.Linear(config.dim, config.dim)
        self.kernel = config.attention.build(config.heads, 0.0)

    def forward(self, hidden: Hidden) -> Hidden:
        """Returns the output; same shape as ``hidden``."""
        batch, patches, dim = hidden.shape
        parts = self.query_key_value(hidden).view(batch, patches, 3, self.heads, dim // self.heads)
        query, key, value = parts.permute(2, 0, 3, 4, 1)  # each B H channels patches
        factor = (self.temperature * patches**0.5)[:, None, None]
        query, key = F.normalize(query, dim=-1) * factor, F.normalize(key, dim=-1)
        mixed: Tensor = self.kernel(query.to(value.dtype), key.to(value.dtype), value, Visibility())
        attended: Hidden = self.output(mixed.permute(0, 3, 1, 2).flatten(2))
        return attended


class LocalPatchInteraction(nn.Module):
    """Two convolutions of each channel over neighbouring patches."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(dim, dim, 3, padding=1, groups=dim) for _ in range(2))
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, hidden: Hidden) -> Hidden:
        """Returns the output; same shape as ``hidden``, the patches of a square row by row."""
        side = math.isqrt(hidden.shape[1])
        grid = hidden.transpose(1, 2).reshape(*hidden.shape[::2], side, side)
        mixed: Tensor = self.second(self.norm(F.gelu(self.first(grid))))
        return mixed.flatten(2).transpose(1, 2)


class Block(nn.Module):
    """Attention between channels, local patch interaction and feed-forward, added to the stream."""

    def __init__(self, config: XCiTConfig) -> None:
        super().__init__()
        self.attention = CrossCovarianceAttention(config)
        self.local = LocalPatchInteraction(config.dim)
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, "gelu", 0.0)
        self.norms = nn.ModuleList(nn.LayerNorm(config.dim, eps=EPS) for _ in range(3))
        self.factors = nn.ParameterList(torch.full((config.dim,), config.eta) for _ in range(3))

    def forward(self, hidden: Hidden) -> Hidden:
        """Returns the block's output."""
        branches = (self.attention, self.local, self.feed_forward)
        for branch, norm, factor in zip(branches, self.norms, self.factors, strict=True):
            hidden = hidden + factor * branch(norm(hidden))
        return hidden


class ClassLayer(nn.Module):
    """Softmax attention of the class token to itself and all patches, and a feed-forward of the class token.

    Both are added to the class token (Touvron et al. 2021, arXiv 2103.17239).
    """

    def __init__(self, config: XCiTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.output = (nn.Linear(config.dim, config.dim) for _ in range(4))
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, "gelu", 0.0)
        self.norms = nn.ModuleList(nn.LayerNorm(config.dim, eps=EPS) for _ in range(2))
        self.factors = nn.ParameterList(torch.full((config.dim,), config.eta) for _ in range(2))

    def forward(self, cls: Pooled, hidden: Hidden) -> Pooled:
        """Returns the class token; the patches stay as they are."""
        tokens = self.norms[0](torch.cat([cls[:, None], hidden], dim=1))
        query, key, value = (
            projection(some).view(*some.shape[:2], self.heads, -1).transpose(1, 2)
            for projection, some in ((self.query, tokens[:, :1]), (self.key, tokens), (self.value, tokens))
        )
        attended = F.scaled_dot_product_attention(query, key, value)[:, :, 0].flatten(1)
        cls = cls + self.factors[0] * self.output(attended)
        further: Tensor = cls + self.factors[1] * self.feed_forward(self.norms[1](cls))
        return further
