"""Files in VQA v2's form that the suite generates for preset ``quick``: when they are made, and what is noticed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.vqa.data import written as writing
from seqarena.vqa.data.vqa2 import Vqa2
from seqarena.vqa.data.written import write_scenes
from seqarena.vqa.presets import PRESETS
from tests.vqa.test_vqa2 import SCENES, config


def test_chance_of_the_generated_files_is_the_score_of_guessing(tmp_path: Path) -> None:
    loaded = config(write_scenes(tmp_path, SCENES)).load(tmp_path)
    guessing = loaded.splits["train"].scores.sum(axis=1).mean() / len(loaded.answers)
    assert guessing == pytest.approx(PRESETS["vqa2"]["quick"].chance, abs=5e-3)


@pytest.mark.parametrize("changes", [{"answer_count": 3_129}, {"boxes": 100}, {"width": 2_048}])
def test_a_preset_of_real_files_writes_none(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match=r"data.path: expected the folder .* \(--preset quick\)"):
        replace(config(tmp_path), path=None, regions=(), **changes).load(tmp_path)
    assert not list(tmp_path.iterdir())


def test_damaged_generated_files_are_named(tmp_path: Path) -> None:
    data = Vqa2(boxes=8, width=18, answer_count=None, least=1, held_out=0.3, generated=100)
    data.load(tmp_path)
    (features,) = tmp_path.glob("vqa/*/B/val2014/features.npy")
    damaged = np.load(features, mmap_mode="r+")
    damaged[0] = 0
    damaged.flush()
    with pytest.raises(BadDataError, match=r"generated files are damaged: delete .*written-scenes-.* and run again"):
        data.load(tmp_path)


def test_written_files_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_scenes(tmp_path, 6)
    assert "stored in" in capsys.readouterr().err
    before = (first / "v2_mscoco_val2014_annotations.json").stat().st_mtime_ns
    assert write_scenes(tmp_path, 6) == first
    assert (first / "v2_mscoco_val2014_annotations.json").stat().st_mtime_ns == before
    assert not capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == [first.name]


def test_files_of_an_edited_generator_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, real = write_scenes(tmp_path, 6), writing.imported_by
    monkeypatch.setattr(writing, "imported_by", lambda module: {**real(module), "vqa/data/scenes.py": "edited"})
    assert write_scenes(tmp_path, 6) == where
    assert (
        "was made before vqa/data/scenes.py changed and is used as it is; delete it to make it again"
        in capsys.readouterr().err
    )
    (where / "sources.json").write_text("{")
    with pytest.raises(BadDataError, match=r"not a whole folder of generated scenes.*delete the folder"):
        write_scenes(tmp_path, 6)
    (where / "sources.json").unlink()
    write_scenes(tmp_path, 6)
    assert "was made by sources that were not recorded and is used as it is; delete it" in capsys.readouterr().err
