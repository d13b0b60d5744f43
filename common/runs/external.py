"""Attention variants and norms that users define outside this project: ``my_attention.py:MyAttention``.

A file is imported as a module named like the file. The name of its class in tables and in the JSON of runs is
``my_attention:MyAttention``: the same wherever the file is.
"""

import argparse
import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import torch

from seqarena.common.errors import WrongUseError, nearest, short_list
from seqarena.common.runs.config import is_external
from seqarena.common.training.runtime import changed_settings, torch_settings

Config = TypeVar("Config")
MODULES = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.init")
"""Modules whose functions and methods a user's code must not replace."""
PREFIXES = ("torch.nn.modules.", "torch.optim.", "seqarena.")
"""The first part of the names of further such modules."""
METHODS = (FunctionType, classmethod, staticmethod, property)
"""Types of the entries of a class that are code."""


def is_reference(name: str) -> bool:
    """Returns whether a name is that of a class in a file or module, not that of an entry in a table."""
    return ":" in name


def require_class(name: str, option: str) -> None:
    """Raises a ``WrongUseError`` if a name is that of a file or module, or has a point where a colon is expected."""
    module, _, last = name.rpartition(".")
    if not module or not name.replace(".", "").isidentifier():
        return
    example = f"{name}:{'MyNorm' if option == 'norm' else 'MyAttention'}" if last == "py" else f"{module}:{last}"
    raise WrongUseError(f"{option} {name}: expected FILE.py:CLASS or PACKAGE.MODULE:CLASS, as in {example}")


def load_external(reference: str, kind: type[Config], option: str) -> Config:
    """Returns a config with its defaults, of a class in the user's file or installed module.

    Args:
        reference: ``path/my_attention.py:MyAttention`` or ``my_package.module:MyAttention``.
        kind: Class of which it must be a subclass.
        option: What is chosen, for messages: attention or norm.

    Raises:
        WrongUseError: no such file or class, code that cannot be imported, or a class that is no config.
    """
    target, _, name = reference.rpartition(":")
    if not target or not name.isidentifier():
        raise WrongUseError(f"{option} {reference}: expected FILE.py:CLASS or PACKAGE.MODULE:CLASS")
    module = _module(target, reference)
    found: Any = getattr(module, name, None)
    defined = [
        each.__name__
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, kind) and each.__module__ == module.__name__
    ]
    if found is None:
        known = nearest(name, defined) or f"it defines {', '.join(defined) or f'no {kind.__name__}'}"
        raise WrongUseError(f"{option} {reference}: {target} has no class {name!r}; {known}")
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise WrongUseError(f"{option} {reference}: expected a subclass of {kind.__name__}; see docs/adding.md")
    chosen: Any = found
    if "__dataclass_fields__" not in vars(chosen) or not chosen.__dataclass_params__.frozen:
        raise WrongUseError(
            f"{option} {reference}: expected a frozen dataclass; write @dataclass(frozen=True, kw_only=True) above it"
        )
    needed = [each.name for each in fields(chosen) if each.default is each.default_factory is MISSING]
    if needed:
        raise WrongUseError(f"{option} {reference}: expected a default for each field; {', '.join(needed)} has none")
    try:
        config: Config = chosen()
    except TypeError as error:  # an abstract method is not defined
        raise WrongUseError(f"{option} {reference}: {error}; see docs/adding.md") from error
    return config


def external_modules(value: Any) -> set[str]:
    """Returns the modules of all configs of external classes in a config."""
    if not is_dataclass(value):
        return set()
    inner = {each for field in fields(value) for each in external_modules(getattr(value, field.name))}
    return inner | {type(value).__module__} if is_external(type(value)) else inner


def location_of(module: str) -> str:
    """Returns the text by which ``import_code`` imports a loaded module in another process: its file, or its name."""
    path = Path(str(sys.modules[module].__file__)).resolve()
    return str(path) if path.stem == module else module


def add_code_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names the code of external variants, for commands that read runs."""
    parser.add_argument(
        "--code", action="append", default=[], metavar="FILE",
        help="code of an attention or norm of the run that is not part of seqarena: FILE.py or PACKAGE.MODULE",
    )  # fmt: skip


def import_code(locations: Iterable[str]) -> None:
    """Imports files and modules that define variants or norms.

    Raises:
        WrongUseError: no such file or module, or importing it failed.
    """
    for each in locations:
        _module(each, each)


def _module(target: str, reference: str) -> ModuleType:
    return _import_file(Path(target), reference) if target.endswith(".py") else _import_module(target, reference)


def _import_file(path: Path, reference: str) -> ModuleType:
    """Imports a file as a module named like it. Its folder is added to the end of the search path."""
    if not path.is_file():
        raise WrongUseError(f"{reference}: {path} does not exist; expected FILE.py:CLASS or PACKAGE.MODULE:CLASS")
    name, path = path.stem, path.resolve()
    if not name.isidentifier():
        raise WrongUseError(f"{reference}: {name!r} cannot be the name of a module; rename the file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for the other files that it imports, here and in worker processes
    importlib.invalidate_caches()
    _require_found(name, path, reference)
    _require_own_imports(path, reference)
    return _import(name, reference)


def _require_found(name: str, path: Path, reference: str) -> None:
    """Raises a ``WrongUseError`` if Python has loaded another module of this name than the file, or finds one first."""
    loaded = sys.modules.get(name)
    origin = importlib.util.find_spec(name).origin if loaded is None else getattr(loaded, "__file__", None)  # type: ignore[union-attr]
    if origin is None or Path(origin).resolve() != path:
        raise WrongUseError(
            f"{reference}: Python finds another module named {name}, {origin or 'without a file'}, before {path}; "
            "rename one of them"
        )


def _require_own_imports(path: Path, reference: str) -> None:
    """Raises a ``WrongUseError`` if a file imports a name for which Python does not find the file beside it."""
    waiting, seen = [path], {path}
    while waiting:
        try:
            nodes = list(ast.walk(ast.parse(waiting.pop().read_bytes())))
        except (SyntaxError, ValueError):
            continue  # its import fails and says where
        modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        modules += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        for name in dict.fromkeys(module.partition(".")[0] for module in modules):
            beside = (path.with_name(f"{name}.py"), path.parent / name / "__init__.py")
            own = next((each.resolve() for each in beside if each.is_file()), None)
            if own is not None and own not in seen:
                _require_found(name, own, reference)
                seen.add(own)
                waiting.append(own)


def _import_module(name: str, reference: str) -> ModuleType:
    """Imports a module that is installed, or below the current folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return _import(name, reference)


def _import(name: str, reference: str) -> ModuleType:
    before, functions = torch_settings(), _functions()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        what = f"no module {error.name}"
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise WrongUseError(f"{reference}: {what}; expected FILE.py:CLASS or PACKAGE.MODULE:CLASS") from error
        raise WrongUseError(f"{reference}: it imports {error.name}, which is not installed") from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises when it is imported
        raise WrongUseError(f"{reference}: importing it failed ({_reason(error)})") from error
    changes = changed_settings(before)
    if changes:
        raise WrongUseError(
            f"{reference}: importing it changes {changes}, which would change the numbers of other runs of "
            "this command too; remove that line, and cast inside the kernel"
        )
    after = _functions()
    replaced = [name for name, function in functions.items() if not _is_kept(function, after.get(name))]
    if replaced:
        raise WrongUseError(
            f"{reference}: importing it replaces {short_list(replaced)}, which would change the numbers of other runs "
            "of this command too; remove that line, or define a function or class of your own"
        )
    return module


def _functions() -> Mapping[str, Any]:
    """Returns the functions and classes of torch and of this project with their methods, and torch's hooks, by name."""
    found: dict[str, Any] = {
        f"torch.Tensor.{name}": value for name in dir(torch.Tensor) if callable(value := getattr(torch.Tensor, name))
    }
    for module_name, module in list(sys.modules.items()):
        if module is not None and (module_name in MODULES or module_name.startswith(PREFIXES)):
            for name, value in vars(module).items():
                if callable(value):
                    found[f"{module_name}.{name}"] = value
                elif name.startswith("_global_") and isinstance(value, dict):
                    found[f"{module_name}.{name}"] = tuple(value)
                if isinstance(value, type) and value.__module__ == module_name:
                    found |= {f"{module_name}.{name}.{each}": method for each, method in vars(value).items()
                              if isinstance(method, METHODS)}  # fmt: skip
    return found


def _is_kept(before: Any, after: Any) -> bool:
    """Returns whether a function is the same as before, or torch itself replaced it, as the first compilation does."""
    definer = after.__globals__.get("__name__", "") if isinstance(after, FunctionType) else ""
    return bool(after == before) or definer.startswith("torch.")


def _reason(error: BaseException) -> str:
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if line is None and trace.tb_next is None:
            line = trace.tb_lineno
        trace = trace.tb_next
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}, line {line}"
