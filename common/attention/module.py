"""Multi-head attention around any variant: projections, heads, the kernel, the output projection."""

from torch import Tensor, nn

from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.shapes import Bias, Context, Hidden, Key, Output, Query, Value


class MultiHeadAttention(nn.Module):
    """Self-attention, or attention from ``hidden`` to ``context`` where one is given.

    ``dim`` is the model's width, ``attention_dim`` (none: ``dim``) that of all heads together; ``dropout`` falls on the
    weights. A model
    with a memory that uses prefix-normalised attention calls its kernel's ``step``, which carries the keys' masses on.
    """

    def __init__(
        self,
        config: AttentionConfig,
        *,
        dim: int,
        heads: int,
        dropout: float,
        projection_bias: bool,
        attention_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        width = dim if attention_dim is None else attention_dim
        self.query = nn.Linear(dim, width, bias=projection_bias)
        self.key = nn.Linear(dim, width, bias=projection_bias)
        self.value = nn.Linear(dim, width, bias=projection_bias)
        self.output = nn.Linear(width, dim, bias=projection_bias)
        self.kernel = config.build(heads, dropout)

    def forward(
        self, hidden: Hidden, visibility: Visibility, context: Context | None = None, bias: Bias | None = None
    ) -> Hidden:
        """Returns the attended context in the shape of ``hidden``."""
        key, value = self.remembered(hidden if context is None else context)
        return self.joined(self.kernel(self.asked(hidden), key, value, visibility, bias))

    def asked(self, hidden: Hidden) -> Query:
        """Returns the queries of a stream."""
        return self._split(self.query(hidden))

    def remembered(self, context: Context) -> tuple[Key, Value]:
        """Returns the keys and values of a stream."""
        return self._split(self.key(context)), self._split(self.value(context))

    def joined(self, heads: Output) -> Hidden:
        """Returns what all heads found, in the model's width."""
        attended: Hidden = self.output(heads.transpose(1, 2).flatten(2))  # B T C
        return attended

    def _split(self, projected: Tensor) -> Tensor:
        batch, tokens, width = projected.shape
        return projected.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)  # B H T D
