"""Published accuracies on pictures, in per cent, of P1 (Saratchandran et al., polynomial activations)."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from seqarena.common.runs.tasks import Published

P1 = "Saratchandran et al. (polynomial activations, P1)"
TINY = MappingProxyType({"softmax": 50.26, "x3-16": 50.5, "x3-raw": 45.3, "x1-16": 47.9, "x1-raw": 31.78})
"""Table 1: a ViT-Tiny on Tiny-ImageNet. Text and caption of the table say x^3 / 8 for x3-16."""
MODELS = ("p1-vit-base", "p1-vit-small", "p1-deit-base", "p1-deit-small", "p1-swin-base", "p1-swin-small",
          "p1-xcit-medium", "p1-xcit-small")  # fmt: skip
"""Presets in the order of Table 2's columns."""
IMAGENET: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "softmax": (79.6, 80.2, 78.9, 79.6, 83.0, 83.3, 81.1, 81.2),
        "x3-14": (79.6, 80.5, 77.4, 78.3, 83.2, 83.4, 81.2, 82.1),
        "x3-raw": (77.8, 78.6, 76.1, 76.3, 79.7, 79.9, 78.1, 78.3),
        "x1-14": (76.9, 77.8, 79.6, 79.8, 79.4, 79.5, 79.2, 79.3),
        "x1-raw": (73.2, 73.9, 77.7, 77.9, 77.8, 77.9, 76.4, 76.6),
    }
)
"""Table 2: accuracy on ImageNet-1k of each model, trained from scratch."""
ACTIVATIONS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "x2-14": (78.7, 79.9),
        "relu": (77.3, 77.5),
        "elu": (78.2, 78.5),
        "gelu": (78.2, 78.4),
        "tanh": (77.1, 77.3),
        "exp": (77.9, 78.0),
    }
)
"""Table 5: accuracy of ViT-Base and ViT-Small; without the rows of Table 2, which are the same."""


def tiny_imagenet() -> tuple[Published, ...]:
    """Returns the figures of Table 1."""
    return tuple(Published(name=name, value=value / 100, source=f"{P1}, Table 1") for name, value in TINY.items())


def imagenet() -> tuple[Published, ...]:
    """Returns the figures of Tables 2 and 5, each beside the preset of its model."""
    return (*_rows(IMAGENET, "Table 2"), *_rows(ACTIVATIONS, "Table 5"))


def _rows(table: Mapping[str, Iterable[float]], number: str) -> Iterable[Published]:
    for name, values in table.items():
        for preset, value in zip(MODELS, values, strict=False):
            yield Published(name=name, value=value / 100, source=f"{P1}, {number}", presets=(preset,))
