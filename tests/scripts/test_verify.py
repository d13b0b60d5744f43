"""``seqarena verify`` names every planted fault, and finds none in the variants of the table."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import run_command
from seqarena.scripts.seqarena import dispatch
from seqarena.scripts.verify import CHECKS, verify
from seqarena.scripts.verify.subject import Subject
from tests.scripts.faulty import FAULTS, Fault, Faulty, NotJson
from tests.scripts.faulty_direct import DIRECT_FAULTS, DirectFaulty
from tests.scripts.faulty_mixers import MIXER_FAULTS, FaultyMixer, MixerFault
from tests.scripts.faulty_training import TRAINING_FAULTS, FaultyTraining

pytestmark = pytest.mark.unhooked  # torch.compile does not take functions with checked shapes
UNTIMED = tuple(name for name in CHECKS if name != "speed")
LONG = ("dropout", "implementations", "compilation", "memory")
"""Checks that take most of the time."""


def first_of_each(cases: Sequence[Any], kind_of: Callable[[Any], object]) -> list[Any]:
    """Returns parameters for cases. ``make test`` has the first one of each kind, the extras have the others too."""
    seen = set[object]()
    found = []
    for case in cases:
        marks = [pytest.mark.extras] if kind_of(case) in seen else []
        seen.add(kind_of(case))
        found.append(pytest.param(*case, marks=marks) if type(case) is tuple else pytest.param(case, marks=marks))
    return found


def at_once(subject: Subject) -> str:
    """Takes the place of a check that takes long, in tests of the table."""
    return f"{subject.name} not tried"


def failed(subject: Subject, checks: tuple[str, ...] = UNTIMED) -> dict[str, str]:
    return {each.check: each.detail for each in verify(subject, checks) if each.status == "failed"}


@pytest.mark.parametrize(
    "fault", first_of_each([*FAULTS, *TRAINING_FAULTS], lambda fault: fault.check), ids=lambda fault: fault.name
)
def test_every_planted_fault_is_named(fault: Fault) -> None:
    checks = UNTIMED[: UNTIMED.index(fault.check) + 1] if fault.check else UNTIMED
    made = FaultyTraining if fault in TRAINING_FAULTS else Faulty
    found = failed(Subject(name=fault.name, config=made(fault=fault.name, **fault.config)), checks)
    assert list(found) == ([fault.check] if fault.check else []), found


@pytest.mark.parametrize(("config", "check"), first_of_each(DIRECT_FAULTS, lambda fault: fault[1]))
def test_faults_without_a_matrix_of_weights_are_named(config: DirectFaulty, check: str) -> None:
    checks = UNTIMED[: UNTIMED.index(check) + 1] if check else UNTIMED
    assert list(failed(Subject(name="direct", config=config), checks)) == ([check] if check else [])


@pytest.mark.parametrize("fault", first_of_each(MIXER_FAULTS, lambda fault: fault.check), ids=lambda fault: fault.name)
def test_every_fault_of_a_token_mixer_is_named(fault: MixerFault) -> None:
    checks = UNTIMED[: UNTIMED.index(fault.check) + 1] if fault.check else UNTIMED
    found = failed(Subject(name=fault.name, config=FaultyMixer(fault=fault.name, **fault.config)), checks)
    assert list(found) == ([fault.check] if fault.check else []), found


def test_a_config_that_is_no_json_is_named() -> None:
    assert list(failed(Subject(name="no JSON", config=NotJson()), ("config",))) == ["config"]


@pytest.mark.parametrize("name", first_of_each(list(ATTENTIONS), lambda name: type(ATTENTIONS[name])))
def test_the_variants_of_the_table_pass_the_short_checks(name: str) -> None:
    """One variant of each class has them here; the others, and the long checks of rivals, are in the extras.

    The long checks of the papers' variants are tests in ``tests/common/attention``. Two rivals have all checks here.
    """
    checks = tuple(each for each in UNTIMED if each not in LONG or name in ("gated", "convolution"))
    assert failed(Subject(name=name, config=ATTENTIONS[name]), checks) == {}


@pytest.mark.extras
@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_variants_of_the_table_pass_the_long_checks(name: str) -> None:
    assert failed(Subject(name=name, config=ATTENTIONS[name]), LONG) == {}


def test_the_command_shows_a_table_and_fails_if_a_check_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {**CHECKS, **dict.fromkeys((*LONG, "speed"), at_once)}
    monkeypatch.setattr("seqarena.scripts.verify.CHECKS", checks)
    assert run_command(dispatch, ["verify", f"{Faulty.__module__}:NotJson"]) == 1
    shown = capsys.readouterr().out
    assert "it cannot be written to JSON" in shown
    assert "passed" in shown
    assert run_command(dispatch, ["verify", "tanh", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tanh"]
    assert [each["check"] for each in found] == list(CHECKS)


def test_an_error_without_a_message_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(type(ATTENTIONS["softmax"]), "build", fails)
    assert failed(Subject(name="it", config=ATTENTIONS["softmax"]), ("sizes",)) == {
        "sizes": "raised AssertionError: without a message"
    }


@pytest.mark.parametrize("arguments", [[], ["softmax", "--all"]])
def test_what_to_verify_must_be_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, ["verify", *arguments]) == 2
    assert "name variants, such as my_attention.py:MyAttention, or --all" in capsys.readouterr().err
