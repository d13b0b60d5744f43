import functools
import gc
import inspect
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

# As in make test. Some tests copy their process (tests/interruption.py), and a copy has no threads to wait for.
torch.set_num_threads(1)
# No test depends on a clock, and one commit gives one verdict: the examples of a property are the same in every run.
hypothesis.settings.register_profile("seqarena", deadline=None, derandomize=True)
hypothesis.settings.load_profile("seqarena")


def check(*, typechecker: Any) -> Any:
    """Decorates what the hook of the extras imports: by its type checker, with jaxtyping's memory of the axes.

    jaxtyping's own wrapper checks the arguments of a call twice, to name the one that is wrong. Functions without
    shapes need no memory of the axes.
    """

    def decorate(kind: Any) -> Any:
        if inspect.isclass(kind):
            return jaxtyped(kind, typechecker=typechecker)
        checked = typechecker(kind)

        @functools.wraps(kind)
        def call(*arguments: Any, **named: Any) -> Any:
            if not checks_shapes:
                return kind(*arguments, **named)
            with jaxtyped("context"):
                return checked(*arguments, **named)

        return call if has_shapes(kind) else checked

    return decorate


def has_shapes(kind: Any) -> bool:
    """Returns whether a function's annotations may have shapes: one in quotes may."""
    hints = inspect.get_annotations(kind).values()
    return any(isinstance(each, str) or "jaxtyping." in str(each) for each in hints)


checks_shapes = True
"""Whether the functions that the hook decorated check shapes."""
jaxtyped = jaxtyping.jaxtyped
jaxtyping.jaxtyped = check


def pytest_collection_finish() -> None:
    """Takes the imported modules out of the garbage collector's sight."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run collects garbage before it measures its memory: a sixth of a second in a process with all the modules."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the checks of shapes off, for tests that train a model so long that the checks take a quarter of the time.

    Other tests call the same functions with checks.
    """
    monkeypatch.setattr("tests.conftest.checks_shapes", False)
