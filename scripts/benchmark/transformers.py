"""BERT of the transformers library on the same batches: what a step of ours is measured against."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import to_public
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.transformer import ModelConfig
from seqarena.pretraining.data.batches import MaskedBatch
from seqarena.pretraining.masking import NONE
from seqarena.qa.data.windows import SpanBatch
from seqarena.qa.model import Reader

Forward = Callable[[Any], Tensor]
Contenders = Mapping[str, tuple[nn.Module, Forward]]


def forwards(model: nn.Module, config: ModelConfig, longest: int) -> Contenders:
    """Returns what is timed beside a step of ours: name -> (model, its loss of a batch).

    transformers: its model with its default attention, as its users call it: ``BertForMaskedLM``, scores of all
    positions; ``BertForQuestionAnswering``, windows padded to ``longest`` as run_qa pads. The encoder alone of both:
    mean of the last layer's stream.

    Raises:
        WrongUseError: the library is not installed, or a model that it has not.
    """
    try:
        import transformers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise WrongUseError("--transformers needs its package: pip install transformers") from error
    if not isinstance(config, BertConfig) or not isinstance(model, BertForPretraining | Reader):
        raise WrongUseError("--transformers is for pretraining mlm and qa squad1: a BERT")
    public = to_public(config)
    if public["model_type"] != "bert":
        raise WrongUseError("--transformers: that library has softmax attention and post-norm alone")
    settings = transformers.BertConfig(**public)
    if isinstance(model, Reader):
        theirs: Any = transformers.BertForQuestionAnswering(settings)
        whole = _spans(theirs, longest)
    else:
        theirs = transformers.BertForMaskedLM(settings)
        whole = _masked(theirs)
    theirs.train(model.training)

    def their_encoder(batch: Any) -> Tensor:
        hidden: Tensor = theirs.bert(**_given(batch)).last_hidden_state
        return hidden.mean()

    def our_encoder(batch: Any) -> Tensor:
        visibility = Visibility(query_real=batch.real, key_real=batch.real)
        hidden: Tensor = model.bert(batch.tokens, batch.types, visibility)
        return hidden.mean()

    return {
        "transformers": (theirs, whole),
        "encoder alone": (model, our_encoder),
        "encoder alone, transformers": (theirs, their_encoder),
    }


def _masked(theirs: Any) -> Forward:
    def forward(batch: MaskedBatch) -> Tensor:
        labels = torch.full_like(batch.tokens, NONE)
        rows = torch.arange(len(labels))[:, None].expand_as(batch.places)
        real = batch.targets != NONE
        labels[rows[real], batch.places[real]] = batch.targets[real]
        loss: Tensor = theirs(**_given(batch), labels=labels).loss
        return loss

    return forward


def _spans(theirs: Any, longest: int) -> Forward:
    def forward(batch: SpanBatch) -> Tensor:
        padded = batch.longer(longest)
        loss: Tensor = theirs(**_given(padded), start_positions=batch.start, end_positions=batch.end).loss
        return loss

    return forward


def _given(batch: Any) -> dict[str, Any]:
    return {"input_ids": batch.tokens, "token_type_ids": batch.types, "attention_mask": batch.real.long()}
