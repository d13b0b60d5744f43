"""The wheel in an environment of its own, outside of the repository, beside a foreign ``common`` and ``scripts``."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from tests.lra.test_training import TINY_FIELDS

pytestmark = pytest.mark.extras
ROOT = Path(__file__).parent.parent
LIBRARY = """
import common, torch
from seqarena.common.attention import attend
from seqarena.common.attention.module import MultiHeadAttention
assert common.OWNER == "somebody else"
query, key, value = torch.randn(3, 2, 4, 9, 8)
assert attend("dnas", query, key, value).shape == (2, 4, 9, 8)
assert MultiHeadAttention("dnas", dim=16, heads=4)(torch.randn(2, 9, 16)).shape == (2, 9, 16)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a project with packages of its own and an environment in which seqarena is installed from its wheel.

    The libraries are those of the tests' environment: named in a ``.pth`` file, where its own ``.pth`` files do not
    count, and so no seqarena comes from there.
    """
    folder = tmp_path_factory.mktemp("project")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(wheel, cwd=folder / "source", check=True)
    shutil.rmtree(folder / "source")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    (packages,) = (folder / "environment").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (built,) = folder.glob("seqarena-*.whl")
    python = ["--python", str(folder / "environment" / "bin" / "python")]
    subprocess.run([*pip, *python, "install", "--quiet", "--no-deps", "--no-index", str(built)], check=True)
    for name in ("common", "scripts", "lra"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('OWNER = "somebody else"\n')
    return folder


def environment(project: Path) -> dict[str, str]:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return outside | {"PATH": f"{project / 'environment' / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def typed(project: Path, *words: str) -> str:
    """Returns what a command prints, typed in the project."""
    told = subprocess.run(words, cwd=project, env=environment(project), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_the_library_stands_beside_a_foreign_common(project: Path) -> None:
    where = typed(project, "python", "-c", "import seqarena; print(seqarena.__file__)")
    assert Path(where.strip()).is_relative_to(project / "environment")
    typed(project, "python", "-c", LIBRARY)


def test_an_installed_copy_measures_and_prints_a_table(project: Path) -> None:
    typed(project, "seqarena", "sweep", "lra", "listops", "--attention", "softmax", "x1", "--seeds", "0", "1",
          *TINY_FIELDS, "--train.steps", "4", "--train.eval-every", "2", "--optim.schedule.warmup", "2")  # fmt: skip
    (table,) = json.loads(typed(project, "seqarena", "leaderboard", "--json"))["tables"]
    assert {row["name"]: row["seeds"] for row in table["rows"]} == {"softmax, 1 layer": [0, 1], "x1, 1 layer": [0, 1]}
    result = json.loads(next(project.glob("runs/lra/listops/*/result.json")).read_text())
    assert {"common/training/loop.py", "lra/model.py"} <= result["sources"].keys()
    typed(project, "seqarena", "report")
    assert (project / "runs" / "report.html").stat().st_size > 1000


def test_the_quickstart_of_an_installed_copy_trains(project: Path) -> None:
    """It is interrupted as soon as something was recorded."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from seqarena.scripts.seqarena import main; sys.exit(main())"  # a job in the background ignores interrupts
    command = ["python", "-c", code, "quickstart", "--runs", "quick"]
    with subprocess.Popen(command, cwd=project, env=environment(project), stderr=subprocess.PIPE, text=True) as process:
        while not any(path.stat().st_size for path in project.glob("quick/lra/listops/*/metrics.jsonl")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "interrupted; " in process.stderr.read()
