"""Multi-head attention with any variant: projections, kernel, output projection; or a token mixer in its place."""

import itertools
from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.mixer import LayerShape, MixerConfig, TokenMixer
from seqarena.common.attention.positions import RelativePositions, distance_bias, rotated
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Context, Hidden, Key, Output, Query, Value

ALL = Visibility()
"""Visibility without a mask: every query attends to every key."""


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention from ``hidden`` to ``context`` if one is given.

    ``variant`` is a name, such as "dnas", or a config. ``dim`` is the model's width, ``attention_dim`` the total width
    of all heads (None: ``dim``). ``dropout`` is the probability of dropping a weight. ``positions`` are
    relative positions of self-attention of whole sequences. ``query_key_norm`` is a LayerNorm without bias over each
    head's queries and keys (Dehghani et al. 2023, arXiv 2302.05442).

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
        positions: RelativePositions = "none",
        query_key_norm: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(variant, AttentionConfig):
            from seqarena.common.attention import find_attention  # noqa: PLC0415  # some variants import this file

            variant = find_attention(variant)
        width = dim if attention_dim is None else attention_dim
        if heads < 1 or width % heads:
            raise WrongUseError(f"heads: expected a divisor of the width {width}, found {heads}")
        if positions not in get_args(RelativePositions):
            expected = ", ".join(get_args(RelativePositions))
            raise WrongUseError(f"positions: expected one of {expected}, found {positions!r}")
        if positions == "rope" and (width // heads) % 2:
            raise WrongUseError(f"positions rope: expected heads of an even width, found {width // heads}")
        self.heads, self.positions = heads, positions
        if query_key_norm:
            self.query_norm, self.key_norm = (nn.LayerNorm(width // heads, bias=False) for _ in range(2))
        self.query = nn.Linear(dim, width, bias=projection_bias)
        self.key = nn.Linear(dim, width, bias=projection_bias)
        self.value = nn.Linear(dim, width, bias=projection_bias)
        self.output = nn.Linear(width, dim, bias=projection_bias)
        self.kernel = variant.build(heads, dropout)
        self.query_key_norm = query_key_norm

    def forward(
        self, hidden: Hidden, visibility: Visibility = ALL, context: Context | None = None, bias: Bias | None = None
    ) -> Hidden:
        """Returns the output of the layer; same shape as ``hidden``.

        Args:
            hidden: B T C, with C = ``dim``.
            visibility: Padding, order and memory; without it, every query attends to every key.
            context: Source of keys and values in cross-attention.
            bias: Added to the scores of each head; see ``seqarena.common.attention.attend``.

        Raises:
            WrongUseError: a tensor of another shape, or what the variant does not support.
        """
        for tensor in (hidden, hidden if context is None else context):
            if tensor.dim() != 3 or tensor.shape[2] != self.query.in_features:
                raise WrongUseError(
                    f"expected hidden states (batch, tokens, {self.query.in_features}), found {tuple(tensor.shape)}"
                )
        if not isinstance(visibility, Visibility):
            raise WrongUseError(
                f"expected a Visibility after the hidden states, found {type(visibility).__name__}; give a context by "
                "context=..."
            )
        query, key, value = self.project(hidden, context, visibility if self.positions == "none" else ALL)
        if self.positions != "none" and context is not None:
            raise WrongUseError(f"positions {self.positions}: expected self-attention, found a context")
        if self.positions == "rope":
            query, key = rotated(query), rotated(key)
        elif self.positions == "alibi":
            distance = distance_bias(hidden.shape[1], self.heads, hidden.device)
            bias = distance if bias is None else bias + distance
        return self.merge_heads(self.kernel(query, key, value, visibility, bias))

    @property
    def residual_matrices(self) -> tuple[nn.Linear, ...]:
        """Matrices whose initial values some norms scale: those of the values and of the output."""
        return self.value, self.output

    def project(
        self, hidden: Hidden, context: Context | None = None, visibility: Visibility = ALL
    ) -> tuple[Query, Key, Value]:
        """Returns the queries, keys and values of each head, normalised if the layer has norms; without positions.

        ``visibility`` clears those of a joint product together; see ``Visibility.clear_together``.
        """
        if context is not None:
            key, value = self.project_key_value(context)
            return self.project_query(hidden), key, value
        cleared = ALL if self.query_key_norm else visibility
        key, value, query = self._heads(hidden, self.key, self.value, self.query, visibility=cleared)
        if self.query_key_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value

    def joint_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the layers that self-attention computes by one product; none on a CPU."""
        layers = self.key, self.value, self.query
        return layers if are_joint(self.query.weight, layers) else ()

    def project_query(self, hidden: Hidden) -> Query:
        """Returns the queries of each head, as ``project`` does."""
        (query,) = self._heads(hidden, self.query)
        return self.query_norm(query) if self.query_key_norm else query

    def project_key_value(self, context: Context) -> tuple[Key, Value]:
        """Returns the keys and values of each head, as ``project`` does."""
        key, value = self._heads(context, self.key, self.value)
        return self.key_norm(key) if self.query_key_norm else key, value

    def merge_heads(self, heads: Output) -> Hidden:
        """Concatenates the outputs of the heads and applies the output projection."""
        attended: Hidden = self.output(heads.transpose(1, 2).flatten(2))  # B T C
        return attended

    def _heads(self, source: Tensor, *layers: nn.Linear, visibility: Visibility = ALL) -> Sequence[Tensor]:
        """Returns the outputs of several linear layers of one input, split into heads (B H T D)."""
        if are_joint(source, layers):
            joint = joint_linear(source, layers)
            return visibility.clear_together(joint.view(*joint.shape[:2], len(layers), self.heads, -1))
        return [layer(source).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in layers]


def are_joint(source: Tensor, layers: Sequence[nn.Linear]) -> bool:
    """Returns whether ``joint_linear`` computes the layers. On a CPU, results would have other bits."""
    return len(layers) > 1 and source.is_cuda and can_be_joint(layers)


def can_be_joint(layers: Sequence[nn.Linear]) -> bool:
    """Returns whether ``joint_linear`` computes what calls of the layers do: no adapter, no hook of a layer.

    Hooks that are registered for all modules are not called for these layers.
    """
    hooks = [
        (each._forward_hooks, each._forward_pre_hooks, each._backward_hooks, each._backward_pre_hooks)
        for each in layers
    ]
    are_plain = all(type(each) is nn.Linear and "forward" not in vars(each) for each in layers)
    return are_plain and not any(map(any, hooks)) and len({each.bias is None for each in layers}) == 1


def joint_linear(source: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Returns the concatenated outputs of several linear layers of one input, by one matrix product.

    The input is read once instead of once per layer, and a training step has fewer kernels. Layers whose output is not
    used have a gradient of 0, not none.
    """
    weight = _concatenated([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else _concatenated([layer.bias for layer in layers])
    return F.linear(source, weight, bias)


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the tensors as one, without a copy if they are all rows of one tensor, as in ``HalfWeights``."""
    whole, lengths = None if torch.compiler.is_compiling() else tensors[0]._base, [len(each) for each in tensors]
    if whole is not None and whole.shape == (sum(lengths), *tensors[0].shape[1:]):
        starts = [whole[start:].storage_offset() for start in itertools.accumulate(lengths[:-1], initial=0)]
        are_rows = all(
            each._base is whole
            and each.stride() == whole.stride()
            and (each.requires_grad, each.is_leaf) == (whole.requires_grad, not whole.requires_grad)
            for each in tensors
        )
        if are_rows and [each.storage_offset() for each in tensors] == starts:
            return whole
    return torch.cat(list(tensors))


def self_attention(
    variant: AttentionConfig,
    shape: LayerShape,
    *,
    positions: RelativePositions = "none",
    query_key_norm: bool = False,
) -> MultiHeadAttention | TokenMixer:
    """Returns a layer's self-attention: multi-head attention with a variant's kernel, or a token mixer.

    Draws the same random numbers under every variant, so that the other weights of a model begin alike. ``positions``
    and ``query_key_norm`` apply to multi-head attention only.
    """
    mixer = None
    if isinstance(variant, MixerConfig):
        with torch.random.fork_rng(devices=[]):
            mixer = variant.build_mixer(shape)
    attention = kernel_attention(
        Softmax() if mixer else variant, shape, positions=positions, query_key_norm=query_key_norm
    )
    return mixer or attention


def kernel_attention(
    variant: AttentionConfig,
    shape: LayerShape,
    *,
    positions: RelativePositions = "none",
    query_key_norm: bool = False,
) -> MultiHeadAttention:
    """Returns multi-head attention of a layer's shape; raises a ``WrongUseError`` for a token mixer."""
    return MultiHeadAttention(
        variant,
        dim=shape.dim,
        heads=shape.heads,
        attention_dim=shape.width,
        dropout=shape.dropout,
        projection_bias=shape.projection_bias,
        positions=positions,
        query_key_norm=query_key_norm,
    )
