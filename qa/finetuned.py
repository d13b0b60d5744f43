"""A finetuned model as a checkpoint that the transformers library opens for its task."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import processors
from torch import nn

from seqarena.common.attention import attention_name
from seqarena.common.attention.stored import KERNEL, write_attention
from seqarena.common.data.readers import read_json
from seqarena.common.data.tokenization import SPECIAL, Tokenizer
from seqarena.common.files import write_atomically, write_json
from seqarena.common.model.bert.checkpoint import write_files
from seqarena.common.model.bert.families import ALBERT, BERT, ROBERTA
from seqarena.common.model.bert.family import OWN_TYPE, Family
from seqarena.common.model.norms.post import PostNorm
from seqarena.qa.data.mnli import LABELS
from seqarena.qa.model import ConditionedHead, Model, PairClassifier, Reader

FINETUNED = Path("checkpoint", "finetuned")
"""Path of the checkpoint in the directory of a finished run."""
PLUG_IN = "seqarena.common.attention.transformers.load"
KERNELS = re.compile(r"bert\.encoder\.layers\.(\d+)\.attention\.kernel\.(.+)")
"""Names of a variant's own parameters, such as u of hnas."""
ROLES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
CLASSIFIERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        BERT.model_type: {"classes": "classifier"},
        ALBERT.model_type: {"classes": "classifier"},
        ROBERTA.model_type: {"bert.pooler": "classifier.dense", "classes": "classifier.out_proj"},
    }
)
"""Model type -> names of the classifier's tensors, in the families whose published classifier computes the same.

They are only written. None is loaded by these names: the labels of another checkpoint may be others.
"""


def save_finetuned(folder: Path, model: Reader | PairClassifier, family: Family, tokenizer: Tokenizer) -> None:
    """Writes a finetuned model with its head and tokenizer, in the layout of its checkpoint's family.

    A variant other than softmax opens with ``PLUG_IN``. ``opened_by`` in config.json says how, or why the library
    cannot open the model at all.
    """
    config = model.bert.config
    assert isinstance(config, Model)
    is_reader = isinstance(model, Reader)
    name = f"{family.architecture.split('For')[0]}For{'QuestionAnswering' if is_reader else 'SequenceClassification'}"
    reason = _without_class(model, config, family)
    needs_plug_in = not reason and family.to_public(config)["model_type"] != family.model_type
    values: dict[str, Any] = {"architectures": [name], "pad_token_id": tokenizer.id("[PAD]")}
    values |= {} if is_reader else _labels()
    if reason:
        own_type = f"{OWN_TYPE}{family.model_type}"
        values |= {"architectures": [], "model_type": own_type, "opened_by": f"seqarena alone: {reason}"}
    if needs_plug_in:
        values["opened_by"] = f"{PLUG_IN}(transformers.{name}, folder)"
    classifier = {} if is_reader else CLASSIFIERS.get(family.model_type, {})
    write_files(folder, model, replace(family, names={**family.names, **classifier}), values)
    if needs_plug_in:
        _save_attention(folder, model, config, family)
    _save_tokenizer(folder, tokenizer, config)


def _labels() -> dict[str, Any]:
    """Returns the fields of config.json that describe the classifier."""
    return {
        "id2label": {str(number): label for number, label in enumerate(LABELS)},
        "label2id": {label: number for number, label in enumerate(LABELS)},
        "problem_type": "single_label_classification",
    }


def _without_class(model: nn.Module, config: Model, family: Family) -> str:
    """Returns why no class of the library computes a model; empty: one does."""
    if isinstance(model, Reader) and isinstance(model.spans, ConditionedHead):
        return "the library has the conditioned head for XLNet only"
    if isinstance(model, PairClassifier) and family.model_type not in CLASSIFIERS:
        return f"the library's classifier for {family.model_type} is another one than seqarena's (pooler with tanh)"
    if config.norm != PostNorm():
        return f"the library's {family.model_type} has post-norm, this one has the norm {config.norm_label}"
    if not family.holds(config):
        return f"the library's {family.model_type} has no such attention projections or embeddings"
    return ""


def _variant(config: Model) -> str:
    """Returns the name of an attention's entry in the table of variants. Its settings may differ."""
    return attention_name(config.attention).split("[")[0]


def _save_attention(folder: Path, model: nn.Module, config: Model, family: Family) -> None:
    module = family.layer_names["attention.query"].rpartition(".")[0]
    parameters = {}
    for name, tensor in model.state_dict().items():
        if found := KERNELS.fullmatch(name):
            parameters[f"{family.layer.format(found[1])}.{module}.{KERNEL}.kernel.{found[2]}"] = tensor
    write_attention(folder, _variant(config), asdict(config.attention), parameters)


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, config: Model) -> None:
    """Writes the tokenizer with the special tokens around texts and pairs, which seqarena itself adds elsewhere."""
    tokenizer.save(folder)
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    roles = {role: tokenizer.tokens[tokenizer.id(token)] for role, token in ROLES.items()}
    inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    if inner.post_processor is None:  # a vocabulary that was trained here, or a bare vocab.txt
        cls, sep = roles["cls_token"], roles["sep_token"]
        inner.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(name, tokenizer.id(name)) for name in (cls, sep)],
        )
        write_atomically(path, lambda file: file.write(inner.to_str(pretty=True).encode()))
    inputs = ["input_ids", *(["token_type_ids"] if config.token_types > 1 else []), "attention_mask"]
    own = read_json(settings) if settings.exists() else {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(settings, {**own, "model_max_length": config.max_length, "model_input_names": inputs, **roles})
