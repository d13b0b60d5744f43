"""Variants and norms defined outside the project: found, named, versioned, and refused with a reason."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from seqarena.common.attention import attend, attention_name, base, find_attention
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.model.norms import find_norm, norm_name
from seqarena.common.runs import sources
from seqarena.common.runs.config import from_json, to_json
from seqarena.common.runs.external import import_code, location_of
from seqarena.common.runs.results import read_results
from seqarena.common.runs.trained import read_trained
from seqarena.lra.run import Run
from seqarena.scripts import notebook, sweep
from seqarena.scripts.seqarena import dispatch
from seqarena.scripts.sweep.planned_run import from_description
from tests.common.runs.test_cli import TINY

HEAD = """
from dataclasses import dataclass

import torch

from seqarena.common.attention.base import AttentionConfig, Kernel
"""
SIGMOID = f"""{HEAD}
@dataclass(frozen=True, kw_only=True)
class Sigmoid(AttentionConfig):
    b: float = 0.0

    def build(self, heads, dropout=0.0):
        return SigmoidKernel(self, dropout)


class SigmoidKernel(Kernel):
    def __init__(self, config, dropout):
        super().__init__(config, dropout)
        self.b = config.b

    def normalize(self, scores, visible, visibility, state):
        return torch.sigmoid(scores + self.b) * visible, None
"""
NORM = """
from dataclasses import dataclass

from seqarena.common.model.norms.pre import PreNorm


@dataclass(frozen=True, kw_only=True)
class Twice(PreNorm):
    factor: float = 2.0
"""
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file as if before this process began; afterwards forgets every module that a test imported."""
    search_path = list(sys.path)
    monkeypatch.setattr(sources, "STARTED", float("inf"))

    def apply(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        forget()
        return path

    yield apply
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = search_path
    forget()


def forget() -> None:
    sources.read_again()


def listops(folder: Path, attention: str, *more: str) -> list[str]:
    return [
        "lra",
        "listops",
        "--attention",
        attention,
        "--runs",
        str(folder / "runs"),
        "--data-folder",
        str(folder),
        *TINY,
        *more,
    ]


def test_a_file_is_a_variant(write: Write) -> None:
    path = write("shape_one.py", SIGMOID)
    config = find_attention(f"{path}:Sigmoid")
    assert attention_name(config) == "shape_one:Sigmoid"
    assert attention_name(type(config)(b=0.5)) == "shape_one:Sigmoid[b=0.5]"
    assert from_json(AttentionConfig, json.loads(json.dumps(to_json(config)))) == config
    query = torch.randn(1, 1, 3, 4)
    weights = torch.sigmoid(query @ query.mT / 2)
    assert torch.allclose(attend(f"{path}:Sigmoid", query, query, query), weights @ query, atol=1e-6)
    import_code([location_of("shape_one")])  # as a worker does


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torch.set_default_dtype(torch.float64)", "changes torch's default dtype from torch.float32 to torch.float64"),
        ('torch.set_float32_matmul_precision("medium")', "precision of float32 products on a CPU from ieee to bf16"),
        ('torch.backends.mkldnn.fp32_precision = "bf16"', "of float32 convolutions on a CPU from ieee to bf16"),
        ("torch.set_grad_enabled(False)", "recording of gradients from True to False"),
    ],
)
def test_code_that_would_change_the_numbers_of_other_runs_is_refused(line: str, message: str, write: Write) -> None:
    path = write(f"changing_{len(line)}.py", f"{SIGMOID}\n\n{line}\n")
    backends: Any = torch.backends
    # A run of an earlier test has set these one by one. A value of their own hides the general setting.
    backends.mkldnn.conv.fp32_precision = backends.mkldnn.rnn.fp32_precision = "none"
    try:
        with pytest.raises(WrongUseError, match=message):
            find_attention(f"{path}:Sigmoid")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.backends.mkldnn.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        torch.set_grad_enabled(True)


@pytest.mark.parametrize(
    ("place", "name"), [("torch", "softmax"), ("torch.nn.functional", "softmax"), ("torch.Tensor", "exp")]
)
def test_code_that_replaces_a_function_of_torch_is_refused(place: str, name: str, write: Write) -> None:
    lines = (
        f"import functools\n\n\n@functools.wraps({place}.{name})\ndef other(*a, **k): ...\n\n\n{place}.{name} = other"
    )
    path = write(f"replacing_{place.replace('.', '_')}.py", f"{SIGMOID}\n\n{lines}\n")
    owner = {"torch": torch, "torch.nn.functional": torch.nn.functional, "torch.Tensor": torch.Tensor}[place]
    kept = vars(owner).get(name)
    try:
        with pytest.raises(WrongUseError, match=f"importing it replaces {place}.{name}, which"):
            find_attention(f"{path}:Sigmoid")
    finally:
        delattr(owner, name) if kept is None else setattr(owner, name, kept)


@pytest.mark.parametrize(("owner", "attribute", "name"), [
    (torch.nn.LayerNorm, "forward", "torch.nn.modules.normalization.LayerNorm.forward"),
    (torch.optim.AdamW, "__init__", "torch.optim.adamw.AdamW.__init__"),
    (torch.nn.init, "xavier_uniform_", "torch.nn.init.xavier_uniform_"),
    (Kernel, "forward", "seqarena.common.attention.base.Kernel.forward"),
    (base, "warn_of_fallback", "seqarena.common.attention.base.warn_of_fallback"),
])  # fmt: skip
def test_code_that_replaces_a_method_or_a_function_of_this_project_is_refused(
    owner: Any, attribute: str, name: str, write: Write
) -> None:
    where = owner if isinstance(owner, ModuleType) else sys.modules[owner.__module__]
    target = f"sys.modules[{where.__name__!r}]" + ("" if where is owner else f".{owner.__name__}")
    lines = f"import sys\n\n\ndef other(*a, **k): ...\n\n\n{target}.{attribute} = other"
    path = write(f"replacing_{name.replace('.', '_')}.py", f"{SIGMOID}\n\n{lines}\n")
    kept = getattr(owner, attribute)
    try:
        with pytest.raises(WrongUseError, match=f"importing it replaces {name}, which"):
            find_attention(f"{path}:Sigmoid")
    finally:
        setattr(owner, attribute, kept)


def test_a_hook_on_all_modules_is_refused(write: Write) -> None:
    line = "torch.nn.modules.module.register_module_forward_hook(lambda *_: None)"
    path = write("hooking_all.py", f"{SIGMOID}\n\n{line}\n")
    hooks = torch.nn.modules.module._global_forward_hooks
    try:
        with pytest.raises(WrongUseError, match=r"importing it replaces .*module._global_forward_hooks"):
            find_attention(f"{path}:Sigmoid")
    finally:
        hooks.clear()


@pytest.mark.parametrize("form", ["from helper_file import FACTOR", "import helper_file", "import between_file"])
def test_helper_files_of_one_name_in_two_folders_are_not_mixed_up(form: str, write: Write) -> None:
    """The second would be computed with the first's helper, also through a file that it imports."""
    for folder in ("one", "two"):
        write(f"{folder}/helper_file.py", "FACTOR = 1.0\n")
        if "between" in form:
            write(f"{folder}/between_file.py", "from helper_file import FACTOR\n")
    first = write("one/first_user.py", f"{form}\n{SIGMOID}")
    second = write("two/second_user.py", f"{form}\n{SIGMOID}")
    find_attention(f"{first}:Sigmoid")
    find_attention(f"{first}:Sigmoid")  # again, as in the next run of a sweep
    with pytest.raises(WrongUseError, match=r"another module named (helper|between)_file, .*one/.* before .*two/"):
        find_attention(f"{second}:Sigmoid")


def test_a_helper_file_may_be_a_link(write: Write) -> None:
    helper = write("elsewhere/linked_helper.py", "FACTOR = 1.0\n")
    path = write("linking/link_user.py", f"from linked_helper import FACTOR\n{SIGMOID}")
    path.with_name("linked_helper.py").symlink_to(helper)
    find_attention(f"{path}:Sigmoid")


def test_a_file_beside_a_variant_that_it_does_not_import_is_no_hindrance(write: Write) -> None:
    write("apart/random.py", "raise RuntimeError\n")
    path = write("apart/alone_user.py", f"import math\n{SIGMOID}")
    find_attention(f"{path}:Sigmoid")


def test_a_run_whose_code_changes_them_later_has_no_result(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "        torch.set_float32_matmul_precision('medium')\n"
    path = write(
        "changing_later.py", SIGMOID.replace("        return torch.sigmoid", f"{line}        return torch.sigmoid")
    )
    words = ["lra", "listops", "--attention", f"{path}:Sigmoid", "--out", str(tmp_path / "out"), "--data-folder",
             str(tmp_path), *TINY]  # fmt: skip
    try:
        assert run_command(dispatch, words) == 2
    finally:
        torch.set_float32_matmul_precision("highest")
    assert "the code of this run changed torch's precision of float32 products" in capsys.readouterr().err
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_module_is_a_variant(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("shape_package/__init__.py", "")
    write("shape_package/inner.py", SIGMOID)
    monkeypatch.chdir(tmp_path)
    assert attention_name(find_attention("shape_package.inner:Sigmoid")) == "shape_package.inner:Sigmoid"
    assert location_of("shape_package.inner") == "shape_package.inner"


def test_a_norm_is_named_alike(write: Write) -> None:
    norm = find_norm(f"{write('shape_norm.py', NORM)}:Twice")
    assert norm_name(norm) == "shape_norm:Twice"


def test_a_run_names_the_code_and_a_changed_source_is_another_run(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("shape_two.py", SIGMOID)
    command = listops(tmp_path, f"{path}:Sigmoid", "--model.attention.b", "0.5")
    assert run_command(dispatch, command) == 0
    ((folder, first),) = read_results(tmp_path / "runs")[0].items()
    assert read_trained(folder, Run, "lra", ("listops",), code=[str(path)]).is_finished
    assert first.attention == "shape_two:Sigmoid[b=0.5]"
    assert first.run["model"]["attention"] == {"class": "shape_two:Sigmoid", "b": 0.5}
    assert "shape_two.py" in first.sources
    capsys.readouterr()
    read_trained(folder, Run, "lra", ("listops",), code=[str(path)])
    assert capsys.readouterr().err == ""
    recorded = (folder / "sources.json").read_text()
    edited = recorded.replace(first.sources["lra/model.py"], "0" * 12).replace(
        first.sources["common/training/loop.py"], "0" * 12
    )
    (folder / "sources.json").write_text(edited)
    read_trained(folder, Run, "lra", ("listops",), code=[str(path)])  # the training loop computes no prediction
    assert f"{folder}: lra/model.py changed since this run was trained; its weights" in capsys.readouterr().err
    (folder / "sources.json").write_text(recorded)
    write("shape_two.py", SIGMOID.replace("scores + self.b", "2 * scores + self.b"))
    capsys.readouterr()
    assert run_command(dispatch, command) == 0
    assert "shape_two.py changed since this run was measured" in capsys.readouterr().err
    with pytest.raises(WrongUseError, match="changed since this run was trained"):
        read_trained(folder, Run, "lra", ("listops",), code=[str(path)])
    assert len(read_results(tmp_path / "runs")[0]) == 2


@pytest.mark.parametrize(
    "launcher", [["--parallel", "2"], pytest.param(["--launcher", "ray"], marks=pytest.mark.extras)]
)
def test_workers_of_a_sweep_load_the_file(launcher: list[str], write: Write, tmp_path: Path) -> None:
    write("shape_helper.py", "FACTOR = 1.0\n")
    path = write("shape_three.py", "import shape_helper\n" + SIGMOID)
    command = ["sweep", *listops(tmp_path, f"{path}:Sigmoid", "--seeds", "0", *launcher)]
    assert run_command(dispatch, command) == 0
    results = read_results(tmp_path / "runs")[0].values()
    assert {each.row[0][1] for each in results} == {"shape_three:Sigmoid"}
    assert all({"shape_three.py", "shape_helper.py"} <= each.sources.keys() for each in results)


def test_a_notebook_measures_nothing_by_code_that_was_edited_since(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would compute the old code, and return the old result of a finished run."""
    path = write("edited_user.py", SIGMOID)
    fields = {name.removeprefix("--"): value for name, value in zip(TINY[::2], TINY[1::2], strict=True)}
    run = notebook.build("lra", "listops", attention=f"{path}:Sigmoid", fields=fields)
    folders = {"runs": tmp_path / "runs", "data": tmp_path}
    finished = notebook.measure(run, **folders)
    assert notebook.measure(run, **folders) == finished
    monkeypatch.setattr(sources, "STARTED", path.stat().st_ctime)
    path.write_text(SIGMOID.replace("sigmoid(scores", "sigmoid(2 * scores"))
    with pytest.raises(WrongUseError, match=r"edited_user\.py was changed after this process began; start the command"):
        notebook.measure(run, **folders)


def test_a_worker_that_lacks_the_file_names_it(write: Write, tmp_path: Path) -> None:
    path = write("shape_five.py", SIGMOID)
    description = sweep.plan(listops(tmp_path, f"{path}:Sigmoid"))[0][0].description()
    assert description["code"] == [str(path)]
    with pytest.raises(WrongUseError, match=r"elsewhere\.py does not exist"):
        from_description(description | {"code": [str(tmp_path / "elsewhere.py")]})


def test_a_result_is_shown_without_its_code(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("shape_four.py", SIGMOID)
    assert run_command(dispatch, listops(tmp_path, f"{path}:Sigmoid")) == 0
    monkeypatch.setattr(type(find_attention(f"{path}:Sigmoid")), "__module__", "another")  # as if it were not loaded
    assert run_command(dispatch, ["leaderboard", "--runs", str(tmp_path / "runs")]) == 0
    assert "shape_four:Sigmoid" in capsys.readouterr().out
    values = next(iter(read_results(tmp_path / "runs")[0].values())).run["model"]["attention"]
    with pytest.raises(ValueError, match=r"whose code is not loaded; name it: --code shape_four\.py"):
        from_json(AttentionConfig, values)  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    ("name", "text", "reference", "message"),
    [
        ("a1.py", SIGMOID, "a1.py:Sigmiod", "a1.py has no class 'Sigmiod'; nearest: Sigmoid"),
        ("a2.py", "x = 1\n", "a2.py:Sigmoid", "it defines no AttentionConfig"),
        ("a3.py", SIGMOID, "a3.py:SigmoidKernel", "expected a subclass of AttentionConfig"),
        ("a4.py", SIGMOID.replace(" = 0.0", "", 1), "a4.py:Sigmoid", "a default for each field; b has none"),
        ("a5.py", SIGMOID.replace("frozen=True, ", ""), "a5.py:Sigmoid", "importing it failed"),
        ("a6.py", SIGMOID.replace("def build", "def built"), "a6.py:Sigmoid", "abstract method build"),
        ("a7.py", "import no_such_thing\n", "a7.py:Sigmoid", "it imports no_such_thing, which is not installed"),
        ("a8.py", "x = 1\nraise KeyError('y')\n", "a8.py:Sigmoid", "KeyError: 'y', line 2"),
        ("a9.py", "def f(:\n", "a9.py:Sigmoid", "SyntaxError: invalid syntax, line 1"),
        ("a10.py", "raise SystemExit\n", "a10.py:Sigmoid", "importing it failed"),
        ("json.py", SIGMOID, "json.py:Sigmoid", "Python finds another module named json"),
        ("antigravity.py", SIGMOID, "antigravity.py:Sigmoid", "rename one of them"),
        ("my-file.py", SIGMOID, "my-file.py:Sigmoid", "'my-file' cannot be the name of a module; rename the file"),
        ("a11.py", SIGMOID, "gone.py:Sigmoid", "gone.py does not exist; expected FILE.py:CLASS"),
        ("a13.py", SIGMOID, ":Sigmoid", "expected FILE.py:CLASS or PACKAGE.MODULE:CLASS"),
        ("a12.py", SIGMOID, "no_such_thing:Sigmoid", "no module no_such_thing; expected FILE.py:CLASS"),
    ],
)  # fmt: skip
def test_what_is_no_variant_is_refused(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, reference: str, message: str
) -> None:
    write(name, text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUseError) as refused:
        find_attention(reference)
    assert message in str(refused.value)
