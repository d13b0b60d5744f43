"""The families of checkpoints that are read and written."""

from collections.abc import Mapping
from types import MappingProxyType

from seqarena.common.model.bert.family import Family

SIZES = {
    "layers": "num_hidden_layers",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "vocabulary": "vocab_size",
    "max_length": "max_position_embeddings",
    "token_types": "type_vocab_size",
    "initial_std": "initializer_range",
}
"""Field -> field of config.json, in all families but DistilBERT."""
ABSOLUTE = {"position_embedding_type": "absolute"}
LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "residual.attention_norm": "attention.output.LayerNorm",
    "feed_forward.0": "intermediate.dense",
    "feed_forward.3": "output.dense",
    "residual.feed_forward_norm": "output.LayerNorm",
}


def _names(prefix: str, others: Mapping[str, str]) -> dict[str, str]:
    """Returns the names outside the layers: of the embeddings, of SQuAD's head, and ``others``."""
    embeddings = f"{prefix}.embeddings"
    return {
        "bert.embeddings.word.weight": f"{embeddings}.word_embeddings.weight",
        "bert.embeddings.position.weight": f"{embeddings}.position_embeddings.weight",
        "bert.embeddings.token_type.weight": f"{embeddings}.token_type_embeddings.weight",
        "bert.embeddings.norm": f"{embeddings}.LayerNorm",
        "spans.both": "qa_outputs",
        **others,
    }


BERT = Family(
    model_type="bert",
    architecture="BertForPreTraining",
    fields=SIZES,
    required=ABSOLUTE,
    prefix="bert",
    layer="bert.encoder.layer.{}",
    layer_names=LAYER,
    decoder="cls.predictions.decoder",
    names=_names(
        "bert",
        {
            "bert.pooler": "bert.pooler.dense",
            "sentences": "cls.seq_relationship",
            "masked.dense": "cls.predictions.transform.dense",
            "masked.norm": "cls.predictions.transform.LayerNorm",
            "masked.bias": "cls.predictions.bias",
        },
    ),
)
ALBERT = Family(
    model_type="albert",
    architecture="AlbertForPreTraining",
    fields={**SIZES, "embedding_dim": "embedding_size"},
    defaults={"activation": "gelu_new", "dropout": 0.0, "attention_dropout": 0.0},
    constants={"shared_layers": True},
    required={**ABSOLUTE, "num_hidden_groups": 1, "inner_group_num": 1},
    always_projects=True,
    prefix="albert",
    layer="albert.encoder.albert_layer_groups.{}.albert_layers.0",
    layer_names={
        "attention.query": "attention.query",
        "attention.key": "attention.key",
        "attention.value": "attention.value",
        "attention.output": "attention.dense",
        "residual.attention_norm": "attention.LayerNorm",
        "feed_forward.0": "ffn",
        "feed_forward.3": "ffn_output",
        "residual.feed_forward_norm": "full_layer_layer_norm",
    },
    names=_names(
        "albert",
        {
            "bert.pooler": "albert.pooler",
            "bert.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
            "sentences": "sop_classifier.classifier",
            "masked.dense": "predictions.dense",
            "masked.norm": "predictions.LayerNorm",
            "masked.bias": "predictions.bias",
        },
    ),
    decoder="predictions.decoder",
)
ROBERTA = Family(
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    fields=SIZES,
    required={**ABSOLUTE, "pad_token_id": 1},  # positions are counted from pad_token_id + 1
    unused_positions=2,
    activations=("gelu",),
    prefix="roberta",
    layer="roberta.encoder.layer.{}",
    layer_names=LAYER,
    names=_names(
        "roberta",
        {
            "bert.pooler": "roberta.pooler.dense",
            "masked.dense": "lm_head.dense",
            "masked.norm": "lm_head.layer_norm",
            "masked.bias": "lm_head.bias",
        },
    ),
    decoder="lm_head.decoder",
)
DISTILBERT = Family(
    model_type="distilbert",
    architecture="DistilBertForMaskedLM",
    fields={
        "layers": "n_layers",
        "dim": "dim",
        "heads": "n_heads",
        "ffn_dim": "hidden_dim",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "vocabulary": "vocab_size",
        "max_length": "max_position_embeddings",
        "initial_std": "initializer_range",
    },
    constants={"norm_eps": 1e-12, "token_types": 0},
    prefix="distilbert",
    layer="distilbert.transformer.layer.{}",
    layer_names={
        "attention.query": "attention.q_lin",
        "attention.key": "attention.k_lin",
        "attention.value": "attention.v_lin",
        "attention.output": "attention.out_lin",
        "residual.attention_norm": "sa_layer_norm",
        "feed_forward.0": "ffn.lin1",
        "feed_forward.3": "ffn.lin2",
        "residual.feed_forward_norm": "output_layer_norm",
    },
    names=_names(
        "distilbert",
        {
            "masked.dense": "vocab_transform",
            "masked.norm": "vocab_layer_norm",
            "masked.bias": "vocab_projector.bias",
        },
    ),
    decoder="vocab_projector",
)
ELECTRA = Family(
    model_type="electra",
    architecture="ElectraForMaskedLM",
    fields={**SIZES, "embedding_dim": "embedding_size"},
    required=ABSOLUTE,
    activations=("gelu",),
    prefix="electra",
    layer="electra.encoder.layer.{}",
    layer_names=LAYER,
    names=_names(
        "electra",
        {
            "bert.embeddings.projection": "electra.embeddings_project",
            "masked.dense": "generator_predictions.dense",
            "masked.norm": "generator_predictions.LayerNorm",
            "masked.bias": "generator_lm_head.bias",
        },
    ),
    decoder="generator_lm_head",
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {each.model_type: each for each in (BERT, ALBERT, ELECTRA, DISTILBERT, ROBERTA)}
)
"""Model type -> family. A new model is written in the layout of the first that has its fields."""
