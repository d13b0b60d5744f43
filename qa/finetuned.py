"""A finetuned model as a checkpoint that the transformers library opens for its task."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors
from torch import nn

from seqarena.common.attention import ATTENTIONS, attention_name
from seqarena.common.attention.stored import KERNEL, write_attention
from seqarena.common.data.tokenization import SPECIAL, Tokenizer
from seqarena.common.files import write_atomically, write_json
from seqarena.common.model.bert.checkpoint import write_files
from seqarena.common.model.bert.families import BERT
from seqarena.common.model.bert.family import OWN
from seqarena.common.model.norms.post import PostNorm
from seqarena.qa.data.mnli import LABELS
from seqarena.qa.model import ConditionedHead, Model, PairClassifier, Reader

OWN_TYPE = "seqarena-bert"
"""Model type of a checkpoint that the library must not load as softmax."""
FINETUNED = Path("checkpoint", "finetuned")
"""Path of the checkpoint in the directory of a finished run."""
KERNELS = re.compile(r"bert\.encoder\.layers\.(\d+)\.attention\.kernel\.(.+)")
"""Names of a variant's own parameters, such as u of hnas."""
ROLES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))


def save_finetuned(folder: Path, model: nn.Module, tokenizer: Tokenizer) -> None:
    """Writes a finetuned model with its head and tokenizer, in the layout of public checkpoints.

    A variant other than softmax opens with ``seqarena.common.attention.transformers.load``. ``opened_by`` in
    config.json says how, or why the library cannot open the model at all.
    """
    assert isinstance(model, Reader | PairClassifier)
    config = model.bert.config
    assert isinstance(config, Model)
    kind, head = _head(model)
    values: dict[str, Any] = {"architectures": [kind], "pad_token_id": tokenizer.id("[PAD]"), **head}
    reason = _without_class(model, config)
    public = BERT.to_public(config)
    needs_plug_in = not reason and public["model_type"] == OWN_TYPE
    if reason:
        values |= {"architectures": [], "model_type": OWN_TYPE, "opened_by": f"seqarena alone: {reason}"}
    if needs_plug_in:
        values["opened_by"] = f"seqarena.common.attention.transformers.load(transformers.{kind}, folder)"
    # Only here: the labels of another checkpoint's classifier may be others, so none is loaded by this name.
    tensors = {
        re.sub(rf"^{re.escape(OWN)}classes\.", "classifier.", BERT.public_name(name)): tensor
        for name, tensor in model.state_dict().items()
    }
    write_files(folder, config, tensors, public | values)
    if needs_plug_in:
        _save_attention(folder, model, config)
    _save_tokenizer(folder, tokenizer, config)


def _head(model: Reader | PairClassifier) -> tuple[str, dict[str, Any]]:
    """Returns the library's class for a model, and the fields of its config that describe the head."""
    if isinstance(model, Reader):
        return "BertForQuestionAnswering", {}
    labels = dict(enumerate(LABELS))
    return "BertForSequenceClassification", {
        "id2label": {str(number): label for number, label in labels.items()},
        "label2id": {label: number for number, label in labels.items()},
        "problem_type": "single_label_classification",
    }


def _without_class(model: Reader | PairClassifier, config: Model) -> str:
    """Returns why no class of the library computes a model; empty: one does."""
    if isinstance(model, Reader) and isinstance(model.spans, ConditionedHead):
        return "the library has no BERT with the conditioned head"
    if config.norm != PostNorm():
        return f"the library's BERT has post-norm, this one has the norm {config.norm_label}"
    if config.shared_layers or config.embedding_dim is not None or config.token_types < 1:
        return "the library's BERT has layers of their own, and embeddings as wide as these for tokens and segments"
    if not config.projection_bias or config.attention_dim not in (None, config.dim):
        return "the library's BERT has attention projections with biases, from and to vectors of its own size"
    if _variant(config) not in ATTENTIONS:
        return "its attention is a variant of your own, which the plug-in does not register"
    return ""


def _variant(config: Model) -> str:
    """Returns the name of an attention's entry in the table of variants. Its settings may differ."""
    return attention_name(config.attention).split("[")[0]


def _save_attention(folder: Path, model: nn.Module, config: Model) -> None:
    parameters = {}
    for name, tensor in model.state_dict().items():
        if found := KERNELS.fullmatch(name):
            parameters[f"bert.encoder.layer.{found[1]}.attention.self.{KERNEL}.kernel.{found[2]}"] = tensor
    write_attention(folder, _variant(config), asdict(config.attention), parameters)


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, config: Model) -> None:
    """Writes the tokenizer with the special tokens around texts and pairs, which seqarena itself adds elsewhere."""
    tokenizer.save(folder)
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    roles = {role: tokenizer.tokens[tokenizer.id(token)] for role, token in ROLES.items()}
    cls, sep = roles["cls_token"], roles["sep_token"]
    between, second = " ".join([f"{sep}:0"] * tokenizer.separators), int(config.token_types > 1)
    inner.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {between} $B:{second} {sep}:{second}",
        special_tokens=[(name, inner.token_to_id(name)) for name in (cls, sep)],
    )
    write_atomically(folder / "tokenizer.json", lambda file: file.write(inner.to_str(pretty=True).encode()))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    write_json(folder / "tokenizer_config.json", settings | roles)
