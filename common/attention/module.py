"""Multi-head attention with any variant: projections, kernel, output projection."""

from torch import Tensor, nn

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Context, Hidden, Key, Output, Query, Value

ALL = Visibility()
"""Visibility without a mask: every query attends to every key."""


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention from ``hidden`` to ``context`` if one is given.

    ``variant`` is a name, such as "dnas", or a config. ``dim`` is the model's width, ``attention_dim`` the total width
    of all heads (None: ``dim``). ``dropout`` is the probability of dropping a weight.

    To decode one token at a time, pass the outputs of ``project_query`` and ``project_key_value`` to the kernel's
    ``step``, and its output to ``merge_heads``.

    Raises:
        WrongUseError: an unknown variant, or a width that is not divisible by ``heads``.
    """

    def __init__(
        self,
        variant: str | AttentionConfig,
        *,
        dim: int,
        heads: int,
        dropout: float = 0.0,
        projection_bias: bool = True,
        attention_dim: int | None = None,
    ) -> None:
        super().__init__()
        config = find_attention(variant) if isinstance(variant, str) else variant
        width = dim if attention_dim is None else attention_dim
        if heads < 1 or width % heads:
            raise WrongUseError(f"heads: expected a divisor of the width {width}, found {heads}")
        self.heads = heads
        self.query = nn.Linear(dim, width, bias=projection_bias)
        self.key = nn.Linear(dim, width, bias=projection_bias)
        self.value = nn.Linear(dim, width, bias=projection_bias)
        self.output = nn.Linear(width, dim, bias=projection_bias)
        self.kernel = config.build(heads, dropout)

    def forward(
        self, hidden: Hidden, visibility: Visibility = ALL, context: Context | None = None, bias: Bias | None = None
    ) -> Hidden:
        """Returns the output of the layer; same shape as ``hidden``."""
        key, value = self.project_key_value(hidden if context is None else context)
        return self.merge_heads(self.kernel(self.project_query(hidden), key, value, visibility, bias))

    def project_query(self, hidden: Hidden) -> Query:
        """Returns the queries of each head."""
        return self._split(self.query(hidden))

    def project_key_value(self, context: Context) -> tuple[Key, Value]:
        """Returns the keys and values of each head."""
        return self._split(self.key(context)), self._split(self.value(context))

    def merge_heads(self, heads: Output) -> Hidden:
        """Concatenates the outputs of the heads and applies the output projection."""
        attended: Hidden = self.output(heads.transpose(1, 2).flatten(2))  # B T C
        return attended

    def _split(self, projected: Tensor) -> Tensor:
        batch, tokens, width = projected.shape
        return projected.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)  # B H T D
