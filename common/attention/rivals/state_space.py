"""S4D, a diagonal state space model.

Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models", arXiv 2206.11893.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.mixer import LayerShape, MixerConfig, TokenMixer
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class StateSpace(MixerConfig):
    """S4D-Lin: a long convolution of each channel by 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(dt A_n l), by FFT.

    A_n = -1/2 + i pi n at the beginning; A, C, dt and the skip D are trained. Then GELU and a gated linear layer. The
    authors train A and dt at a smaller rate than the rest and without weight decay; here A, C, D and dt have the same
    rate as the rest, and no weight decay. The authors' dropout after GELU is left out.
    """

    state: int = 64
    """Size of the state of each channel, even."""
    bidirectional: bool = True
    """Whether a second convolution runs backwards, as in the authors' LRA runs; then only for order none."""

    def __post_init__(self) -> None:
        if self.state < 2 or self.state % 2:
            raise WrongUseError(f"state: expected an even number, found {self.state}")

    @property
    def orders(self) -> tuple[Order, ...]:
        """none, and causal in one direction."""
        return ("none",) if self.bidirectional else ("none", "causal")

    def build_mixer(self, shape: LayerShape) -> TokenMixer:
        """Returns the mixer."""
        return StateSpaceMixer(self, shape)


class StateSpaceMixer(TokenMixer):
    """One state space model for each channel, and a linear layer over channels."""

    def __init__(self, config: StateSpace, shape: LayerShape) -> None:
        super().__init__(config)
        self.channels, self.modes = shape.dim, config.state // 2
        directions = 2 if config.bidirectional else 1
        spread = math.log(0.1) - math.log(0.001)
        # Parameters of one dimension have no weight decay.
        self.log_step = nn.Parameter(torch.rand(shape.dim) * spread + math.log(0.001))
        self.log_decay = nn.Parameter(torch.full((shape.dim * self.modes,), math.log(0.5)))
        self.frequency = nn.Parameter((math.pi * torch.arange(self.modes)).float().repeat(shape.dim))
        self.output_map = nn.Parameter(torch.randn(directions * shape.dim * self.modes * 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(shape.dim))
        self.output = nn.Linear(shape.dim, 2 * shape.dim)

    @property
    def residual_matrices(self) -> tuple[nn.Linear, ...]:
        """The last matrix."""
        return (self.output,)

    def filters(self, length: int) -> Tensor:
        """Returns the filter of each direction and channel, in float32 or wider; directions C length."""
        wide = torch.promote_types(self.log_step.dtype, torch.float32)  # half precision has no complex numbers
        step = self.log_step.to(wide).exp()[:, None]
        decay, frequency = (each.to(wide).view(self.channels, self.modes) for each in (self.log_decay, self.frequency))
        poles = torch.complex(-decay.exp(), frequency)  # C modes
        output_map = torch.view_as_complex(self.output_map.to(wide).view(-1, self.channels, self.modes, 2))
        output_map = output_map * ((step * poles).exp() - 1) / poles  # directions C modes
        # exp(a l) for l = row * width + column is a product: few exponentials and one product of matrices suffice.
        width = math.ceil(math.sqrt(length))
        places = torch.arange(width, device=step.device)
        within = ((step * poles)[..., None] * places).exp()  # C modes width
        rows = ((step * poles) * places[:, None, None] * width).exp()
        across = rows * output_map[:, None]  # directions width C modes
        left = torch.cat([across.real, -across.imag], dim=-1).permute(0, 2, 1, 3)  # directions C width 2 modes
        right = torch.cat([within.real, within.imag], dim=1)  # C 2 modes width
        filters: Tensor = 2 * (left @ right).flatten(2)[..., :length]
        return filters

    def mix(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output."""
        length = hidden.shape[1]
        with torch.autocast(hidden.device.type, enabled=False):
            wide = torch.promote_types(hidden.dtype, torch.float32)
            signal = hidden.to(wide).mT  # B C length
            filters = self.filters(length)
            kernel = F.pad(filters[0], (0, length))
            if len(filters) == 2:  # the last ``length`` entries are those of distance -length to -1
                kernel = kernel + F.pad(filters[1].flip(-1), (length, 0))
            convolved = torch.fft.irfft(
                torch.fft.rfft(kernel, n=2 * length) * torch.fft.rfft(signal, n=2 * length), n=2 * length
            )[..., :length]
            mixed = (convolved + signal * self.skip[:, None]).mT.to(hidden.dtype)
        return F.glu(self.output(F.gelu(mixed)), dim=-1)
