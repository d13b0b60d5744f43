"""Source files that a run's numbers depend on, each identified by a hash that ignores comments and layout.

These are the files of the run's package, model, attention and norm, and everything that they import from the project.
Modules that no number depends on are left out, so that editing them invalidates no result: see ``LEFT_OUT``.
"""

import ast
import functools
import hashlib
import importlib.util
import json
import marshal
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from seqarena import common
from seqarena.common.attention import ATTENTIONS, AttentionConfig
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS, NormConfig

Sources = Mapping[str, str]
"""Path of a file, relative to the project's folder -> 12 hex digits."""

LIBRARIES = frozenset({"site-packages", "dist-packages"})
"""Names of folders of installed libraries."""
STANDARD_LIBRARY = frozenset(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
PROJECT = "seqarena"
TREE = Path(__file__).resolve().parents[2]
"""Folder of the packages. In a checkout this is its root, the target of the links in ``seqarena/``."""
STARTED = common.STARTED
"""Start time of the process. Files changed later may differ from the code that was imported."""
LEFT_OUT = (
    "common.attention", "common.model.norms",  # the tables of variants and norms: a run holds its own values itself
    "common.model.attention_maps",  # heat maps, drawn after the test
    "common.errors", "common.runs.cli", "common.runs.external", "common.runs.named",  # messages and names
    "common.memory", "common.parser", "common.runs.fields", "common.runs.folder", "common.runs.inputs",
    "common.runs.package", "common.runs.results", "common.runs.roles", "common.runs.run", "common.runs.sources",
    "common.runs.tasks", "common.seal",
    # the command line, metadata and file handling
)  # fmt: skip
"""Modules of the project that no number depends on. Adding a variant to its table invalidates no result."""
TABLES: Mapping[str, Collection[Any]] = {"common.attention": ATTENTIONS.values(), "common.model.norms": NORMS.values()}
"""Module of a table, by which code outside the project may use any variant or norm -> its values."""
IMPORTERS = ("import_module", "__import__")
"""Functions that import the module named by a literal, their argument ``name``."""
_later: dict[str, tuple[Path, str]] = {}
"""Module that was not imported when its hash was taken -> its file and this hash."""
RECORDS = ("tasks", "presets")
"""Modules of each task package that no number depends on: a run holds the values of its preset itself."""


def sources_of(assemble: Callable[..., Any], run: Any) -> Sources:
    """Returns the sources of a run: all files that ``assemble``, the session and the run's own configs import.

    Attention variants and norms that the run does not use are not among them.

    Raises:
        WrongUseError: a file was changed after this process began, so that its running version is unknown; or a
            config is defined in a module that is left out, or that has no file.
    """
    configs = _configs(run)
    for kind in map(type, configs):
        reason = "whose edits are ignored in the version of a run" if _is_left_out(kind.__module__) else ""
        if not reason and _file(kind.__module__, frozenset([_top(kind.__module__)])) is None:
            reason = "which has no file whose edits could be noticed"
        if reason:
            raise WrongUseError(
                f"{kind.__name__} is defined in {kind.__module__}, {reason}; define it in a file of its own"
            )
    return _of_configs(configs, {assemble.__module__, "seqarena.common.runs.session"})


def read_again() -> None:
    """Makes the next run of this process read the sources again, so that one that was edited meanwhile is refused."""
    for each in (_read, _file, _closure):
        each.cache_clear()


def check_later_imports() -> None:
    """Raises a ``WrongUseError`` if a source was edited after its hash was taken and before Python imported it."""
    for name in [each for each in _later if each in sys.modules]:
        path, known = _later.pop(name)  # what is loaded now cannot change any more
        if not path.exists() or _parsed(path)[0] != known:
            raise WrongUseError(
                f"{_shown(path)} was changed while this run was beginning, before Python imported it; start the "
                "command again"
            )


def model_sources(run: Any) -> Sources:
    """Returns the sources of a run's model, with its attention and norm."""
    return _of_configs(_configs(run.model), set())


def _of_configs(configs: Sequence[Any], more: Set[str]) -> Sources:
    """Returns the sources of configs and of further modules."""
    variants = {type(each).__module__ for each in configs if isinstance(each, AttentionConfig | NormConfig)}
    others = {type(each).__module__ for each in configs} - variants
    return _closure(frozenset(others | more), frozenset(variants))


def imported_by(module: str, without: Iterable[str] = ()) -> Sources:
    """Returns the sources of a module and of all that it imports from the project, except through ``without``."""
    return _closure(frozenset([module]), frozenset(), frozenset(without))


def digest(sources: Sources) -> str:
    """Returns 8 hex digits that change whenever a source changes."""
    return hashlib.sha256(json.dumps(dict(sources), sort_keys=True).encode()).hexdigest()[:8]


def changed_sources(before: Sources, after: Sources) -> list[str]:
    """Returns the files that differ, in order."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _configs(value: Any) -> list[Any]:
    """Returns a config and all configs in it."""
    inner = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return [value] * is_dataclass(value) + [each for one in inner for each in _configs(one)]


@functools.cache
def _closure(roots: frozenset[str], variants: frozenset[str], without: frozenset[str] = frozenset()) -> Sources:
    others = {type(each).__module__ for each in (*ATTENTIONS.values(), *NORMS.values())}
    for table, values in TABLES.items():
        if _is_imported(table, variants):  # by a variant outside the project, which may use any of its values
            variants |= {type(each).__module__ for each in values}
    # Others count only if the run's own ones import them, as hnas imports dnas and softmax.
    found = _reached(roots, without=others | without) | _reached(variants, without=set())
    return {shown: _read(path)[0] for shown, path in sorted(found.items())}


def _is_imported(table: str, variants: Iterable[str]) -> bool:
    """Returns whether code outside the project that these variants import names a table of variants or norms."""
    outside = [path for shown, path in _reached(variants, without=set()).items() if "/" not in shown]
    return any(f"{PROJECT}.{table}" in _read(path)[1] for path in outside)


def _reached(roots: Iterable[str], without: Collection[str]) -> dict[str, Path]:
    """Returns the files of modules and of all that they import from the project or from the package of a root.

    The keys do not depend on the folders of this machine.
    """
    waiting, found = [*roots], dict[str, Path]()
    own = frozenset(map(_top, waiting))
    seen = set(without)
    while waiting:
        name = waiting.pop()
        path = None if name in seen or _is_left_out(name) else _file(name, own)
        seen.add(name)
        if path is not None:
            found[name] = path
            if name not in sys.modules:
                _later[name] = path, _read(path)[0]
            waiting += [_absolute(name, path, each) for each in _read(path)[1]]
            waiting += [name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)]
    return {_portable(name, path): path for name, path in found.items()}


def _is_left_out(module: str) -> bool:
    project, _, name = module.partition(".")
    package, _, last = name.partition(".")
    return project == PROJECT and (name in LEFT_OUT or (last in RECORDS and (TREE / package).is_dir()))


def _top(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def _file(name: str, own: frozenset[str]) -> Path | None:
    """Returns the file of a module of the project, of the user or of the packages ``own``; None for other libraries.

    For a module that is not loaded yet, as when a function imports it, this is the file that an import would find.
    """
    loaded, is_own = _loaded(name), _top(name) in own
    if _top(name) == PROJECT:
        inside = name.partition(".")[2]
        return (loaded.resolve() if loaded is not None else _below(TREE, inside)) if inside else None
    path = _imported_from(name) if loaded is None else loaded
    return path if path is not None and (is_own or _is_ours(path)) else None


def _below(folder: Path, name: str) -> Path | None:
    path = folder.joinpath(*name.split("."))
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.exists()), None)


def _imported_from(name: str) -> Path | None:
    """Returns the file that an import of a module would find, without importing it or the packages around it.

    It may be a source file, compiled code or an extension module, also of a package that is installed as editable.
    """
    parts, folders, origin = name.split("."), None, None
    for count in range(1, len(parts) + 1) if all(parts) else ():
        part = ".".join(parts[:count])
        # Each finder of this process is asked, as the import system does, for one of them knows editable packages.
        asked = (each.find_spec(part, folders) for each in sys.meta_path if hasattr(each, "find_spec"))
        found = next((each for each in asked if each is not None), None)
        if found is None or (count < len(parts) and found.submodule_search_locations is None):
            return None
        folders, origin = found.submodule_search_locations, found.origin if found.has_location else None
    return Path(origin).absolute() if origin is not None and Path(origin).exists() else None


def _loaded(name: str) -> Path | None:
    """Returns the file that a module was loaded from; None without one, as in a notebook."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file is not None and Path(file).exists() else None


def _is_ours(path: Path) -> bool:
    return LIBRARIES.isdisjoint(path.parts) and not any(map(path.is_relative_to, STANDARD_LIBRARY))


def _portable(name: str, path: Path) -> str:
    """Returns the path of a project's file, and the name of any other module, whose folder differs by machine."""
    return _shown(path) if _top(name) == PROJECT else f"{name}{path.suffix}"


def _shown(path: Path) -> str:
    return str(path.relative_to(TREE)) if path.is_relative_to(TREE) else str(path)


@functools.cache
def _read(path: Path) -> tuple[str, frozenset[str]]:
    """Returns a file's hash and the names of its imports. Cached per process, since modules are imported once."""
    status = path.stat()
    # ``cp -p`` and archives set the time of change of the content, but not that of the status.
    if any(STARTED < changed <= time.time() for changed in (status.st_mtime, status.st_ctime)):
        raise WrongUseError(f"{_shown(path)} was changed after this process began; start the command again")
    if path.suffix == ".py":
        _require_not_stale(path)
    return _parsed(path)


def _parsed(path: Path) -> tuple[str, frozenset[str]]:
    """Returns the hash of a file's content, and the names of its imports, with leading dots if relative.

    Of compiled code and extension modules, the hash is that of all bytes, and the imports are unknown.
    """
    content = path.read_bytes()
    if path.suffix != ".py":
        return hashlib.sha256(content).hexdigest()[:12], frozenset()
    try:
        return _parsed_code(content)
    except (SyntaxError, ValueError) as error:  # of a file that Python has not imported yet
        raise WrongUseError(f"{_shown(path)} cannot be imported: {error}") from error


@functools.cache
def _parsed_code(content: bytes) -> tuple[str, frozenset[str]]:
    """Returns the hash of Python source code, and the names of its imports."""
    tree = ast.parse(content)
    names: set[str] = set()
    nodes = list(ast.walk(tree))
    imported = [each for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names]
    importers = {*IMPORTERS, *(each.asname for each in imported if each.name in IMPORTERS and each.asname)}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            module, dots = [node.module] if node.module else [], "." * node.level
            names |= {dots + ".".join([*module, *last]) for last in ([], *([each.name] for each in node.names))}
        elif isinstance(node, ast.Call) and _last_name(node.func) in importers:
            given = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "name")]
            names |= {str(each.value) for each in given if isinstance(each, ast.Constant)}
    return hashlib.sha256(repr(_plain(tree)).encode()).hexdigest()[:12], frozenset(names)


def _require_not_stale(path: Path) -> None:
    """Raises a ``WrongUseError`` if Python ran compiled code of an earlier text of a file.

    Python compares only size and whole seconds of the time of change. So it misses an edit of the same size in the
    second of the compilation, and one whose time of change was set back, as by ``cp -p``. Compiled code with a hash
    that is not checked (``compileall --invalidation-mode unchecked-hash``) is used whatever the file says.
    """
    compiled, source = Path(importlib.util.cache_from_source(str(path))), path.stat()
    if not compiled.exists():
        return
    content = compiled.read_bytes()
    expected = int(source.st_mtime).to_bytes(4, "little") + (source.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    is_dated = content[4:16] == bytes(4) + expected
    is_unchecked = content[4:8] == b"\x01\0\0\0"
    if content[:4] != importlib.util.MAGIC_NUMBER or not (is_dated or is_unchecked):  # then Python does not use it
        return
    if marshal.loads(content[16:]) != compile(path.read_bytes(), path, "exec", dont_inherit=True):
        compiled.unlink()
        raise WrongUseError(f"{_shown(path)}: Python ran an outdated compiled version; start the command again")


def _absolute(importer: str, path: Path, name: str) -> str:
    """Returns the absolute name of a module that its importer names with leading dots."""
    plain = name.lstrip(".")
    dots = len(name) - len(plain)
    package = importer.split(".")[: None if path.name == "__init__.py" else -1]
    return ".".join([*package[: len(package) - dots + 1], *filter(None, [plain])]) if dots else plain


def _last_name(function: ast.expr) -> str:
    """Returns the name of a called function, or the last part of it after a point; empty for other expressions."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _plain(node: Any) -> Any:
    """Returns a syntax tree as plain values, without docstrings and empty fields, equal in every version of Python."""
    if isinstance(node, list):
        return [_plain(each) for each in node if not _is_docstring(each)]
    if not isinstance(node, ast.AST):
        return repr(node)
    named = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
    return type(node).__name__, [(name, _plain(value)) for name, value in named if value is not None and value != []]


def _is_docstring(node: Any) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text and isinstance(node.value.value, str)
