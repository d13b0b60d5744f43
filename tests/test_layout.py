"""The rules of the house that a machine can see."""

import ast
import dataclasses
import itertools
import re
import subprocess
from pathlib import Path

import pytest

from seqarena.common.attention import ATTENTIONS
from seqarena.common.model.norms import NORMS
from seqarena.scripts.packages import PACKAGES, find_package

ROOT = Path(__file__).parent.parent
FILES = sorted(path for top in ("common", *PACKAGES, "scripts", "tests") for path in (ROOT / top).rglob("*.py"))
SOURCES = [path for path in FILES if "tests" not in path.parts]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """scripts -> task packages -> common; no task package imports another."""
    home = path.relative_to(ROOT).parts[0]
    names = [name.split(".") for name in imports(path)]
    tops = {name[0] for name in names}
    assert not tops & {"common", "scripts", *PACKAGES}, "the import name is seqarena"
    tops |= {name[1] for name in names if name[0] == "seqarena" and len(name) > 1}
    forbidden = {
        "common": {*PACKAGES, "scripts", "tests"},
        "scripts": {"tests"},
        "tests": set(),
    }.get(home, {*PACKAGES, "scripts", "tests"} - {home})
    assert not tops & forbidden


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_rooms(path: Path) -> None:
    assert path.stem not in ("util", "utils", "helper", "helpers", "misc", "base_trainer")
    assert ast.get_docstring(ast.parse(path.read_text())), "a module says what it is"
    assert not re.search(r"NotImplementedError|\bTODO\b|\bFIXME\b", path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_at_most_400_lines(path: Path) -> None:
    """Tests too."""
    assert len(path.read_text().splitlines()) <= 400


def test_task_packages_have_the_same_rooms() -> None:
    for package in PACKAGES:
        names = {path.stem for path in (ROOT / package).iterdir()}
        assert {
            "__init__",
            "__main__",
            "tasks",
            "data",
            "model",
            "trainer",
            "evaluator",
            "run",
            "presets",
        } <= names


def test_nothing_names_a_place_of_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:
        if Path(name).suffix in (".py", ".md", ".toml", ".txt", ".json", "") and (ROOT / name).is_file():
            text = (ROOT / name).read_text(errors="ignore")
            assert not re.search(r"/(work|root|home)/", text), name


STATE = {"Progress", "Row", "Table"}
"""What is filled in as things go on; everything else is a value."""


def dataclasses_of(path: Path) -> list[tuple[ast.ClassDef, str]]:
    """The dataclasses of a file, and how each is made."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return [
        (node, ast.unparse(each))
        for node in classes
        for each in node.decorator_list
        if "dataclass" in ast.unparse(each)
    ]


def test_values_are_frozen_and_keyword_only() -> None:
    found = [(node.name, made) for path in SOURCES for node, made in dataclasses_of(path)]
    assert len(found) > 50
    for name, made in found:
        assert "kw_only=True" in made, name
        assert ("frozen=True" in made) == (name not in STATE), name


def configs(value: object) -> set[str]:
    """The names of the classes that a run is made of, and of their bases."""
    if not dataclasses.is_dataclass(value):
        return set()
    inner = set().union(*(configs(getattr(value, field.name)) for field in dataclasses.fields(value)))
    return inner | {each.__name__ for each in type(value).__mro__}


def test_every_field_of_a_config_has_a_sentence() -> None:
    """It is the help text."""
    runs = [preset.run for name in PACKAGES for some in find_package(name).presets.values() for preset in some.values()]
    names = set().union(*map(configs, runs), *map(configs, ATTENTIONS.values()), *map(configs, NORMS.values()))
    seen = 0
    for path in SOURCES:
        for node, _ in dataclasses_of(path):
            for field, after in itertools.zip_longest(node.body, node.body[1:]):
                if node.name in names and isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field):
                    seen += 1
                    told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert told, f"{path}: {node.name}.{ast.unparse(field.target)}"
    assert seen > 80
