"""The rules of the house that a machine can see."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from scripts.packages import PACKAGES

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
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """scripts -> task packages -> common; no task package imports another."""
    home = path.relative_to(ROOT).parts[0]
    tops = {name.split(".")[0] for name in imports(path)}
    forbidden = {
        "common": {*PACKAGES, "scripts", "tests"},
        "scripts": {"tests"},
        "tests": set(),
    }.get(home, {*PACKAGES, "scripts", "tests"} - {home})
    assert not tops & forbidden


def test_one_file_imports_tyro() -> None:
    assert [path.name for path in SOURCES if "tyro" in imports(path)] == ["cli.py"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_rooms(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    assert path.stem not in ("util", "utils", "helper", "helpers", "misc", "base_trainer")
    assert ast.get_docstring(ast.parse(path.read_text())), "a module says what it is"
    assert not re.search(r"NotImplementedError|\bTODO\b|\bFIXME\b", path.read_text())


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
        if Path(name).suffix in (".py", ".md", ".toml", ".txt", ".json", ""):
            text = (ROOT / name).read_text(errors="ignore")
            assert not re.search(r"/(work|root|home)/", text), name


def test_configs_are_frozen_and_keyword_only() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("dataclass"):
                    assert "kw_only=True" in ast.unparse(decorator), f"{path}: {node.name}"
