"""Models that start from a BERT checkpoint: config fields and tokenizer that the checkpoint determines."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

from torch import nn

from seqarena.common.attention import attention_name
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.attention.softmax import Softmax
from seqarena.common.data.hub import hub_folder
from seqarena.common.data.tokenization import FILES, VOCABULARIES, Tokenizer, load_tokenizer, word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.checkpoint import (
    UNRECORDED,
    copy_tensors,
    folder_of,
    pretraining_of,
    read_config,
    read_weights,
)
from seqarena.common.model.bert.model import BertConfig
from seqarena.common.runs.roles import Role, added, role
from seqarena.common.runs.run import RowParts

OWN = ("attention", "norm", "dropout", "attention_dropout", "initial_std")
"""Fields of a BERT that a checkpoint does not determine."""


@dataclass(frozen=True, kw_only=True)
class StartedConfig(BertConfig):
    """A BERT that starts from a checkpoint or from random weights."""

    pretraining: str = field(default="", metadata=role(Role.PRETRAINING) | added(3))
    """Settings and text of the checkpoint's pretraining, read from it. Runs of one protocol share them."""
    pretraining_seed: int | None = field(default=None, metadata=role(Role.SEED) | added(3))
    """Seed of the first recorded pretraining, read from the checkpoint; none: not recorded."""
    pretraining_sources: str = field(default="", metadata=role(Role.ROW) | added(3))
    """Hash of the sources of the pretraining, read from the checkpoint; empty: not recorded."""
    pretrained_with: str = field(default="", metadata=role(Role.ROW) | added(3))
    """Attention of the pretraining, read from the checkpoint; of several pretrainings, in order."""

    @property
    def started_attention(self) -> AttentionConfig:
        """The attention that replaces the checkpoint's."""
        return self.attention

    @property
    def pretrained_otherwise(self) -> RowParts:
        """Part of the run's row with the attention of the pretraining, if it is another one."""
        trained, own = self.pretrained_with, attention_name(self.started_attention)
        is_other = trained and trained.split("[")[0] != own.split("[")[0]
        return (("pretrained with", trained),) if is_other else ()

    def notes_of(self, seed: int) -> list[str]:
        """Returns the table notes of a run of this seed, with the pretraining's seed if it is another one."""
        own = self.pretraining_seed in (None, seed)
        return self.notes if own else [*self.notes, f"pretraining seed {self.pretraining_seed}"]

    @property
    def names_pretraining(self) -> bool:
        """Whether any field that a checkpoint sets has a value."""
        return bool(self.pretraining or self.pretrained_with) or self.pretraining_seed is not None


@dataclass(frozen=True, kw_only=True)
class InitConfig(StartedConfig):
    """A BERT that starts from one checkpoint as a whole, or from random weights."""

    init: str | None = field(default=None, metadata=role(Role.WEIGHTS) | added(3))
    """Checkpoint: a folder, an id of the hub, or the directory of a pretraining run. It determines the model's sizes.
    none: random weights."""

    def check(self, *, order: Literal["none"] = "none", mean_pooled: bool = False) -> None:  # type: ignore[override]
        """Raises a ``WrongUseError`` that names the invalid field."""
        super().check(order=order, mean_pooled=mean_pooled)
        if self.init is None and self.names_pretraining:
            raise WrongUseError(
                "model.pretraining, .pretraining_seed and .pretrained_with are taken from the checkpoint model.init; "
                "omit them, or set --model.init"
            )


Config = TypeVar("Config", bound=StartedConfig)


def with_checkpoint(model: Config, source: str, typed: Collection[str]) -> Config:
    """Returns the config with a checkpoint's sizes, and its attention and norm unless they were ``typed``.

    hnas in place of softmax starts at u = 0 unless u was typed, so that the model first computes the pretrained
    function.

    Raises:
        BadDataError: a checkpoint that cannot be read.
        WrongUseError: a typed size that is not the checkpoint's.
    """
    folder = folder_of(source)
    config = read_config(folder)
    sizes = {each.name: getattr(config, each.name) for each in fields(BertConfig) if each.name not in OWN}
    for name, value in sizes.items():
        mine = getattr(model, name)
        if f"model.{name}" in typed and mine != value:
            raise WrongUseError(f"model.{name}: expected {value} as in the checkpoint {source}, found {mine}")
    for name in ("pretraining", "pretraining_seed", "pretraining_sources", "pretrained_with"):
        if f"model.{name}" in typed:
            raise WrongUseError(f"model.{name} is read from the checkpoint {source}; leave it out")
    if isinstance(config.attention, Hybrid) and "model.attention.u" in typed:
        raise WrongUseError(f"model.attention.u: the checkpoint {source} has trained values of u; leave it out")
    attention = config.attention
    if is_typed("attention", typed):
        attention = replace_attention(config.attention, model.attention, "attention", typed)
    before = pretraining_of(folder)
    return replace(
        model, **sizes, attention=attention, norm=model.norm if is_typed("norm", typed) else config.norm,
        pretraining=before.label, pretraining_seed=before.seed, pretraining_sources=before.sources,
        pretrained_with=before.attentions or attention_name(config.attention),
    )  # fmt: skip


def start(model: nn.Module, config: InitConfig) -> str:
    """Copies the tensors of the checkpoint ``init`` into a model, and returns a line on the use of each.

    Raises:
        BadDataError: the checkpoint is damaged, or its tensors do not fit the model.
    """
    source = str(config.init)
    report = copy_tensors(model, read_weights(folder_of(source)), source)
    return f"{source}, pretrained with {config.pretrained_with}: {report}"


def replace_attention(
    trained: AttentionConfig, chosen: AttentionConfig, name: str, typed: Collection[str]
) -> AttentionConfig:
    """Returns the attention ``chosen`` for a field. hnas in place of a trained softmax has u = 0 unless u was typed.

    Raises:
        WrongUseError: a token mixer in place of another attention. No projection of the checkpoint would reach it.
    """
    if isinstance(chosen, MixerConfig) and type(chosen) is not type(trained):
        raise WrongUseError(
            f"model.{name} {attention_name(chosen)}: a token mixer has its own projections, so it cannot replace the "
            f"checkpoint's {attention_name(trained)}; train it from the beginning"
        )
    if isinstance(trained, Softmax) and isinstance(chosen, Hybrid) and f"model.{name}.u" not in typed:
        return replace(chosen, u=0.0)
    return chosen


def unrecorded_text(model: StartedConfig, source: str) -> str | None:
    """Returns a warning if a checkpoint of this project does not record its training text."""
    if UNRECORDED not in model.pretraining:
        return None
    return (
        f"{source} was pretrained {UNRECORDED}: its runs are not compared with those of other checkpoints; repeat its "
        "pretraining with --overwrite to record the text"
    )


def tokenizer_unless_typed(named: str | None, typed: Collection[str]) -> str | None:
    """Returns ``data.tokenizer`` for a run that starts from a checkpoint: None (the checkpoint's own) unless typed."""
    return named if "data.tokenizer" in typed else None


def tokenizer_of(
    named: str | None, checkpoint: str | None, model: BertConfig, words: Callable[[], Iterable[str]]
) -> tuple[Tokenizer, str | None]:
    """Returns the tokenizer ``named``, else the checkpoint's, else one of generated ``words``; and a warning or None.

    The warning lists the differences between the named vocabulary and the checkpoint's.

    Raises:
        BadDataError: no such tokenizer, or a checkpoint without one.
        WrongUseError: a named tokenizer with other token ids than the checkpoint's, or with more tokens than the
            model.
    """
    own = None if checkpoint is None else _vocabulary_of(checkpoint)
    if named is not None:
        try:
            tokenizer = load_tokenizer(hub_folder(named, VOCABULARIES))
        except BadDataError as error:
            raise BadDataError(f"--data.tokenizer {error}, or one of {', '.join(FILES)}") from error
    elif own is not None:
        tokenizer = own
    elif checkpoint is not None:
        raise BadDataError(f"{checkpoint} has no vocabulary ({', '.join(FILES)}); --data.tokenizer names one")
    else:
        tokenizer = word_tokenizer(words())
    if len(tokenizer) > model.vocabulary:
        raise WrongUseError(
            f"model.vocabulary {model.vocabulary:,} is below the {len(tokenizer):,} tokens of {tokenizer.source}"
        )
    if named is None or checkpoint is None:
        return tokenizer, None
    return tokenizer, _difference(tokenizer, own, model, checkpoint)


def _vocabulary_of(checkpoint: str) -> Tokenizer | None:
    where = folder_of(checkpoint)
    has_one = any((where / name).exists() for name in FILES)
    return load_tokenizer(where) if has_one else None


def _difference(named: Tokenizer, own: Tokenizer | None, model: BertConfig, checkpoint: str) -> str | None:
    """Returns a warning with the differences between a vocabulary and a checkpoint's, or None.

    Raises:
        WrongUseError: a token of both has another id, so that it would get another token's embedding.
    """
    if own is None:
        if len(named) == model.vocabulary:
            return None
        return f"{named.source} has {len(named):,} tokens, the checkpoint {model.vocabulary:,}; do they match?"
    mine, theirs = named.numbers, own.numbers
    moved = sorted(token for token in mine.keys() & theirs.keys() if mine[token] != theirs[token])
    if moved:
        first = moved[0]
        raise WrongUseError(
            f"--data.tokenizer {named.source} is not the vocabulary of {checkpoint}: {len(moved):,} tokens have other "
            f"ids, such as {first!r}, {mine[first]:,} here and {theirs[first]:,} there; leave --data.tokenizer out"
        )
    if mine.keys() == theirs.keys():
        return None
    more, missing = len(mine.keys() - theirs.keys()), len(theirs.keys() - mine.keys())
    return f"{named.source} has {more:,} tokens that are not in the vocabulary of {checkpoint}, and lacks {missing:,}"


def is_typed(name: str, typed: Collection[str]) -> bool:
    """Returns whether a field of the model, or one inside it, was set on the command line."""
    return any(path == f"model.{name}" or path.startswith(f"model.{name}.") for path in typed)
