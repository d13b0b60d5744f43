"""Reading and writing of public BERT checkpoints: a folder or hub id with config.json, weights and vocabulary.

Google's folders, with bert_config.json and a TensorFlow checkpoint, are read too.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from seqarena.common.attention.base import AttentionConfig
from seqarena.common.checksums import require_checksum, sha256, write_checksums
from seqarena.common.data.hub import hub_folder
from seqarena.common.data.tokenization import VOCABULARIES
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import write_atomically, write_json
from seqarena.common.model.bert import google
from seqarena.common.model.bert.families import BERT, FAMILIES
from seqarena.common.model.bert.family import OWN_TYPE, Family
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.bert.tensorflow import data_files
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.runs.config import from_json, to_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of weights files, in order of preference."""
PRETRAINING = "pretraining"
"""Field of config.json with the ``Pretraining`` record, in checkpoints that this project trained."""
RUN_CHECKPOINT = Path("checkpoint", "bert")
"""Path of the checkpoint in the directory of a finished run."""
OURS = "seqarena.json"
"""File beside config.json in checkpoints of this project: the whole config, with attention and norm."""
UNRECORDED = "on text that was not recorded"
"""Label of checkpoints of this project that do not record their training text."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Pretraining of a checkpoint of this project. Checkpoints that share a table are equal in all but the seed."""

    settings: str
    """Task, preset, steps, and a hash of all settings that runs of one table must share."""
    text: str
    """sha256 of the training tokens, including the vocabulary."""
    seed: int
    sources: str = ""
    """Hashes of the sources that trained it, the last pretraining's last; empty: not recorded."""
    before: str = ""
    """Label of the pretraining that this one continued; empty: it began from random weights."""
    attentions: str = ""
    """Attentions of all pretrainings, in order; empty: only that of the checkpoint."""

    @property
    def label(self) -> str:
        """The settings and the text, abbreviated, and the pretraining before."""
        own = f"{self.settings}, text {self.text[:12]}"
        return f"{own}, after {self.before}" if self.before else own


class PretrainingSummary(NamedTuple):
    """The pretraining of any checkpoint, as far as it is known."""

    label: str
    """Shared by all checkpoints of one pretraining."""
    seed: int | None = None
    sources: str = ""
    attentions: str = ""
    """Attentions of its pretrainings, in order; empty: only the checkpoint's own, or not recorded."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Use of each tensor when a checkpoint is loaded."""

    loaded: int
    new: tuple[str, ...]
    """Tensors of the model that are in no file and keep their initial values."""
    unused: tuple[str, ...]
    """Tensors of the file that the model does not have."""

    def __str__(self) -> str:
        """Returns one line for the user. Tensors that every layer has are named once."""
        parts = [f"{self.loaded} tensors loaded"]
        for use, names in (("not in the checkpoint", self.new), ("not used", self.unused)):
            once = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names)
            parts += [f"{use}: {', '.join(once)}"] if names else []
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Tensors of a checkpoint."""

    tensors: dict[str, Tensor]
    """Tensors by their current public names."""
    family: Family


def folder_of(source: str, revision: str | None = None) -> Path:
    """Returns the local folder of a checkpoint, downloaded from the hub if there is no folder of that name.

    ``source`` may also be the directory of a finished pretraining run.

    Raises:
        BadDataError: a file, or neither a folder nor available from the hub.
    """
    if Path(source).is_file():
        raise BadDataError(f"{source} is a file; expected the folder of a checkpoint, such as {Path(source).parent}")
    if (Path(source) / RUN_CHECKPOINT).is_dir():
        return Path(source) / RUN_CHECKPOINT
    wanted = ["config.json", WEIGHTS[0], *VOCABULARIES, OURS]
    found = hub_folder(source, wanted, revision)
    if not any((found / name).exists() for name in WEIGHTS):
        found = hub_folder(source, [WEIGHTS[1]], revision)
    return found


def read_config(folder: Path) -> BertConfig:
    """Returns the config of a checkpoint. Public ones have softmax attention and post-norm.

    Raises:
        BadDataError: no config, or that of another kind of model; names the field.
    """
    ours = folder / OURS
    if ours.exists():
        config = _parsed(ours, lambda values: from_json(BertConfig, values))
        require_checksum(ours)
        return config
    return _public(folder, lambda values: _family(values).to_config(values))


def _public(folder: Path, make: Callable[[Any], Parsed]) -> Parsed:
    """Returns what ``make`` returns for the content of a config.json, or of Google's config if there is none."""
    path, theirs = folder / "config.json", google.config_of(folder)
    if theirs is None or path.exists():
        return _parsed(path, make)
    return _parsed(theirs, lambda values: make(google.to_public(theirs, values)))


def _parsed(path: Path, make: Callable[[Any], Parsed]) -> Parsed:
    try:
        return make(json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        expected = f"expected config.json and {' or '.join(WEIGHTS)}, or the files of Google's BERT or ALBERT"
        raise BadDataError(f"{path} does not exist; {expected}") from error
    except KeyError as error:
        raise BadDataError(f"{path}: expected the field {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, WrongUseError) as error:
        raise BadDataError(f"{path}: {error}") from error


def family_of(folder: Path) -> Family:
    """Returns the family of a checkpoint.

    Raises:
        BadDataError: no config, or that of another kind of model; lists the families.
    """
    own = OWN_TYPE if (folder / OURS).exists() else ""
    return _public(folder, lambda values: _family(values, own))


def family_for(config: BertConfig, source: str | None = None) -> Family:
    """Returns the family in whose layout a model is written: that of the checkpoint ``source``, if it started from one.

    Without one, it is the first family with the model's fields.
    """
    if source is not None:
        return family_of(folder_of(source))
    return next((each for each in FAMILIES.values() if each.holds(config)), BERT)


def _family(values: Any, own: str = "") -> Family:
    """Returns the family that a config.json names. ``own``: prefix that its model type may have."""
    if not isinstance(values, dict):
        raise ValueError(f"expected an object, found {type(values).__name__}")
    name = values.get("model_type", BERT.model_type)
    family = FAMILIES.get(str(name).removeprefix(own))
    if family is None:
        raise ValueError(f"expected model_type {', '.join(FAMILIES)}, found {name}; no other kind of model is read")
    return family


def to_public(config: BertConfig) -> dict[str, Any]:
    """Returns the config.json of a BERT; its model type is another one if a public BERT has no such model."""
    return BERT.to_public(config)


def pretraining_of(folder: Path) -> PretrainingSummary:
    """Returns a label shared by all checkpoints of one pretraining, and this one's seed, sources and attentions.

    For a checkpoint of this project, the label is the recorded settings and text. For any other, and for those of
    this project from before the text was recorded, it contains the sha256 of the weights, so that only copies share
    it.

    Raises:
        BadDataError: no weights, or an invalid record.
    """
    record = _public(folder, lambda values: values.get(PRETRAINING))
    if isinstance(record, dict):
        absent = {name: "" for name in ("sources", "before", "attentions") if name not in record}
        made = _public(folder, lambda _: from_json(Pretraining, absent | record))
        return PretrainingSummary(made.label, made.seed, made.sources, made.attentions)
    weights = f"sha256 {weights_checksum(folder)[:16]}"
    return PretrainingSummary(weights if record is None else f"{record}, {UNRECORDED}, weights of {weights}")


def weights_of(folder: Path) -> Path:
    """Returns the file of a checkpoint's weights. That of a TensorFlow checkpoint is its index.

    Raises:
        BadDataError: there is none.
    """
    path = next((folder / name for name in WEIGHTS if (folder / name).exists()), None) or google.index_of(folder)
    if path is None:
        raise BadDataError(f"{folder}: expected {' or '.join(WEIGHTS)}, or a TensorFlow checkpoint; none exists")
    return path


def weights_checksum(folder: Path) -> str:
    """Returns the sha256 of a checkpoint's weights: of the file, or of all files of a TensorFlow checkpoint.

    Raises:
        BadDataError: a file is missing.
    """
    path = weights_of(folder)
    if path.suffix != google.INDEX:
        return sha256(path)
    files = [path, *data_files(path)]
    missing = next((each for each in files if not each.exists()), None)
    if missing is not None:
        raise BadDataError(f"{missing} does not exist; expected all files of the TensorFlow checkpoint {path.stem}")
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def read_weights(folder: Path) -> Weights:
    """Returns a checkpoint's tensors by their current public names.

    Raises:
        BadDataError: no weights, or a damaged file. A ``.bin`` is read without executing pickled code.
    """
    path, family = weights_of(folder), family_of(folder)
    tensors = google.read(path, family.model_type) if path.suffix == google.INDEX else _read_tensors(path)
    require_checksum(path)
    return Weights(tensors=family.read(tensors, str(path)), family=family)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(path)
        else:
            _require_checksums(path)
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise a different class for each kind of damage
        raise BadDataError(f"{path}: cannot be read ({error}); download it again") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise BadDataError(f"{path}: expected a dict of named tensors, found another kind of file")
    return tensors


def _require_checksums(path: Path) -> None:
    """Raises a ``ValueError`` if an entry of a zip of tensors does not have its checksum. torch does not verify it."""
    if zipfile.is_zipfile(path):  # older files are no zip and have no checksums
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")


def load(
    source: str,
    *,
    attention: AttentionConfig | None = None,
    norm: NormConfig | None = None,
    revision: str | None = None,
) -> tuple[BertForPretraining, Report]:
    """Returns a checkpoint as a model, and a report on its tensors.

    ``source`` is a folder or a hub id. If ``attention`` or ``norm`` is not the checkpoint's, every tensor that both
    have is loaded unchanged.

    Raises:
        BadDataError: files that are missing, damaged, or not of one BERT.
    """
    folder = folder_of(source, revision)
    config = read_config(folder)
    config = replace(config, attention=attention or config.attention, norm=norm or config.norm)
    config.check()
    weights = read_weights(folder)
    has_sentences, has_pooler = (
        weights.family.public_name(name) in weights.tensors for name in ("sentences.weight", "bert.pooler.weight")
    )
    model = BertForPretraining(config, sentences=has_sentences, family=weights.family.model_type)
    if model.bert.pooler is None and has_pooler:
        model.bert.pooler = nn.Linear(config.dim, config.dim)
    return model, copy_tensors(model, weights, source)


@torch.no_grad()
def copy_tensors(model: nn.Module, weights: Weights, source: str) -> Report:
    """Copies tensors by public name into a model, and reports the use of each.

    Raises:
        BadDataError: different shapes (all are named), or missing tensors of the body.
    """
    tensors, family = weights.tensors, weights.family
    wanted = {family.public_name(name): tensor for name, tensor in model.state_dict().items()}
    shared = [name for name in wanted if name in tensors]
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(wanted[name].shape)}"
        for name in shared
        if tensors[name].shape != wanted[name].shape
    ]
    if wrong:
        raise BadDataError(f"{source}: {'; '.join(wrong)}")
    pooler = family.public_name("bert.pooler")
    body = [name for name in wanted if name.startswith(f"{family.prefix}.") and not name.startswith(pooler)]
    absent = [name for name in body if name not in tensors]
    if absent:
        raise BadDataError(
            f"{source}: not a whole {family.model_type}, {len(absent)} tensors of its body are missing: {absent[:3]}"
        )
    for name in shared:
        wanted[name].copy_(tensors[name])
    new = tuple(name for name in wanted if name not in tensors)
    return Report(loaded=len(shared), new=new, unused=tuple(sorted(set(tensors) - set(wanted))))


def save(folder: Path, model: BertForPretraining, pretraining: Pretraining | None = None) -> None:
    """Writes a model in the layout of public checkpoints: config.json and model.safetensors, each atomically.

    The layout is that of the model's family, else that of the first family with the model's fields. Attention and norm
    are stored in ``seqarena.json``. Names of tensors that no public checkpoint has begin with ``seqarena.``.
    ``pretraining`` is the record that ``pretraining_of`` reads.
    """
    family = family_for(model.bert.config) if model.family is None else FAMILIES[model.family]
    write_files(folder, model, family, {} if pretraining is None else {PRETRAINING: to_json(pretraining)})


def write_files(folder: Path, model: Any, family: Family, values: Mapping[str, Any]) -> None:
    """Writes a module with a body ``bert`` in the layout of a family. ``values``: further fields of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = family.write({name: tensor.detach().cpu() for name, tensor in model.state_dict().items()})
    stored = {name: tensor.contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(stored, metadata={"format": "pt"})
    write_atomically(folder / WEIGHTS[0], lambda file: file.write(content))
    # Without the fields of a run, such as the checkpoint that it started from
    config = BertConfig(**{each.name: getattr(model.bert.config, each.name) for each in fields(BertConfig)})
    write_json(folder / "config.json", family.to_public(config) | dict(values))
    write_json(folder / OURS, to_json(config))
    write_checksums(folder, (WEIGHTS[0], OURS))
