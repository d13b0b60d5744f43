"""BERT of the transformers library on the same batches, as the baseline of step timings."""

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
    """Returns the baselines of a step: name -> (model, its loss of a batch).

    transformers: the library's model with its default attention, used in its usual way: ``BertForMaskedLM``, scores
    of all positions; ``BertForQuestionAnswering``, windows padded to ``longest`` as in run_qa. The encoder alone of
    both: the mean of its last hidden states.

    Raises:
        WrongUseError: the library is not installed, or lacks the model.
    """
    try:
        import transformers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise WrongUseError("--transformers needs a package: pip install transformers") from error
    if not isinstance(config, BertConfig) or not isinstance(model, BertForPretraining | Reader):
        raise WrongUseError("--transformers: expected a BERT (pretraining mlm, qa squad1)")
    public = to_public(config)
    if public["model_type"] != "bert":
        raise WrongUseError("--transformers: that library supports softmax attention and post-norm only")
    settings = transformers.BertConfig(**public)
    if isinstance(model, Reader):
        theirs: Any = transformers.BertForQuestionAnswering(settings)
        whole = _span_loss(theirs, longest)
    else:
        theirs = transformers.BertForMaskedLM(settings)
        whole = _masked_loss(theirs)
    theirs.train(model.training)

    def their_encoder(batch: Any) -> Tensor:
        hidden: Tensor = theirs.bert(**_inputs(batch)).last_hidden_state
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


def _masked_loss(theirs: Any) -> Forward:
    def forward(batch: MaskedBatch) -> Tensor:
        labels = torch.full_like(batch.tokens, NONE)
        rows = torch.arange(len(labels))[:, None].expand_as(batch.places)
        real = batch.targets != NONE
        labels[rows[real], batch.places[real]] = batch.targets[real]
        loss: Tensor = theirs(**_inputs(batch), labels=labels).loss
        return loss

    return forward


def _span_loss(theirs: Any, longest: int) -> Forward:
    def forward(batch: SpanBatch) -> Tensor:
        padded = batch.longer(longest)
        loss: Tensor = theirs(**_inputs(padded), start_positions=batch.start, end_positions=batch.end).loss
        return loss

    return forward


def _inputs(batch: Any) -> dict[str, Any]:
    return {"input_ids": batch.tokens, "token_type_ids": batch.types, "attention_mask": batch.real.long()}
