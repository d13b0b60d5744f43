"""Help texts: the tasks and variants of a package, and a task's preset with every field of its run."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seqarena.common.attention import ALIASES, ATTENTIONS, attention_name
from seqarena.common.model.norms import NORMS
from seqarena.common.parser import Parser
from seqarena.common.runs.fields import NO_FIELDS, attention_fields, spelled
from seqarena.common.runs.package import Package
from seqarena.common.runs.run import BaseRun, Preset
from seqarena.common.runs.tasks import Task

OFTEN = ("train.steps", "train.batch_size", "train.diagnostics", "optim.lr", "optim.schedule.warmup", "model.layers",
         "model.dim", "model.heads", "model.dropout")  # fmt: skip
"""Fields that a task's help lists first."""
GROUPS = ("data", "train", "optim", "model")
"""Order of the groups of fields in a task's help; others, such as quirks of published code, are the last."""


def describe(package: Package, prog: str) -> str:
    """Returns a package's tasks with the names of their presets, its variants, norms and other commands."""
    lines = [f"{package.title}\n\ntasks and their presets:"]
    width = max(14, *map(len, package.tasks))
    for task in package.tasks.values():
        presets = package.presets[task.name].items()
        lines.append(f"  {task.name:<{width}} {task.title}")
        lines.append(f"  {'':<{width}} presets: {', '.join(f'{name}{_chosen_by(preset)}' for name, preset in presets)}")
    lines.append("\nvariants (--attention); s_ij: scaled score of query i and key j; pi_ij: weight; N: number of keys")
    lines.append(_summaries(ATTENTIONS, {target: alias for alias, target in ALIASES.items()}))
    lines += ["\nnorms (--norm):", _summaries(NORMS, {})]
    if package.commands:
        lines += ["\nother commands:", *(f"  {prog} {name} --help" for name in package.commands)]
    return "\n".join([*lines, f"\n{prog} TASK --help shows the task's presets, and every field with its default."])


def _chosen_by(preset: Preset[BaseRun]) -> str:
    return "" if preset.chosen_by is None else f" (the default if --{spelled(preset.chosen_by)} is set)"


def _summaries(table: Mapping[str, Any], aliases: Mapping[str, str]) -> str:
    """Returns a table of configs, one line each: name and summary.

    A class with several entries has a property ``formula``, which tells them apart.
    """
    lines = []
    for name, config in table.items():
        alias = f" (also: {aliases[name]})" if name in aliases else ""
        lines.append(f"  {name:<14} {summary(config)}{alias}")
    return "\n".join(lines)


def summary(config: Any) -> str:
    """Returns the formula of a variant or norm, or the first line of its class's docstring."""
    return str(getattr(config, "formula", (type(config).__doc__ or "").split("\n")[0].rstrip(".")))


def provenance(task: Task, preset: Preset[BaseRun]) -> str:
    """Returns a preset's cost and expected score, and the sources of its settings and of the task's data."""
    lines = {"cost": preset.cost, "expected": preset.expected, "settings": preset.source}
    if preset.departures:
        lines["departs"] = preset.departures
    lines |= (
        {"data": f"{task.source}; {task.revision}; licence: {task.licence}", "splits": task.splits}
        if preset.data is None
        else {"data": preset.data}
    )
    return "\n".join(f"  {name + ':':<10} {text}" for name, text in lines.items())


def describe_task(task: Task, presets: Mapping[str, Preset[BaseRun]], preset: str) -> str:
    """Returns a task's title, a preset's provenance, and the other presets, one line each."""
    lines = [f"{task.package} {task.name}: {task.title}\n\npreset {preset}:\n{provenance(task, presets[preset])}"]
    others = [(name, each) for name, each in presets.items() if name != preset]
    lines += ["\nother presets:"] * bool(others)
    lines += [f"  {name:<16} {each.source}{_chosen_by(each)}" for name, each in others]
    return "\n".join(lines)


def add_fields(parser: Parser, run: BaseRun, preset: str) -> None:
    """Adds every field of a run to a parser, for its help: those that are often set first, the others in groups."""
    found = {field.path: field for field in list_fields(run) if field.path.split(".")[0] not in NO_FIELDS}
    groups = {f"fields that are often set (--FIELD VALUE; default: the value of preset {preset})": [
        found.pop(path) for path in OFTEN if path in found
    ]}  # fmt: skip
    for field in sorted(found.values(), key=lambda field: _rank(field.path)):
        groups.setdefault(field.path.rpartition(".")[0], []).append(field)
    for title, fields in groups.items():
        group = parser.add_argument_group(title)
        for field in fields:
            text = f"{field.sentence} (default: {_shown(field.value)})"
            group.add_argument(f"--{spelled(field.path)}", metavar=field.metavar, help=text.replace("%", "%%"))


def _rank(path: str) -> tuple[int, str]:
    group = path.rpartition(".")[0]
    top = group.split(".")[0]
    return GROUPS.index(top) if top in GROUPS else len(GROUPS), group


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value)) or "empty"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class FieldHelp:
    """A field of a run, for help texts."""

    path: str
    """Dotted path."""
    metavar: str
    """The values that it takes, such as ``INT or none``."""
    sentence: str
    """The docstring of the field."""
    value: Any
    """Its value in the run."""


def list_fields(run: BaseRun) -> list[FieldHelp]:
    """Returns every field of a run that can be set by its path, in the order of declaration."""
    chosen = [
        FieldHelp(path=path, metavar="VARIANT", sentence="Attention variant, chosen by its name as with --attention.",
                  value=attention_name(getattr(run.model, path.removeprefix("model."))))
        for path in attention_fields(run)
    ]  # fmt: skip
    return [*_fields_of(run, ""), *chosen]


def _fields_of(config: Any, path: str) -> Iterator[FieldHelp]:
    kind: type = type(config)
    hints, sentences = typing.get_type_hints(kind), _sentences(kind)
    for field in dataclasses.fields(config):
        value, inner = getattr(config, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _fields_of(value, f"{inner}.")
        else:
            yield FieldHelp(
                path=inner, metavar=metavar(hints[field.name]), sentence=sentences.get(field.name, ""), value=value
            )


def metavar(hint: Any) -> str:
    """Returns the values of an annotation, as help texts show them: ``INT or none``, ``NUMBER NUMBER``, ``a|b``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(metavar(each) for each in inner if each is not type(None)) + " or none"
    if origin is typing.Literal:
        return "|".join(map(str, inner))
    if origin is tuple:
        return f"{metavar(inner[0])} ..." if inner[1:] == (...,) else " ".join(map(metavar, inner))
    return {int: "INT", float: "NUMBER", bool: "true|false", str: "TEXT"}[hint]


@functools.cache
def _sentences(kind: type) -> Mapping[str, str]:
    """Returns field -> docstring of a dataclass and its bases."""
    found: dict[str, str] = {}
    for each in (base for base in reversed(kind.__mro__) if dataclasses.is_dataclass(base)):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for field, after in itertools.pairwise(tree.body if isinstance(tree, ast.ClassDef) else []):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant):
                    found[field.target.id] = " ".join(str(text.value).replace("``", "").split())
    return found
