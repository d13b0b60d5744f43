import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from seqarena import __version__
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.seqarena import COMMANDS, dispatch, overview

ROOT = Path(__file__).parents[2]


def test_the_overview_names_everything_and_waits_for_nothing() -> None:
    script = "from seqarena.scripts.seqarena import dispatch; dispatch(['--help'])"
    code = f"import sys; {script}; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == f"{overview()}\nFalse\n"
    names = [*COMMANDS, *PACKAGES, *(task for package in PACKAGES for task in find_package(package).tasks)]
    assert all(name in told for name in names)


@pytest.mark.parametrize(
    "command", [*COMMANDS, "benchmark attention", "benchmark step", "benchmark profile", "benchmark squad"]
)
def test_a_command_is_the_module_of_its_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):  # as argparse leaves
        assert dispatch([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: seqarena {command}")


def test_the_version_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["--version"]) == 0
    assert capsys.readouterr().out == f"seqarena {__version__}\n"
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    "words",
    ["lra --help", "lra listops --help", "lra listops --atention dnas", "qa --help", "vqa --help", "pretraining --help",
     "leaderboard", "leaderboard --help", "report --help", "sweep --help", "curves --help", "curves nowhere"],
)  # fmt: skip
def test_a_command_waits_for_no_library_that_it_does_not_use(words: str, tmp_path: Path) -> None:
    """These take from a third of a second to two to import; torch, which the configs need, takes another."""
    slow = {"torch._dynamo", "scipy", "numba", "datasets", "evaluate", "accelerate"}
    slow |= set() if words == "lra listops --help" else {"tyro"}
    slow |= {"torch"} if words in ("leaderboard --help", "report --help") else set()
    code = (
        "import contextlib, sys; from seqarena.scripts.seqarena import dispatch\n"
        f"with contextlib.suppress(BaseException): dispatch({words.split()!r})\n"
        f"print(*{slow!r}.intersection(sys.modules), '.')"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "."
