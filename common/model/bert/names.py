"""Names of tensors in public checkpoints, and the corresponding names in this project."""

import re

from torch import Tensor

from seqarena.common.errors import BadDataError

OUTSIDE = {
    "bert.embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type.weight": "bert.embeddings.token_type_embeddings.weight",
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "bert.pooler": "bert.pooler.dense",
    "masked.dense": "cls.predictions.transform.dense",
    "masked.norm": "cls.predictions.transform.LayerNorm",
    "masked.bias": "cls.predictions.bias",
    "sentences": "cls.seq_relationship",
    "spans.both": "qa_outputs",
}
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
OURS = re.compile(r"bert\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
OWN = "seqarena."
"""Prefix of tensors that no public checkpoint has, such as the mixing weights of hnas."""


def public_name(name: str) -> str:
    """Returns the name in a public checkpoint of a tensor of ``BertForPretraining``."""
    if found := OURS.fullmatch(name):
        layer, inner, kind = found.groups()
        if inner in LAYER:
            return f"bert.encoder.layer.{layer}.{LAYER[inner]}.{kind}"
    head, _, kind = name.rpartition(".")
    if name in OUTSIDE:
        return OUTSIDE[name]
    return f"{OUTSIDE[head]}.{kind}" if head in OUTSIDE else f"{OWN}{name}"


def modern(tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Returns a file's tensors by their current names, without duplicates.

    gamma and beta become weight and bias. Bodies saved without the prefix ``bert.`` get it. Position buffers and the
    tied decoder are dropped.

    Raises:
        BadDataError: a decoder that is not tied to the token embeddings, which this model does not support.
    """
    found: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", old))
        if re.match(r"(embeddings|encoder|pooler)\.", name):
            name = f"bert.{name}"
        if not name.endswith("embeddings.position_ids"):
            found[name] = tensor
    word, decoder = (
        found.get("bert.embeddings.word_embeddings.weight"),
        found.pop("cls.predictions.decoder.weight", None),
    )
    if decoder is not None and (word is None or decoder.shape != word.shape or not decoder.equal(word)):
        raise BadDataError(
            f"{source}: cls.predictions.decoder.weight differs from the token embeddings; expected a tied decoder"
        )
    bias = found.pop("cls.predictions.decoder.bias", None)
    if bias is not None:
        found.setdefault("cls.predictions.bias", bias)
    return found
