"""DeiT and Swin: models of the transformers library with an attention variant of this project (docs/transformers.md).

Their attention kernels, and what these train, are modules of the model like all others.
"""

import importlib.util
from abc import abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from seqarena.common.attention import attention_name, is_function_of_scores, require_order
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import is_external
from seqarena.common.runs.external import location_of
from seqarena.common.runs.roles import Role, role
from seqarena.common.shapes import Logits, Pixels
from seqarena.lra.pictures.model import PictureModel, normalized


@dataclass(frozen=True, kw_only=True)
class LibraryConfig(PictureModel):
    """Base config of the library's models. They are pre-norm, with GELU; dropout and stochastic depth are off."""

    patch: int
    """Rows and columns of a patch, in pixels."""

    @property
    def longest(self) -> int:
        """Number of patches."""
        return (self.side // self.patch) ** 2

    @property
    def norm_label(self) -> str:
        """Name of the block normalisation in tables: always pre."""
        return "pre"

    @abstractmethod
    def library_model(self, attention: str) -> nn.Module:
        """Returns the library's classifier with the attention implementation of this name."""

    def check_picture(self) -> None:
        """Raises a ``WrongUseError`` for a model that cannot work, or if the library is not installed."""
        if importlib.util.find_spec("transformers") is None:
            raise WrongUseError(
                f"{type(self).__name__} is a model of the transformers library: pip install 'seqarena[transformers]'"
            )
        for name, value in _numbers(self):
            if value < 1:
                raise WrongUseError(f"model.{name}: expected at least 1, found {value}")
        if self.side % self.patch:
            raise WrongUseError(f"model.patch: expected a divisor of model.side {self.side}, found {self.patch}")
        require_order(self.attention, "none")
        self.attention.build(1)  # refuses token mixers

    def build(self) -> nn.Module:
        """Returns the model.

        Raises:
            WrongUseError: the library is not installed, or its version of the model takes no other attention.
        """
        from seqarena.common.attention.transformers import attach, register  # noqa: PLC0415  # an extra, and slow

        kind = type(self.attention)
        register(external=(f"{location_of(kind.__module__)}:{kind.__name__}",) if is_external(kind) else ())
        model = self.library_model(attention_name(self.attention).partition("[")[0])
        attach(model, **{each.name: getattr(self.attention, each.name) for each in fields(kind)})
        return LibraryClassifier(model)


def _numbers(config: LibraryConfig) -> list[tuple[str, int]]:
    """Returns the names and values of all fields that are whole numbers, or several."""
    values = ((each.name, getattr(config, each.name)) for each in fields(config))
    return [
        (name, one)
        for name, value in values
        for one in (value if isinstance(value, tuple) else [value])
        if isinstance(one, int)
    ]


@dataclass(frozen=True, kw_only=True)
class DeiTConfig(LibraryConfig):
    """DeiT without distillation (Touvron et al. 2021), which is the vision transformer: the library's ViT.

    The library's model named DeiT has a second token for distillation, which P1 does not mention.
    """

    layers: int = field(metadata=role(Role.ROW))
    """Number of layers, each with attention and a feed-forward."""
    dim: int
    """Width of the stream."""
    heads: int
    """Number of attention heads, each dim / heads wide."""
    ffn_dim: int
    """Hidden width of the feed-forward."""

    @property
    def longest(self) -> int:
        """Number of tokens, with the class token."""
        return (self.side // self.patch) ** 2 + 1

    @property
    def depth_label(self) -> int:
        """Number of layers."""
        return self.layers

    def check_picture(self) -> None:
        """Raises a ``WrongUseError`` for a model that cannot work, or if the library is not installed."""
        super().check_picture()
        if self.dim % self.heads:
            raise WrongUseError(f"model.dim {self.dim} is not a multiple of model.heads {self.heads}")

    def library_model(self, attention: str) -> nn.Module:
        """Returns the library's classifier with the attention implementation of this name."""
        import transformers  # noqa: PLC0415  # an extra

        settings: dict[str, Any] = {
            "image_size": self.side, "patch_size": self.patch, "num_hidden_layers": self.layers,
            "hidden_size": self.dim, "num_attention_heads": self.heads, "intermediate_size": self.ffn_dim,
            "num_labels": self.classes, "layer_norm_eps": 1e-6, "attn_implementation": attention,
        }  # fmt: skip
        model: nn.Module = transformers.ViTForImageClassification(transformers.ViTConfig(**settings))
        return model


@dataclass(frozen=True, kw_only=True)
class SwinConfig(LibraryConfig):
    """Swin (Liu et al. 2021): attention in windows, which every second layer shifts by half of their side.

    Every stage after the first halves rows and columns, and doubles the width. Pairs of patches from different parts of
    the picture are hidden in shifted windows, under every variant. The windows' biases are added to the scores.
    """

    patch: int = 4
    """Rows and columns of a patch, in pixels."""
    layers: tuple[int, ...]
    """Number of layers of each stage."""
    dim: int
    """Width of the stream in the first stage."""
    heads: tuple[int, ...]
    """Number of attention heads in each stage."""
    window: int = 7
    """Rows and columns of a window, in patches."""
    ffn_ratio: int = 4
    """Hidden width of the feed-forward, as a multiple of the stream's."""

    @property
    def depth_label(self) -> int:
        """Number of layers of all stages."""
        return sum(self.layers)

    def check_picture(self) -> None:
        """Raises a ``WrongUseError`` for a model that cannot work, or if the library is not installed."""
        super().check_picture()
        if len(self.layers) != len(self.heads) or not self.layers:
            raise WrongUseError(
                f"expected as many numbers in model.layers as in model.heads, found {self.layers} and {self.heads}"
            )
        for stage, heads in enumerate(self.heads):
            if self.dim * 2**stage % heads:
                raise WrongUseError(
                    f"model.heads: {heads} does not divide the width {self.dim * 2**stage} of its stage"
                )
        fits = self.window * 2 ** (len(self.layers) - 1)
        if self.side // self.patch % fits:
            raise WrongUseError(
                f"model.window {self.window}: expected a multiple of {fits} patches in a row, so that every stage has "
                f"whole windows; found {self.side // self.patch}"
            )
        if not is_function_of_scores(self.attention.build(1)):
            raise WrongUseError(
                f"attention {attention_name(self.attention)!r} cannot be used in Swin: its weights are not a function "
                "of the scores, to which Swin adds biases and masks"
            )

    def library_model(self, attention: str) -> nn.Module:
        """Returns the library's classifier with the attention implementation of this name."""
        import transformers  # noqa: PLC0415  # an extra

        settings: dict[str, Any] = {
            "image_size": self.side, "patch_size": self.patch, "depths": list(self.layers), "embed_dim": self.dim,
            "num_heads": list(self.heads), "window_size": self.window, "mlp_ratio": self.ffn_ratio,
            "num_labels": self.classes, "drop_path_rate": 0.0, "attn_implementation": attention,
        }  # fmt: skip
        model: nn.Module = transformers.SwinForImageClassification(transformers.SwinConfig(**settings))
        return model


class LibraryClassifier(nn.Module):
    """Maps pictures of numbers from 0 to 1 to class logits by a classifier of the library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Pixels) -> Logits:
        """Returns class logits (B, classes)."""
        output: Any = self.model(pixel_values=normalized(pixels))
        logits: Logits = output.logits
        return logits
