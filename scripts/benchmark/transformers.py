"""BERT and ViT of the transformers library on the same batches, as the baselines of step timings."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import to_public
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.model.transformer import ModelConfig
from seqarena.common.training.step import Loss
from seqarena.lra.pictures.data import PictureBatch
from seqarena.lra.pictures.library import LibraryClassifier
from seqarena.lra.pictures.model import VisionTransformer, VisionTransformerConfig, normalized
from seqarena.pretraining.data.batches import MaskedBatch
from seqarena.pretraining.masking import NONE
from seqarena.qa.data.windows import SpanBatch
from seqarena.qa.model import Reader

Forward = Callable[[Any], Tensor]
Contenders = Mapping[str, tuple[nn.Module, Forward]]


def forwards(model: nn.Module, config: ModelConfig, longest: int, loss: Loss) -> Contenders:
    """Returns the baselines of a step: name -> (model, its loss of a batch).

    transformers: the library's model with its default attention, used in its usual way: ``BertForMaskedLM``, scores
    of all positions; ``BertForQuestionAnswering``, windows padded to ``longest`` as in run_qa;
    ``ViTForImageClassification`` with ``loss``, that of our model. The encoder alone of both: the mean of its last
    hidden states.

    Raises:
        WrongUseError: the library is not installed, or lacks the model.
    """
    try:
        import transformers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise WrongUseError("--transformers needs a package: pip install transformers") from error
    if isinstance(config, VisionTransformerConfig) and isinstance(model, VisionTransformer):
        return _of_pictures(model, config, loss)
    if not isinstance(config, BertConfig) or not isinstance(model, BertForPretraining | Reader):
        raise WrongUseError(
            "--transformers: expected a BERT or a vision transformer (pretraining mlm, qa squad1, lra imagenet)"
        )
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


def _of_pictures(model: VisionTransformer, config: VisionTransformerConfig, loss: Loss) -> Contenders:
    """Returns the baselines of a vision transformer. The encoders alone get pictures without random changes."""
    settings = vit_settings(config)
    import transformers  # noqa: PLC0415  # an extra

    theirs: Any = transformers.ViTForImageClassification(transformers.ViTConfig(**settings))
    classifier = LibraryClassifier(theirs).train(model.training)

    def their_encoder(batch: PictureBatch) -> Tensor:
        hidden: Tensor = theirs.vit(pixel_values=normalized(batch.pictures.float() / 255)).last_hidden_state
        return hidden.mean()

    def our_encoder(batch: PictureBatch) -> Tensor:
        hidden: Tensor = model.encoder(model.embed(batch.pictures.float() / 255), Visibility())
        return hidden.mean()

    return {
        "transformers": (classifier, functools.partial(loss, classifier)),
        "encoder alone": (model, our_encoder),
        "encoder alone, transformers": (classifier, their_encoder),
    }


def vit_settings(config: VisionTransformerConfig) -> dict[str, Any]:
    """Returns the settings of the library's ViT that computes the same.

    Raises:
        WrongUseError: it cannot.
    """
    is_plain = (config.attention_labels, config.attention_dim, config.projection_bias) == ((), None, True)
    if not (is_plain and type(config.norm) is PreNorm and config.pooling == "cls"):
        raise WrongUseError("--transformers: that library's ViT has pre-norm, a class token and biases only")
    return {
        "image_size": config.side, "patch_size": config.patch, "num_hidden_layers": config.layers,
        "hidden_size": config.dim, "num_attention_heads": config.heads, "intermediate_size": config.ffn_dim,
        "num_labels": config.classes, "layer_norm_eps": config.norm_eps, "hidden_dropout_prob": config.dropout,
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation),
        "attention_probs_dropout_prob": config.attention_dropout,
    }  # fmt: skip


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
    mask = None if batch.real is None else batch.real.long()
    return {"input_ids": batch.tokens, "token_type_ids": batch.types, "attention_mask": mask}
