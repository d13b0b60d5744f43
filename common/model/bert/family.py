"""A family of public checkpoints: the fields of its config.json and the names of its tensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from seqarena.common.attention.softmax import Softmax
from seqarena.common.errors import BadDataError
from seqarena.common.model.bert.model import BertConfig
from seqarena.common.model.feed_forward import Activation
from seqarena.common.model.norms.post import PostNorm

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
)
"""Public name -> name in ``BertConfig``. Plain gelu is the erf form that Google's weights of 2018 were trained with."""
PUBLIC_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""Name in ``BertConfig`` -> public name."""
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "norm_eps": 1e-12, "max_length": 512,
     "token_types": 2, "initial_std": 0.02}
)  # fmt: skip
"""Values of fields that a config.json may lack."""
LAYER = re.compile(r"bert\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
POSITIONS = "bert.embeddings.position.weight"
OWN_TYPE = "seqarena-"
"""Prefix of the model type of models that are not in the transformers library."""
OWN = "seqarena."
"""Prefix of tensors that no public checkpoint has, such as the mixing weights of hnas."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Layout of one kind of checkpoint. Names on the left are those of ``BertConfig`` and ``BertForPretraining``."""

    model_type: str
    architecture: str
    """Class of the transformers library with the heads of ``BertForPretraining``."""
    fields: Mapping[str, str]
    """Field -> field of config.json."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Public values of fields that a config.json may lack, where they differ from ``DEFAULTS``."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields that have one value in this family."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json of which one value is supported."""
    activations: tuple[str, ...] = tuple(ACTIVATIONS)
    """Supported values of hidden_act. The heads of some families have gelu, whatever hidden_act is."""
    prefix: str
    """First part of the names of the body's tensors; some files lack it."""
    names: Mapping[str, str]
    """Tensor, or module with weight and bias -> public name."""
    layer: str
    """Public name of a layer, with {} for its index."""
    layer_names: Mapping[str, str]
    """Module of a layer -> its public name in the layer."""
    decoder: str
    """Public name of the projection to the vocabulary, whose weight is that of the token embeddings."""
    always_projects: bool = False
    """Whether the embeddings have a projection even if they are as wide as the layers."""
    unused_positions: int = 0
    """Rows at the start of the public position table that belong to no position."""

    def to_config(self, values: Mapping[str, Any]) -> BertConfig:
        """Returns the config that config.json describes.

        Raises:
            KeyError: a missing field.
            ValueError: a value that is not supported.
        """
        for name, only in self.required.items():
            if values.get(name, only) != only:
                raise ValueError(f"expected {name} {only}, found {values[name]}")
        defaults = {**DEFAULTS, **self.defaults}
        found = {
            ours: values.get(public, defaults[ours]) if ours in defaults else values[public]
            for ours, public in self.fields.items()
        }
        if found["activation"] not in self.activations:
            expected = f"{self.fields['activation']} {', '.join(self.activations)}"
            raise ValueError(f"expected {expected}, found {found['activation']}")
        if values.get("is_decoder") or values.get("add_cross_attention"):
            raise ValueError("expected an encoder, found is_decoder or add_cross_attention true")
        kinds = {each.name: float if each.type is float else int for each in fields(BertConfig)}
        for ours, value in found.items():
            if ours != "activation" and (isinstance(value, bool) or (kinds[ours] is int and value != int(value))):
                raise ValueError(f"expected a number for {self.fields[ours]}, whole if it counts, found {value}")
        numbers: dict[str, Any] = {name: kinds[name](value) for name, value in found.items() if name != "activation"}
        numbers["max_length"] -= self.unused_positions
        if numbers.get("embedding_dim") == numbers["dim"] and not self.always_projects:
            numbers["embedding_dim"] = None
        return BertConfig(**numbers, **self.constants, activation=ACTIVATIONS[found["activation"]])

    def to_public(self, config: BertConfig) -> dict[str, Any]:
        """Returns the content of config.json.

        A model that the family does not have, such as another attention, gets its own model type, since transformers
        would load it as softmax.
        """
        is_plain = self.holds(config) and config.attention == Softmax() and config.norm == PostNorm()
        own_type = self.model_type if is_plain else f"{OWN_TYPE}{self.model_type}"
        return {"architectures": [self.architecture], "model_type": own_type, **self._fields_of(config)}

    def _fields_of(self, config: BertConfig) -> dict[str, Any]:
        values = {ours: getattr(config, ours) for ours in self.fields}
        values["activation"] = PUBLIC_ACTIVATIONS[config.activation]
        values["max_length"] += self.unused_positions
        if "embedding_dim" in values:
            values["embedding_dim"] = config.embedding_width
        return {public: values[ours] for ours, public in self.fields.items()} | dict(self.required)

    def holds(self, config: BertConfig) -> bool:
        """Returns whether a config.json of this family describes the whole config, apart from attention and norm."""
        width = None if config.attention_dim == config.dim else config.attention_dim
        plain = replace(config, attention=Softmax(), norm=PostNorm(), attention_dim=width)
        plain = BertConfig(**{each.name: getattr(plain, each.name) for each in fields(BertConfig)})
        has_types = config.token_types > 0
        if PUBLIC_ACTIVATIONS[config.activation] not in self.activations or has_types != ("token_types" in self.fields):
            return False
        return self.to_config(self._fields_of(config)) == plain

    def public_name(self, name: str) -> str:
        """Returns the name in a checkpoint of a tensor of ``BertForPretraining``."""
        if (found := LAYER.fullmatch(name)) and found[2] in self.layer_names:
            return f"{self.layer.format(found[1])}.{self.layer_names[found[2]]}.{found[3]}"
        module, _, kind = name.rpartition(".")
        if name in self.names:
            return self.names[name]
        return f"{self.names[module]}.{kind}" if module in self.names else f"{OWN}{name}"

    def read(self, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
        """Returns the tensors of a file by their current names, without duplicates and unused positions.

        gamma and beta become weight and bias. Names without the prefix get it. Buffers and the tied decoder are
        dropped.

        Raises:
            BadDataError: a decoder that is not tied to the token embeddings, which this model does not support.
        """
        found: dict[str, Tensor] = {}
        for old, tensor in tensors.items():
            name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", old))
            if re.match(r"(embeddings|embeddings_project|encoder|transformer|pooler)\.", name):
                name = f"{self.prefix}.{name}"
            if not name.endswith(("embeddings.position_ids", "embeddings.token_type_ids")):
                found[name] = tensor
        word = found.get(self.public_name("bert.embeddings.word.weight"))
        decoder = found.pop(f"{self.decoder}.weight", None)
        if decoder is not None and (word is None or decoder.shape != word.shape or not decoder.equal(word)):
            raise BadDataError(
                f"{source}: {self.decoder}.weight differs from the token embeddings; expected a tied decoder"
            )
        bias = found.pop(f"{self.decoder}.bias", None)
        if bias is not None:
            found.setdefault(self.public_name("masked.bias"), bias)
        positions = self.public_name(POSITIONS)
        if positions in found:
            found[positions] = found[positions][self.unused_positions :]
        return found

    def write(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of ``BertForPretraining`` as a file stores them. Unused positions are zeros."""
        found = {self.public_name(name): tensor for name, tensor in tensors.items()}
        positions = self.public_name(POSITIONS)
        unused = found[positions].new_zeros(self.unused_positions, found[positions].shape[1])
        return found | {positions: torch.cat([unused, found[positions]])}
