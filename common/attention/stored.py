"""Files with the attention of a model of the transformers library, whose own files hold neither its name nor its u."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from seqarena.common.files import write_atomically, write_json

KERNEL = "attention_kernel"
"""Name of the module that ``attach`` adds to each attention module of a model."""
SAVED = "attention.json"
"""File in a model's folder with the name of its attention and the settings of its attached kernels."""
PARAMETERS = "attention.safetensors"
"""File in a model's folder with the parameters of its attached kernels."""


def write_attention(
    folder: Path, name: str, settings: Mapping[str, Any] | None, parameters: Mapping[str, Tensor]
) -> None:
    """Writes the files that ``seqarena.common.attention.transformers.load`` reads, each atomically.

    ``settings``: fields of the variant's config; none: the model has no attached kernels. ``parameters``: tensors of
    the kernels by their names in the model.
    """
    write_json(folder / SAVED, {"attention": name, "settings": settings})
    stored = {name: value.detach().cpu().contiguous() for name, value in parameters.items()}
    write_atomically(folder / PARAMETERS, lambda file: file.write(safetensors.torch.save(stored)))
