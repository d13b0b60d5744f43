import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seqarena import __version__
from seqarena.common.attention import ATTENTIONS
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.seqarena import COMMANDS, dispatch, overview

ROOT = Path(__file__).parents[2]


def test_the_overview_names_everything_and_waits_for_nothing() -> None:
    script = "from seqarena.scripts.seqarena import dispatch; dispatch(['--help'])"
    code = f"import sys; {script}; print('torch' in sys.modules)"
    wide = os.environ | {"COLUMNS": "200"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=wide).stdout
    assert told == f"{overview()}\nFalse\n"
    names = [*COMMANDS, *PACKAGES, *(task for package in PACKAGES for task in find_package(package).tasks)]
    assert all(name in told for name in names)


def test_every_variant_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["variants"]) == 0
    names = re.findall(r"^  (\S+) +[ncq]+s? +\S", capsys.readouterr().out, re.MULTILINE)
    assert sorted(names) == sorted(ATTENTIONS)


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


COMMANDS_OF_TORCH = (
    "lra --help", "lra listops --help", "lra listops --atention dnas", "qa --help", "vqa --help", "pretraining --help",
    "summarization --help", "leaderboard", "sweep --help", "curves --help", "curves nowhere",
)  # fmt: skip
SLOW = {"torch._dynamo", "scipy", "numba", "datasets", "evaluate", "accelerate", "tyro", "nltk", "matplotlib"}
"""These take from a third of a second to two to import; torch, which the configs need, takes another."""
MODULES = """
import contextlib, os, sys
from seqarena.scripts.seqarena import dispatch

def show(words, slow):
    if os.fork() == 0:
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            dispatch(words.split())
        print(words, sorted(slow.intersection(sys.modules)), sep=": ", flush=True)
        os._exit(0)
    os.wait()

"""


def test_a_command_waits_for_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """Each in a copy of one process, which has imported nothing, and later torch alone."""
    first = [f"show({words!r}, {SLOW | {'torch'}})" for words in ("leaderboard --help", "report --help")]
    later = [f"show({words!r}, {SLOW})" for words in COMMANDS_OF_TORCH]
    code = MODULES + "\n".join([*first, "import torch", *later])
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    used = dict(line.rsplit(": ", 1) for line in told.splitlines())
    assert used == {
        words: "['matplotlib']" if words.startswith("curves") else "[]"
        for words in ("leaderboard --help", "report --help", *COMMANDS_OF_TORCH)
    }
