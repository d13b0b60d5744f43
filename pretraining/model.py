"""Masked-language model of a run: BERT with the heads that its sequences need."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention import require_options
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.start import InitConfig
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.pretraining.data import MaskedText
from seqarena.pretraining.data.batches import MaskedBatch
from seqarena.pretraining.masking import NONE


@dataclass(frozen=True, kw_only=True)
class BertConfig(InitConfig):
    """Config of a BERT that is pretrained, from a checkpoint or from random weights.

    It has the name of its base class: the name is part of the protocol of results from before there was ``init``.
    """


Model = BertConfig


def check(model: Model, data: MaskedText) -> None:
    """Rejects a model that cannot read the sequences.

    Raises:
        WrongUseError: names the field.
    """
    model.check()
    if model.max_length < max(data.lengths):
        longest = f"model.max_length {model.max_length}: expected at least the longest sequence, {max(data.lengths)}"
        lengths = "--data.length" if data.last_length is None else "--data.length and --data.last-length"
        advice = f"; the checkpoint {model.init} has no more positions: set {lengths} to {model.max_length} or less"
        raise WrongUseError(longest if model.init is None else longest + advice)
    if model.init is None and data.is_trained and model.vocabulary < data.trained_size:
        raise WrongUseError(
            f"model.vocabulary {model.vocabulary:,} is below the {data.trained_size:,} tokens of the vocabulary to be "
            f"trained; set --data.vocabulary {model.vocabulary} or a larger --model.vocabulary"
        )
    if data.building == "packed":
        require_options(model.attention, ["segments"], "--data.building packed")
    if data.building == "packed" and isinstance(model.norm, Deescalated):
        raise WrongUseError(
            "de-escalation does not support packed rows: its mean would mix documents; use --data.building blocks"
        )
    if has_order(data) and model.token_types < 2:
        raise WrongUseError(
            f"model.token_types: expected at least 2 for pairs of segments, found {model.token_types}; "
            "--data.building blocks has no pairs"
        )


def has_order(data: MaskedText) -> bool:
    """Returns whether sequences are pairs whose order is a target."""
    return data.building in ("order", "next")


def predictions(model: nn.Module, batch: MaskedBatch) -> tuple[Tensor, Tensor | None]:
    """Returns a ``BertForPretraining``'s scores at the target positions (B K V), and of the segment order (B 2)."""
    length = batch.tokens.shape[1]
    rows = batch.places + length * _numbers(batch.places)
    visibility = Visibility(query_real=batch.real, key_real=batch.real, segments=batch.segments)
    scores, order = model(batch.tokens, batch.types, visibility, rows.flatten(), batch.positions)
    return scores.view(*batch.places.shape, -1), order


def _numbers(places: Tensor) -> Tensor:
    """Returns the index of each row; B 1."""
    return places.new_ones(len(places), 1).cumsum(dim=0) - 1


def losses(scores: Tensor, order: Tensor | None, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    """Returns the cross-entropy of each target (B K; 0 where missing) and of each segment order (B)."""
    masked = F.cross_entropy(scores.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=NONE, reduction="none")
    if order is None:
        return masked.view_as(batch.targets), masked.new_zeros(len(batch.order))
    return masked.view_as(batch.targets), F.cross_entropy(
        order.float(), batch.order, ignore_index=NONE, reduction="none"
    )
