"""Checkpoints as Google published BERT and ALBERT: a folder with a config, a vocabulary and a TensorFlow checkpoint.

Tensors get the names of the transformers library, so that the families read them as any others. The names of Google's
variables are those of google-research/bert and google-research/albert, modeling.py.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from seqarena.common.errors import BadDataError
from seqarena.common.model.bert.families import ALBERT, BERT
from seqarena.common.model.bert.tensorflow import read_tensors

CONFIGS = {"bert_config.json": BERT.model_type, "albert_config.json": ALBERT.model_type}
"""Name of the config -> model type, which it does not contain."""
INDEX = ".index"
"""Suffix of the file that names the tensors. That of the graph, ``.meta``, is not needed."""
OPTIMISER = re.compile(r"(.+/)?(adam_m|adam_v|global_step)")
"""Variables of the training."""
LAST = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias"}
"""Last part of a name, in Google's code -> here."""
INNER = "bert/encoder/transformer/group_0/inner_group_0"
LAYER = "albert/encoder/albert_layer_groups/0/albert_layers/0"
RENAMED: Mapping[str, Sequence[tuple[str, str]]] = {
    BERT.model_type: [("bert/encoder/layer_", "bert/encoder/layer/")],
    ALBERT.model_type: [
        (f"{INNER}/attention_1/self/", f"{LAYER}/attention/"),
        (f"{INNER}/attention_1/output/", f"{LAYER}/attention/"),
        (f"{INNER}/LayerNorm/", f"{LAYER}/attention/LayerNorm/"),
        (f"{INNER}/ffn_1/intermediate/output/dense/", f"{LAYER}/ffn_output/"),
        (f"{INNER}/ffn_1/intermediate/dense/", f"{LAYER}/ffn/"),
        (f"{INNER}/LayerNorm_1/", f"{LAYER}/full_layer_layer_norm/"),
        ("bert/pooler/dense/", "albert/pooler/"),
        ("bert/", "albert/"),
        ("cls/predictions/transform/", "predictions/"),
        ("cls/predictions/", "predictions/"),
        ("cls/seq_relationship/", "sop_classifier/classifier/"),
    ],
}
"""Beginnings of names, in Google's code and in the transformers library, by model type. The first that fits is used."""


def config_of(folder: Path) -> Path | None:
    """Returns Google's config in a folder, or None."""
    return next((folder / name for name in CONFIGS if (folder / name).exists()), None)


def to_public(path: Path, values: Any) -> Any:
    """Returns the content of Google's config as that of a config.json.

    ALBERT's gelu is the tanh form in Google's code. BERT's is the erf form, as in the transformers library.
    """
    if not isinstance(values, dict):
        return values
    model_type = CONFIGS[path.name]
    activation = values.get("hidden_act", "gelu")
    if model_type == ALBERT.model_type and activation == "gelu":
        activation = "gelu_new"
    return {**values, "model_type": model_type, "hidden_act": activation}


def index_of(folder: Path) -> Path | None:
    """Returns the index of the TensorFlow checkpoint in a folder, or None.

    Raises:
        BadDataError: there are several.
    """
    found = sorted(path for path in folder.glob(f"[!.]*{INDEX}") if path.is_file())
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BadDataError(f"{folder}: expected one TensorFlow checkpoint, found {names}; move the others elsewhere")
    return found[0] if found else None


def read(index: Path, model_type: str) -> dict[str, Tensor]:
    """Returns the tensors of a TensorFlow checkpoint by their names in the transformers library.

    Raises:
        BadDataError: a damaged file, another family than Google's, or a kernel that is no matrix.
    """
    if model_type not in RENAMED:
        raise BadDataError(f"{index}: expected a TensorFlow checkpoint of {' or '.join(RENAMED)}, found {model_type}")
    tensors = read_tensors(index, lambda name: not OPTIMISER.fullmatch(name))
    found = {}
    for name, tensor in tensors.items():
        is_kernel = name.endswith("/kernel")
        if is_kernel and tensor.dim() != 2:
            raise BadDataError(f"{index}: {name} has {tensor.dim()} dimensions, expected 2")
        found[_public_name(name, model_type)] = tensor.T if is_kernel else tensor  # y = x kernel, and y = x weight^T
    return found


def _public_name(name: str, model_type: str) -> str:
    for before, after in RENAMED[model_type]:
        if name.startswith(before):
            name = after + name.removeprefix(before)
            break
    module, _, last = name.rpartition("/")
    last = f"{last}.weight" if last.endswith("_embeddings") else LAST.get(last, last)
    return f"{module}/{last}".replace("/", ".") if module else name
