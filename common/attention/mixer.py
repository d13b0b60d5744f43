"""Token mixers: layers in the place of multi-head attention, with their own projections, gates, or no heads at all."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.direct import DirectConfig
from seqarena.common.attention.visibility import CALL_OPTIONS, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Sizes and settings of the layer that a token mixer is a part of."""

    dim: int
    """Width of the stream."""
    heads: int
    """Number of heads."""
    width: int
    """Total width of all heads."""
    dropout: float = 0.0
    """Probability of dropping an attention weight."""
    projection_bias: bool = True
    """Whether projections have biases."""
    length: int
    """Maximum number of tokens."""
    number: int = 0
    """Number of the layer, from 0."""


@dataclass(frozen=True, kw_only=True)
class MixerConfig(DirectConfig):
    """Config of a token mixer. Subclasses define ``build_mixer``, and list their ``orders`` and what they support.

    A bias or a memory does not reach a mixer, and it computes whole sequences, not steps.
    A mixer has no queries and keys. It cannot be used where a model has its own projections: decoders, Transformer-XL,
    the fusion of views, models of transformers, and ``attend``.
    """

    @abstractmethod
    def build_mixer(self, shape: LayerShape) -> "TokenMixer":
        """Returns the mixer. It may draw random numbers: the other weights of the model do not depend on them."""

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Raises a ``WrongUseError``: a mixer has no kernel."""
        raise WrongUseError(
            f"attention {type(self).__name__} is a token mixer: it takes the place of a whole attention layer, and has "
            f"no function of queries, keys and values, which this use needs"
        )


class TokenMixer(nn.Module):
    """Maps a stream of tokens to a stream of the same shape, as self-attention does. Subclasses define ``mix``."""

    has_weights: bool = False
    """Whether the weights of the one kernel inside are those of the mixer, for diagnostics and heat maps."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def mix(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output; of any content at padding. Padded tokens of ``hidden`` are 0."""

    @property
    def residual_matrices(self) -> tuple[nn.Linear, ...]:
        """Matrices whose initial values some norms scale: those that the mixer's output is linear in.

        Raises:
            WrongUseError: the mixer does not say which.
        """
        raise WrongUseError(
            f"{type(self).__name__} does not define residual_matrices, whose initial values this norm scales"
        )

    def forward(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output, 0 at padding.

        Raises:
            WrongUseError: an order or an option of the call that the config does not list.
        """
        used = visibility.call_options(bias=False, dropout=False)
        missing = [each for each in CALL_OPTIONS if each in used and each not in self.config.supports]
        if visibility.order not in self.config.orders:
            missing.append(f"order {visibility.order!r}")  # type: ignore[arg-type]
        if missing:
            raise WrongUseError(f"{type(self).__name__} does not support {', '.join(missing)}, which this call needs")
        real = visibility.key_real
        if real is None:
            return self.mix(hidden, visibility)
        output: Tensor = self.mix(hidden.masked_fill(~real[..., None], 0.0), visibility)
        return output.masked_fill(~real[..., None], 0.0)


def kernels_with_weights(model: nn.Module) -> list[Kernel]:
    """Returns the kernels of a model whose weights are those of an attention layer, without the parts of a mixer."""
    hidden = {
        part
        for mixer in model.modules()
        if isinstance(mixer, TokenMixer) and not mixer.has_weights
        for part in mixer.modules()
    }
    return [each for each in model.modules() if isinstance(each, Kernel) and each.has_weights and each not in hidden]
