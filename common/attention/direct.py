"""Variants that are a function of query, key and value, without a matrix of weights: features, landmarks, recurrences.

Such a variant lists in its config which options of a call it takes into account. A call that needs another one is
refused, so that a bias or a mask is never ignored in silence.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.rows import WeightRows
from seqarena.common.attention.visibility import CALL_OPTIONS, CallOption, Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Key, Output, Pairs, Query, Scores, Value, Weights


@dataclass(frozen=True, kw_only=True)
class DirectConfig(AttentionConfig):
    """Config of a variant without a matrix of weights. Subclasses list their ``orders`` and what they support."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """Orders for which the variant is defined: all keys visible to all queries, unless a subclass lists more."""
        return ("none",)

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """Orders in which ``DirectKernel.step`` is defined: none, unless a subclass lists some."""
        return ()

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """Options of a call that ``DirectKernel.attend``, or ``TokenMixer.mix``, takes into account."""
        return ("padding",)


class DirectKernel(Kernel):
    """Computes a variant without a matrix of weights. Subclasses define ``attend``."""

    has_weights = False

    def __init__(self, config: DirectConfig, dropout: float) -> None:
        super().__init__(config, dropout)
        self.supports = config.supports

    @abstractmethod
    def attend(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output; of any content for padded queries.

        The tensors are float32 or wider. Padded queries, keys and values are 0. A key that is 0 still counts in a sum
        unless it is masked by ``visibility.key_real``.
        """

    def reference(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by ``attend``."""
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key, value = (each.to(wide) for each in visibility.clear(query, key, value))
        with torch.autocast(query.device.type, enabled=False):
            return self.attend(query, key, value, visibility, bias)

    def check(
        self, visibility: Visibility, bias: Tensor | None, *, query: Tensor, key: Tensor, value: Tensor | None = None
    ) -> None:
        """Raises a ``WrongUseError`` for arguments that do not fit, or options that the config does not list."""
        super().check(visibility, bias, query=query, key=key, value=value)
        needed = visibility.call_options(bias=bias is not None, dropout=self.active_dropout > 0)
        missing = [each for each in CALL_OPTIONS if each in needed and each not in self.supports]
        if missing:
            raise WrongUseError(
                f"{type(self).__name__} does not support {', '.join(missing)}, which this call needs; it supports "
                f"{', '.join(self.supports) or 'none'}"
            )

    def step(self, state: Any, query: Query, key: Key, value: Value, visibility: Visibility,
             bias: Bias | None = None) -> tuple[Output, Any]:  # fmt: skip
        """Computes the next queries; a subclass whose config lists orders in ``stepwise`` overrides it."""
        raise WrongUseError(f"{type(self).__name__} needs all queries at once")

    def normalize(self, scores: Scores, visible: Pairs, visibility: Visibility, state: Any) -> tuple[Weights, Any]:
        """Raises a ``WrongUseError``, as ``weights`` and ``weight_rows`` do."""
        self._refuse_weights()

    def weights(self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None) -> Weights:
        """Raises a ``WrongUseError``: there is no matrix of weights."""
        self._refuse_weights()

    def weight_rows(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None
    ) -> Iterator[WeightRows]:
        """Raises a ``WrongUseError``: there is no matrix of weights."""
        self._refuse_weights()

    def _refuse_weights(self) -> NoReturn:
        raise WrongUseError(f"{type(self).__name__} has no matrix of weights")
