"""Feed-forward network of a layer."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from torch import nn

Activation = Literal["gelu", "gelu_tanh", "relu"]

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU(approximate="tanh"), "relu": nn.ReLU}
)


def feed_forward(dim: int, hidden_dim: int, activation: Activation, dropout: float) -> nn.Sequential:
    """Returns Linear, activation, dropout, Linear. Dropout of the output is left to the layer."""
    return nn.Sequential(
        nn.Linear(dim, hidden_dim), ACTIVATIONS[activation](), nn.Dropout(dropout), nn.Linear(hidden_dim, dim)
    )
