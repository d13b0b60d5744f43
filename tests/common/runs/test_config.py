from dataclasses import dataclass, replace

import pytest

from seqarena.common.attention import ATTENTIONS
from seqarena.common.data.corpus import king_james
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.runs.config import field_paths, fingerprint, from_json, to_json
from seqarena.common.runs.named import changed_fields
from seqarena.lra.presets import PRESETS
from seqarena.lra.run import Run


@dataclass(frozen=True, kw_only=True)
class Small:
    size: int = 1


SMALL = f"{__name__}:Small"
RUNS = [preset.run for presets in PRESETS.values() for preset in presets.values()]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.preset)
def test_every_run_goes_to_json_and_back(run: Run) -> None:
    for attention in ATTENTIONS.values():
        varied = replace(run, model=replace(run.model, attention=attention))
        assert from_json(Run, to_json(varied)) == varied


def test_foreign_json_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a Small, found list"):
        from_json(Small, [])
    with pytest.raises(ValueError, match="found a dict"):
        from_json(Small, {"class": SMALL, "size": {}})
    with pytest.raises(ValueError, match="expected a Small, found class 'Other'"):
        from_json(Small, {"class": "Other", "size": 1})
    with pytest.raises(ValueError, match=r"unknown or missing fields \['more'\]"):
        from_json(Small, {"class": SMALL, "size": 1, "more": 2})


def test_fingerprints_differ_by_any_field() -> None:
    run = RUNS[0]
    others = [
        replace(run, seed=1),
        replace(run, model=replace(run.model, attention=ATTENTIONS["x3"])),
        replace(run, optim=replace(run.optim, lr=run.optim.lr * 2)),
    ]
    assert len({fingerprint(each) for each in (run, *others)}) == 4
    assert fingerprint(run) == fingerprint(replace(run))


def test_differences_are_named_by_path() -> None:
    run = RUNS[0]
    other = replace(run, model=replace(run.model, attention=ATTENTIONS["x3"], dim=32))
    changes = changed_fields(run, other)
    assert changes["model.dim"] == (run.model.dim, 32)
    assert changes["model.attention"] == (run.model.attention, ATTENTIONS["x3"])
    assert len(changes) == 2
    assert "optim.schedule.warmup" in field_paths(run)


def test_a_wrong_name_gets_an_answer() -> None:
    with pytest.raises(WrongUseError, match="unknown colour 'blu'; nearest: blue"):
        look_up({"blue": 1, "red": 2}, "blu", "colour")


def test_the_bundled_text_is_whole() -> None:
    lines = king_james().splitlines()
    assert sum(line.startswith("# ") for line in lines) == 66
    assert sum(line.startswith("## ") for line in lines) == 1189
