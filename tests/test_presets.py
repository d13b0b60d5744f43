"""Every preset is a run that can be made, says where it comes from, and builds its model."""

from dataclasses import replace
from typing import Any

import pytest

from seqarena.common.attention import PAPERS
from seqarena.common.model.norms import NORMS
from seqarena.common.runs.config import to_json
from seqarena.common.runs.run import changed_from, row_name, row_of, settings
from seqarena.lra.pictures.library import LibraryConfig
from seqarena.lra.recall.run import RecallRun
from seqarena.pretraining.wikitext.run import LanguageRun
from seqarena.scripts.packages import PACKAGES, find_package

EVERY = [
    pytest.param(
        package.name, task, name, marks=pytest.mark.extras if isinstance(preset.run.model, LibraryConfig) else ()
    )
    for package in map(find_package, PACKAGES)
    for task in package.tasks
    for name, preset in package.presets[task].items()
]


@pytest.mark.parametrize(("package", "task", "name"), EVERY)
def test_a_preset_is_whole(package: str, task: str, name: str) -> None:
    preset = find_package(package).presets[task][name]
    run = preset.run
    assert (run.task, run.preset, run.seed) == (task, name, 0)
    assert preset.source
    assert preset.expected
    assert preset.cost
    run.check()
    assert changed_from(preset, run) == {}
    order = "causal" if isinstance(run, LanguageRun | RecallRun) else "none"
    norms = [{"norm": norm} for norm in NORMS.values()] if hasattr(run.model, "norm") else [{}]
    for norm in norms:
        for attention in PAPERS.values():
            if order in attention.orders:
                varied = replace(run, model=replace(run.model, attention=attention, **norm))  # type: ignore[arg-type]
                varied = varied.completed({"model.norm"}) if order == "causal" else varied
                varied.check()
                assert changed_from(preset, varied) == {}
    assert row_name(row_of(run, preset)) == "softmax"
    if norms == [{}]:
        return
    deeper: dict[str, Any] = {"layers": 9, "norm": NORMS["deescalated"]}
    assert (
        row_name(row_of(replace(run, model=replace(run.model, **deeper)), preset)) == "softmax, deescalated, 9 layers"
    )


def test_every_package_has_a_quick_preset_and_every_task_is_a_record() -> None:
    for package in map(find_package, PACKAGES):
        for name, task in package.tasks.items():
            assert "quick" in package.presets[name]
            assert (task.package, task.name) == (package.name, name)
            assert task.title
            assert task.source
            assert task.licence
            assert task.splits
            by_floors = {"associative-recall", "mlm", "squad1", "squad2", "gigaword", "wire", "vqa2"}
            if task.unit == "nats" or name in by_floors:  # there it depends on the data
                assert task.chance is None
            else:
                assert 0 <= task.chance < 1
            assert set(task.checksums) <= set(package.presets[name])
            assert all(figure.source for figure in task.published)
        assert package.tasks


def test_a_number_of_examples_is_part_of_a_protocol_and_a_file_of_ones_own_is_not() -> None:
    listops, squad = (
        find_package(package).presets[task]["quick"] for package, task in (("lra", "listops"), ("qa", "squad1"))
    )
    fewer = replace(listops.run, data=replace(listops.run.data, train=9))  # type: ignore[attr-defined]
    assert changed_from(listops, fewer) == {"data.train": (listops.run.data.train, 9)}  # type: ignore[attr-defined]
    assert settings(type(fewer), to_json(fewer)) != settings(type(listops.run), to_json(listops.run))
    vqa2 = find_package("vqa").presets["vqa2"]["pythia-3x100"]
    given = [replace(vqa2.run, data=replace(vqa2.run.data, path="here", glove=each)) for each in (None, "a", "b")]  # type: ignore[call-arg]
    assert [changed_from(vqa2, each) for each in given[:2]] == [{}, {"data.glove": (None, "given")}]
    written = [settings(type(each), to_json(each)) for each in given]
    assert written[0] != written[1] == written[2]
    mine = replace(squad.run, data=replace(squad.run.data, train="a.json", dev="b.json"))  # type: ignore[attr-defined]
    assert changed_from(squad, mine) == {}
    assert settings(type(mine), to_json(mine)) == settings(type(squad.run), to_json(squad.run))
