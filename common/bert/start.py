"""A model that starts from a BERT checkpoint: what of its config the checkpoint settles."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from common.attention import attention_name
from common.attention.base import AttentionConfig
from common.attention.hybrid import Hybrid
from common.attention.softmax import Softmax
from common.bert.checkpoint import folder_of, pretraining_of, read_config
from common.bert.model import BertConfig
from common.errors import BadDataError, WrongUseError
from common.hub import hub_folder
from common.tokenization import VOCABULARIES, Tokenizer, load_tokenizer

OWN = ("attention", "norm", "dropout", "attention_dropout", "initial_std")
"""Fields of a BERT that a checkpoint does not settle."""


@dataclass(frozen=True, kw_only=True)
class StartedConfig(BertConfig):
    """A BERT, from a checkpoint or from nothing."""

    pretraining: str = ""
    """What the checkpoint was trained on, taken from it: runs of the same one are of one protocol."""
    pretrained_with: str = ""
    """The attention that it was trained with, taken from it."""

    @property
    def started_attention(self) -> AttentionConfig:
        """The attention in the place of the checkpoint's."""
        return self.attention

    @property
    def pretrained_otherwise(self) -> tuple[str, ...]:
        """With which attention the checkpoint was trained, if it was another one; for a row in a table."""
        trained, own = self.pretrained_with, attention_name(self.started_attention)
        return (f"pretrained with {trained}",) if trained and trained.split("[")[0] != own.split("[")[0] else ()


Config = TypeVar("Config", bound=StartedConfig)


def started(model: Config, source: str, typed: Collection[str]) -> Config:
    """Returns the config with a checkpoint's sizes, and its attention and norm unless they were ``typed``.

    hnas in the place of softmax starts at u = 0, unless a u was typed: the function that was learned is kept.

    Raises:
        BadDataError: a checkpoint that cannot be read.
        WrongUseError: a size was typed that is not the checkpoint's.
    """
    folder = folder_of(source)
    config = read_config(folder)
    sizes = {each.name: getattr(config, each.name) for each in fields(BertConfig) if each.name not in OWN}
    for name, value in sizes.items():
        mine = getattr(model, name)
        if f"model.{name}" in typed and mine != value:
            raise WrongUseError(f"model.{name} {mine}: the checkpoint {source} has {value}")
    for name in ("pretraining", "pretrained_with"):
        if f"model.{name}" in typed:
            raise WrongUseError(f"model.{name} is taken from the checkpoint {source}")
    if isinstance(config.attention, Hybrid) and "model.attention.u" in typed:
        raise WrongUseError(f"model.attention.u: the checkpoint {source} has trained values of u")
    attention = config.attention
    if is_typed("attention", typed):
        attention = in_place_of(config.attention, model.attention, "attention", typed)
    return replace(
        model, **sizes, attention=attention, norm=model.norm if is_typed("norm", typed) else config.norm,
        pretraining=pretraining_of(folder), pretrained_with=attention_name(config.attention),
    )  # fmt: skip


def in_place_of(
    trained: AttentionConfig, chosen: AttentionConfig, name: str, typed: Collection[str]
) -> AttentionConfig:
    """Returns the attention chosen for a field: of hnas, where softmax was trained and no u typed, at u = 0."""
    if isinstance(trained, Softmax) and isinstance(chosen, Hybrid) and f"model.{name}.u" not in typed:
        return replace(chosen, u=0.0)
    return chosen


def tokenizer_of(named: str | None, checkpoint: str | None) -> Tokenizer | None:
    """Returns the tokenizer that is named, else the checkpoint's; None where there is neither.

    Raises:
        BadDataError: no such tokenizer, or a checkpoint without one.
    """
    if named is not None:
        try:
            return load_tokenizer(hub_folder(named, VOCABULARIES))
        except BadDataError as error:
            raise BadDataError(f"--data.tokenizer {error}, or a vocab.txt or tokenizer.json") from error
    if checkpoint is None:
        return None
    where = folder_of(checkpoint)
    if not any((where / name).exists() for name in ("tokenizer.json", "vocab.txt")):
        raise BadDataError(f"{checkpoint} has no vocabulary (tokenizer.json or vocab.txt); --data.tokenizer names one")
    return load_tokenizer(where)


def require_room(tokenizer: Tokenizer, model: BertConfig, checkpoint: str | None) -> str | None:
    """Returns a warning if a checkpoint has more token embeddings than the vocabulary tokens.

    Raises:
        WrongUseError: it has fewer.
    """
    if len(tokenizer) > model.vocabulary:
        raise WrongUseError(
            f"model.vocabulary {model.vocabulary:,} is below the {len(tokenizer):,} tokens of {tokenizer.source}"
        )
    if checkpoint is None or len(tokenizer) == model.vocabulary:
        return None
    return f"{tokenizer.source} has {len(tokenizer):,} tokens, the checkpoint {model.vocabulary:,}: is it its own?"


def is_typed(name: str, typed: Collection[str]) -> bool:
    """Returns whether a field of the model, or one inside it, was typed."""
    return any(path == f"model.{name}" or path.startswith(f"model.{name}.") for path in typed)
