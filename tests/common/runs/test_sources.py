"""Which edits make another version of a run, and which do not."""

import importlib
import os
import py_compile
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.softmax import Softmax
from seqarena.common.errors import WrongUseError, short_list
from seqarena.common.runs import sources
from seqarena.common.runs.sources import changed_sources, digest, sources_of
from seqarena.scripts.packages import PACKAGES, find_package
from tests.lra.test_training import BASE

ROOT = Path(__file__).parents[3]
Tree = Callable[[str, str, str], None]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Gives an edit of a file in a copy of the project: path, text before, text after."""
    for name in ("common", "scripts", *PACKAGES):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.xz"))
    monkeypatch.setattr(sources, "TREE", tmp_path)
    monkeypatch.setattr(sources, "STARTED", float("inf"))
    monkeypatch.setattr(sources, "_loaded", lambda name: None)  # nothing is loaded from the copy
    forget()

    def apply(path: str, before: str, after: str) -> None:
        text = (tmp_path / path).read_text()
        assert before in text
        (tmp_path / path).write_text(text.replace(before, after, 1))
        forget()

    yield apply
    forget()


def forget() -> None:
    """Reads files anew, as the next process does."""
    sources.read_again()
    sources._later.clear()


def of(attention: str) -> sources.Sources:
    run = replace(BASE, model=replace(BASE.model, attention=ATTENTIONS[attention]))
    return sources_of(find_package("lra").assemble_of(BASE), run)


def of_mine(module: str) -> sources.Sources:
    """Returns the sources of a run with a variant of the user's, defined in this module."""
    kind = type("Mine", (Softmax,), {"__module__": module})
    run = replace(BASE, model=replace(BASE.model, attention=kind()))
    return sources_of(find_package("lra").assemble_of(BASE), run)


def all_of(names: tuple[str, ...] = ("softmax", "dnas", "hnas", "x3")) -> dict[str, str]:
    return {name: digest(of(name)) for name in names}


def test_an_edit_that_changes_no_number_keeps_every_result(edit: Tree) -> None:
    known = all_of()
    edit("common/attention/elementwise.py", "import torch\n", "import torch\n\n# a comment\n\n")
    edit("common/training/step.py", '"""One optimiser step', '"""ONE optimiser step')
    edit("common/training/loop.py", "    model.eval()\n", "    model.eval(\n    )\n")
    edit("common/attention/__init__.py", '"x3": Elementwise(power=3),', '"x3": Elementwise(power=3), "x9": Softmax(),')
    for path in ("common/errors.py", "common/runs/results.py", "lra/tasks.py", "lra/published.py",
                 "lra/presets/quick.py", "scripts/report/page.py", "scripts/leaderboard/table.py",
                 "qa/trainer.py"):  # fmt: skip
        edit(path, "", "EXTRA = 1\n")
    assert all_of() == known


def test_an_edit_of_a_formula_is_another_version(edit: Tree) -> None:
    known = all_of()
    for path, outdated in {
        "common/attention/elementwise.py": {"x3"},
        "common/attention/activations.py": {"dnas", "hnas", "x3"},  # dnas: through the Triton operators
        "common/attention/hybrid.py": {"hnas"},
        "common/attention/softmax.py": {"softmax", "hnas"},
        "common/training/optim.py": {*known},
        "common/model/feed_forward.py": {*known},
        "common/model/norms/base.py": {*known},
        "common/model/norms/rezero.py": set(),
        "lra/model.py": {*known},
        "lra/data/listops/generator.py": {*known},
    }.items():
        edit(path, "", "EXTRA = 1\n")
        now = all_of()
        assert {name for name in known if known[name] != now[name]} == outdated
        known = now


def test_the_changed_file_is_named(edit: Tree) -> None:
    known = of("x3")
    edit("common/attention/elementwise.py", "", "EXTRA = 1\n")
    assert changed_sources(known, of("x3")) == ["common/attention/elementwise.py"]
    assert short_list("abcde") == "a, b, c and 2 more"
    assert short_list("ab") == "a, b"


def test_relative_imports_and_other_folders_are_seen(edit: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    edit("common/attention/elementwise.py", "", "from .helper import GAIN\n")
    (sources.TREE / "common" / "attention" / "helper.py").write_text("GAIN = 1\n")
    forget()
    assert "common/attention/helper.py" in of("x3")
    monkeypatch.setattr(sources, "_loaded", {"seqarena.lra.model": ROOT / "lra" / "model.py"}.get)
    forget()
    assert str(ROOT / "lra" / "model.py") in of("x3")
    assert "lra/model.py" not in of("x3")


@pytest.mark.parametrize(
    "line",
    ['importlib.import_module("seqarena.common.attention.helper").GAIN', 'import_module(".helper", __package__).GAIN',
     'import_module(name=".helper", package=__package__).GAIN', 'load(".helper", __package__).GAIN',
     '__import__("seqarena.common.attention.helper")'],
)  # fmt: skip
def test_a_module_that_is_imported_by_a_call_is_seen(line: str, edit: Tree) -> None:
    """A formula that takes a number from there would else return the result of an earlier number."""
    (sources.TREE / "common" / "attention" / "helper.py").write_text("GAIN = 1\n")
    edit(
        "common/attention/elementwise.py",
        "",
        f"from importlib import import_module as load\ndef gain():\n    return {line}\n",
    )
    known = of("x3")
    assert "common/attention/helper.py" in known
    edit("common/attention/helper.py", "1", "2")
    assert changed_sources(known, of("x3")) == ["common/attention/helper.py"]


def test_a_file_that_changes_under_a_process_is_noticed(edit: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    of("softmax")
    monkeypatch.setattr(sources, "STARTED", 0.0)
    forget()
    with pytest.raises(WrongUseError, match=r"was changed after this process began; start the command again"):
        of("softmax")


def test_a_file_that_is_replaced_under_a_process_by_an_older_one_is_noticed(
    edit: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = list(sources.TREE.rglob("*.py"))
    started = max(path.stat().st_ctime for path in paths)
    monkeypatch.setattr(sources, "STARTED", started)
    for path in paths:
        while path.stat().st_ctime <= started:  # the clock of the file system has steps
            os.utime(path, (1e9, 1e9))  # as ``cp -p`` sets it
    with pytest.raises(WrongUseError, match=r"was changed after this process began; start the command again"):
        of("softmax")


def test_a_file_of_the_users_below_the_prefix_of_python_is_seen(
    edit: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own prefix may be /usr, and the user's files in /usr/src."""
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "variant.py").write_text("import helper\n")
    (tmp_path / "mine" / "helper.py").write_text("GAIN = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    assert "helper.py" in of_mine("variant")
    assert not {"json.py", "torch.py", "numpy.py"} & of_mine("variant").keys()


def test_compiled_code_of_an_earlier_text_is_noticed(edit: Tree) -> None:
    """Python compares size and seconds alone: an edit that keeps both leaves its cache as it was."""
    path = sources.TREE / "common" / "attention" / "softmax.py"
    before = path.stat()
    py_compile.compile(str(path), doraise=True)
    of("softmax")
    text = path.read_text()
    path.write_text(text.replace("0", "1"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as ``cp -p`` and archives set it
    forget()
    with pytest.raises(WrongUseError, match=r"softmax\.py: Python ran an outdated compiled version"):
        of("softmax")
    forget()
    of("softmax")  # by the next process it is compiled anew
    py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    of("softmax")
    path.write_text(text.replace("0", "22"))
    forget()
    with pytest.raises(WrongUseError, match=r"softmax\.py: Python ran an outdated compiled version"):
        of("softmax")


@pytest.mark.parametrize("edited", [False, True])
def test_a_file_that_is_edited_before_its_import_is_noticed(
    edited: bool, edit: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash was taken when the run began, and the import comes with the first batch."""
    (tmp_path / "mine").mkdir()
    name = f"imported_later_{edited}".lower()
    helper = tmp_path / "mine" / f"{name}.py"
    (tmp_path / "mine" / "variant.py").write_text(f"def weights():\n    import {name}\n")
    helper.write_text("GAIN = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    assert f"{name}.py" in of_mine("variant")
    if edited:
        helper.write_text("GAIN = 2\n")
    sources.check_later_imports()  # it is not imported yet
    monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    if edited:
        with pytest.raises(WrongUseError, match=rf"{name}\.py was changed .* before Python imported it"):
            sources.check_later_imports()
    else:
        sources.check_later_imports()
    helper.write_text("GAIN = 3\n")
    sources.check_later_imports()  # what is loaded stays


def test_a_config_where_edits_do_not_count_is_refused() -> None:
    class Mine(Softmax):
        pass

    Mine.__module__ = "seqarena.common.attention"
    run = replace(BASE, model=replace(BASE.model, attention=Mine()))
    with pytest.raises(WrongUseError, match=r"Mine is defined in seqarena\.common\.attention, .* in a file of its own"):
        sources_of(find_package("lra").assemble_of(BASE), run)


@pytest.mark.parametrize(
    "path",
    [
        "common/attention/softmax.py",  # what the user's formula is derived from
        "elsewhere/beside/helper.py", "elsewhere/beside/late.py", "elsewhere/beside/presets.py", "elsewhere/loose.py",
        "site-packages/beside/helper.py",
    ],
)  # fmt: skip
def test_a_variant_in_a_package_of_the_users_is_seen_with_all_that_it_imports(
    path: str, edit: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may import a module that is not loaded when the run begins."""
    variant = (
        "from seqarena.common.attention.softmax import Softmax\nfrom .helper import GAIN\nfrom . import presets\n"
        "class Mine(Softmax):\n    def build(self):\n        from . import late\n        import loose\n"
    )
    elsewhere = sources.TREE / ("site-packages" if path.startswith("site-packages") else "elsewhere")
    (elsewhere / "beside").mkdir(parents=True)
    for name in ("beside/helper", "beside/late", "beside/presets", "loose"):
        (elsewhere / f"{name}.py").write_text("GAIN = 1")
    (elsewhere / "beside" / "__init__.py").touch()
    (elsewhere / "beside" / "variant.py").write_text(variant)
    monkeypatch.syspath_prepend(elsewhere)

    known = of_mine("beside.variant")
    edit(path, "", "EXTRA = 1\n")
    module = path.removesuffix(".py").partition("/")[2].replace("/", ".")
    assert changed_sources(known, of_mine("beside.variant")) == [path if path.startswith("common/") else f"{module}.py"]


@pytest.mark.parametrize("suffix", [EXTENSION_SUFFIXES[0], ".pyc"])
def test_an_extension_module_beside_a_variant_is_seen(suffix: str, edit: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = sources.TREE / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "variant.py").write_text("def weights():\n    import fast\n")
    (elsewhere / f"fast{suffix}").write_bytes(b"\x7fELF one")
    monkeypatch.syspath_prepend(elsewhere)
    known = of_mine("variant")
    (elsewhere / f"fast{suffix}").write_bytes(b"\x7fELF two")
    forget()
    assert changed_sources(known, of_mine("variant")) == ["fast" + Path(f"fast{suffix}").suffix]


def test_a_package_that_is_installed_as_editable_is_seen(edit: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is not in ``sys.path``: a finder of its own knows it. A function imports it later."""
    elsewhere = sources.TREE / "elsewhere"
    (elsewhere / "src" / "beside").mkdir(parents=True)
    (elsewhere / "variant.py").write_text("def weights():\n    from beside.helper import GAIN\n")
    (elsewhere / "src" / "beside" / "__init__.py").write_text("raise AssertionError('imported')\n")
    (elsewhere / "src" / "beside" / "helper.py").write_text("GAIN = 1\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            folder = elsewhere / "src" / name
            found = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
            return found if name == "beside" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.syspath_prepend(elsewhere)
    known = of_mine("variant")
    edit("elsewhere/src/beside/helper.py", "1", "2")
    assert changed_sources(known, of_mine("variant")) == ["beside.helper.py"]
    edit("elsewhere/src/beside/helper.py", "=", "")
    with pytest.raises(WrongUseError, match=r"beside.helper\.py cannot be imported: invalid syntax"):
        of_mine("variant")


@pytest.mark.parametrize(
    ("line", "formula", "is_seen"),
    [
        ("from seqarena.common.attention import attend", "common/attention/rivals/cosine.py", True),
        ("import seqarena.common.attention as table", "common/attention/rivals/cosine.py", True),
        ("from seqarena.common.model.norms import NORMS", "common/model/norms/rezero.py", True),
        ("from seqarena.common.attention.softmax import Softmax", "common/attention/rivals/cosine.py", False),
    ],
)
def test_a_variant_of_the_users_that_uses_the_table_depends_on_all_of_it(
    line: str, formula: str, is_seen: bool, edit: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = sources.TREE / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mixture.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(elsewhere)
    known = of_mine("mixture")
    edit(formula, "", "EXTRA = 1\n")
    assert changed_sources(known, of_mine("mixture")) == [formula] * is_seen


def test_a_config_without_a_file_is_refused() -> None:
    """In a notebook, a formula that is edited would else return the result of the earlier one."""
    with pytest.raises(WrongUseError, match=r"Mine is defined in nowhere, which has no file whose edits could be "):
        of_mine("nowhere")


def test_every_preset_has_its_own_package_and_configs_among_its_sources() -> None:
    for name in PACKAGES:
        package = find_package(name)
        for presets in package.presets.values():
            for preset in presets.values():
                found = sources_of(package.assemble_of(preset.run), preset.run)
                own = {
                    type(preset.run),
                    type(preset.run.model),
                    type(preset.run.data),
                    type(preset.run.model.attention),
                }
                files = {each.__module__.removeprefix("seqarena.").replace(".", "/") for each in own}
                assert all(f"{file}.py" in found or f"{file}/__init__.py" in found for file in files)
                assert {"common/runs/session.py", "common/training/loop.py", "common/training/step.py"} <= set(found)
                assert not any("presets" in path or path.endswith("tasks.py") for path in found)


def test_a_run_does_not_depend_on_files_that_only_compare_its_inputs() -> None:
    """A ListOps model has nothing of BERT, though a run's directory records which checkpoint a BERT began with."""
    found = sources_of(find_package("lra").assemble_of(BASE), BASE)
    assert not [path for path in found if path.startswith(("common/model/bert", "common/runs/inputs", "common/parser"))]
