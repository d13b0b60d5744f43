"""Local folders in the layout of the hub: what is read is what is in them now."""

from pathlib import Path

import datasets
import pytest

from seqarena.common.data.hub import hub_label, hub_rows

README = "---\nconfigs:\n- config_name: one\n  data_files:\n  - {split: test, path: test-*}\n---\n"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(README)
    for texts in (["a", "b"], ["a", "b", "c"], ["d", "e", "f"]):
        datasets.Dataset.from_dict({"text": texts}).to_parquet(tmp_path / "test-0.parquet")
        rows = hub_rows(str(tmp_path), None, "test", "hint", config="one")
        assert [row["text"] for row in rows] == texts


def test_the_label_of_a_local_folder_depends_on_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_label("a/b:c,d/e") == "a--b=c+d--e"
    assert len({hub_label(name) for name in ("x-y/z", "x/y-z", "x/y:z", "x-y-z")}) == 4
    (tmp_path / "a" / "b").mkdir(parents=True)
    labels = [hub_label("a/b:c,d/e")]
    (tmp_path / "a" / "b" / "text.txt").write_text("text")
    labels.append(hub_label("a/b:c,d/e"))
    assert len({"a--b=c+d--e", *labels}) == 3
    assert all(label.endswith("=c+d--e") for label in labels)
