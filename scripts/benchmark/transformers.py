"""BERT of the transformers library on the same batches: what a step of masked-language models is measured against."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from common.attention.visibility import Visibility
from common.bert.checkpoint import to_public
from common.bert.model import BertConfig, BertForPretraining
from common.errors import WrongUseError
from common.transformer import EncoderConfig
from pretraining.data.batches import MaskedBatch
from pretraining.masking import NONE

Forward = Callable[[MaskedBatch], Tensor]


def forwards(model: nn.Module, config: EncoderConfig) -> dict[str, tuple[nn.Module, Forward]]:
    """Returns what is timed beside a step of ours: name -> (model, its loss of a batch).

    transformers: ``BertForMaskedLM`` with its default attention, as its users call it, scores of all positions; the
    encoder alone of both: mean of the last layer's stream.

    Raises:
        WrongUseError: the library is not installed, or a model that it has not.
    """
    try:
        import transformers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise WrongUseError("--transformers needs its package: pip install transformers") from error
    if not isinstance(config, BertConfig) or not isinstance(model, BertForPretraining):
        raise WrongUseError("--transformers is for pretraining mlm: a BERT")
    public = to_public(config)
    if public["model_type"] != "bert":
        raise WrongUseError("--transformers: that library has softmax attention and post-norm alone")
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**public))
    theirs.train(model.training)

    def masked(batch: MaskedBatch) -> Tensor:
        labels = torch.full_like(batch.tokens, NONE)
        rows = torch.arange(len(labels))[:, None].expand_as(batch.places)
        real = batch.targets != NONE
        labels[rows[real], batch.places[real]] = batch.targets[real]
        loss: Tensor = theirs(**_given(batch), labels=labels).loss
        return loss

    def their_encoder(batch: MaskedBatch) -> Tensor:
        hidden: Tensor = theirs.bert(**_given(batch)).last_hidden_state
        return hidden.mean()

    def our_encoder(batch: MaskedBatch) -> Tensor:
        visibility = Visibility(query_real=batch.real, key_real=batch.real)
        hidden: Tensor = model.bert(batch.tokens, batch.types, visibility)
        return hidden.mean()

    return {
        "transformers": (theirs, masked),
        "encoder alone": (model, our_encoder),
        "encoder alone, transformers": (theirs, their_encoder),
    }


def _given(batch: MaskedBatch) -> dict[str, Any]:
    return {"input_ids": batch.tokens, "token_type_ids": batch.types, "attention_mask": batch.real.long()}
