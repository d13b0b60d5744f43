"""Fields of a run set by their paths, as a command line writes them: ``--optim.lr 3e-4``."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from seqarena.common.attention import ATTENTIONS, find_attention
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.errors import WrongUseError, nearest
from seqarena.common.model.norms import NORMS
from seqarena.common.runs.config import field_paths
from seqarena.common.runs.roles import Role, role_at
from seqarena.common.runs.run import BaseRun

BY_NAME = ("attention", "norm", "preset")
"""Options that choose something by its name; suggested to whoever mistypes one."""
NO_FIELDS = ("task", "preset", "seed")
"""Fields of a Run that have options of their own."""
ON, OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

Config = TypeVar("Config")


def set_fields(run: BaseRun, arguments: Sequence[str], prog: str) -> BaseRun:
    """Returns the run with the fields that ``--path value`` arguments name set, in their order.

    ``none`` is a value of fields that may have none. A field that is on or off takes ``--path``, ``--path value`` or
    ``--no-path`` (with the ``no-`` before the path's last word).

    Raises:
        WrongUseError: no such field, or a value of another type; names the argument and what was expected.
    """
    if arguments and not arguments[0].startswith("--"):
        raise WrongUseError(f"unexpected {arguments[0]!r}; fields are set as --path value; see {prog} --help")
    chosen = attention_fields(run)
    # A variant is chosen before the fields that only it has, wherever it stands in the line.
    for group in sorted(groups(arguments), key=lambda group: split(group)[0] not in chosen):
        path, values = split(group)
        run = _set(run, path, values, Argument(run=run, text=" ".join(group), prog=prog))
    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument with its values, for messages."""

    run: BaseRun
    text: str
    prog: str

    def unknown(self) -> WrongUseError:
        """Returns the error for a field that the run does not have."""
        flag = spelled(split([self.text.split(" ", 1)[0]])[0])
        return WrongUseError(f"unknown field --{flag}; {_hint(flag, self.run, is_sweep=self.prog.endswith(' sweep'))}")

    def expected(self, what: str) -> WrongUseError:
        """Returns the error for a value of another type than ``what``."""
        return WrongUseError(f"{self.text}: expected {what}; see {self.prog} --help")


def groups(arguments: Sequence[str]) -> list[list[str]]:
    """Returns the arguments, each field's name with the values that follow it."""
    found: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            found.append([argument])
        else:
            found[-1].append(argument)
    return found


def split(group: Sequence[str]) -> tuple[str, list[str]]:
    """Returns a field's path as Python spells it, and the values after it or after its ``=``."""
    name, *value = group[0].removeprefix("--").split("=", 1)
    return name.replace("-", "_"), [*value, *group[1:]]


def spelled(path: str) -> str:
    """Returns a field's path as the command line spells it."""
    return path.replace("_", "-")


def attention_fields(run: BaseRun) -> list[str]:
    """Returns the paths of the attentions that are chosen by ``--model.FIELD NAME``: all but that of --attention."""
    names = (field.name for field in dataclasses.fields(run.model))
    return [
        f"model.{name}"
        for name in names
        if name != "attention" and isinstance(getattr(run.model, name), AttentionConfig)
    ]


def _set(run: BaseRun, path: str, values: Sequence[str], argument: Argument) -> BaseRun:
    if path.split(".", maxsplit=1)[0] in NO_FIELDS:
        raise argument.unknown()
    if path in attention_fields(run):
        if len(values) != 1:
            raise WrongUseError(f"{argument.text}: expected the name of one attention variant")
        return _replaced(run, path.split("."), lambda _hint, _old: find_attention(values[0]), argument)
    *outer, last = path.split(".")
    if last.startswith("no_") and not values and path not in field_paths(run):
        return _replaced(run, [*outer, last.removeprefix("no_")], _off(argument), argument)
    return _replaced(run, [*outer, last], lambda hint, old: _value(hint, old, values, argument), argument)


def _off(argument: Argument) -> Callable[[Any, Any], bool]:
    def switched(hint: Any, _old: Any) -> bool:
        if hint is not bool:
            raise argument.unknown()
        return False

    return switched


def _replaced(config: Config, path: Sequence[str], value: Callable[[Any, Any], Any], argument: Argument) -> Config:
    """Returns the config with one field changed; ``value`` gets the field's annotation and what it held."""
    name, *inner = path
    if not dataclasses.is_dataclass(config) or name not in {field.name for field in dataclasses.fields(config)}:
        raise argument.unknown()
    old = getattr(config, name)
    new = _replaced(old, inner, value, argument) if inner else value(typing.get_type_hints(type(config))[name], old)
    try:
        changed: Any = dataclasses.replace(config, **{name: new})  # type: ignore[type-var]
    except WrongUseError as error:  # of the config alone, which does not know where in the run it is
        raise WrongUseError(f"{argument.text}: {str(error).removeprefix(f'{name}: ')}") from error
    return changed  # type: ignore[no-any-return]


def _value(hint: Any, old: Any, values: Sequence[str], argument: Argument) -> Any:
    if dataclasses.is_dataclass(old):
        raise argument.unknown()
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if len(values) == 1 and values[0].lower() == "none":
            return None
        hint = next(each for each in inner if each is not type(None))
        return _value(hint, old, values, argument)
    if origin is tuple:
        kinds = [inner[0]] * len(values) if inner[1:] == (...,) else list(inner)
        if len(values) != len(kinds):
            raise argument.expected(f"{len(kinds)} values")
        return tuple(_one(kind, value, argument) for kind, value in zip(kinds, values, strict=True))
    if hint is bool and not values:
        return True
    if len(values) != 1:
        raise argument.expected(f"one value, {_kind(hint)}")
    return _one(hint, values[0], argument)


def _one(hint: Any, text: str, argument: Argument) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        choices: Mapping[str, Any] = {str(each): each for each in typing.get_args(hint)}
        if text not in choices:
            near = nearest(text, choices)
            raise argument.expected(f"one of {', '.join(choices)}{f' ({near})' if near else ''}")
        return choices[text]
    if hint is bool:
        if text.lower() not in ON + OFF:
            raise argument.expected(_kind(hint))
        return text.lower() in ON
    try:
        return hint(text)
    except ValueError as error:
        raise argument.expected(_kind(hint)) from error


def _kind(hint: Any) -> str:
    kinds: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return kinds.get(hint) or f"one of {', '.join(map(str, typing.get_args(hint)))}"


def _hint(flag: str, run: BaseRun, *, is_sweep: bool) -> str:
    if (name := flag.removeprefix("model.")) in ("attention", "norm"):
        return f"a whole variant is chosen by --{name}, in Python by {name}=NAME"
    if flag == "seed":
        return "a single run takes --seed, a sweep --seeds"
    if flag == "data.path" and (files := _files(run)):
        return f"the files of {run.task} are named by {', '.join(f'--{path}' for path in files)}"
    if owner := _owner(flag, run):
        return owner
    known = [spelled(path) for path in field_paths(run) if path not in NO_FIELDS]
    inner = [path for path in known if path.startswith(f"{flag}.")]
    if inner:
        return f"it is a group of fields: {', '.join(f'--{path}' for path in inner)}"
    known += map(spelled, attention_fields(run))
    named = [path for path in known if path.rpartition(".")[2] == flag]
    options = (*BY_NAME, "seeds" if is_sweep else "seed")
    return nearest(f"--{flag}", [f"--{path}" for path in named or (*options, *known)]) or "see --help for the fields"


def _files(run: BaseRun) -> list[str]:
    """Returns the fields of a run that name files of data, as the command line spells them."""
    return [spelled(path) for path in field_paths(run) if role_at(run, path) in (Role.LOCATION, Role.OWN_FILE)]


def _owner(flag: str, run: BaseRun) -> str:
    """Returns which other variants or norms have a field, and how they are chosen; empty if none has."""
    parent, _, name = flag.replace("-", "_").rpartition(".")
    tables: dict[str, tuple[str, Mapping[str, Any]]] = {
        "model.attention": ("attention", ATTENTIONS),
        "model.norm": ("norm", NORMS),
        **{path: (spelled(path), ATTENTIONS) for path in attention_fields(run)},
    }
    option, table = tables.get(parent, ("", {}))
    owners = [each for each, config in table.items() if name in {field.name for field in dataclasses.fields(config)}]
    if not owners:
        return ""
    further = f" and {len(owners) - 3} more" if len(owners) > 3 else ""
    return f"{spelled(name)} is a field of {', '.join(owners[:3])}{further}; add --{option} {owners[0]}"
