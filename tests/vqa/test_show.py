"""A scene as a picture: what is told of it, and what is refused."""

from pathlib import Path

import pytest

from seqarena.common.errors import run_command
from seqarena.scripts.seqarena import dispatch
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.scene_figure import picture


def test_a_scene_is_drawn_with_its_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scene.png"
    assert run_command(dispatch, ["vqa", "show", "--scene", "2", "--out", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 4
    assert told[0].startswith("what material is the ")
    assert path.read_bytes().startswith(b"\x89PNG")
    figure, lines = picture(Scenes(), 2, 2)
    assert told[:3] == lines
    names = [text.get_text() for text in figure.axes[0].texts]
    colour = lines[0].split()[4]
    assert any(name.startswith(colour) and lines[0].split("? ")[1].split()[0] in name for name in names)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--scene", "99999", "expected the number of a scene in test"),
     ("--split", "tset", "test"), ("--preset", "toyy", "toy"),
     ("--out", "scene.txt", "expected a .png")],
)  # fmt: skip
def test_what_cannot_be_shown_is_said(option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, ["vqa", "show", option, value]) == 2
    assert words in capsys.readouterr().err
