import gc
import inspect
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

# No test depends on a clock, and one commit gives one verdict: the examples of a property are the same in every run.
hypothesis.settings.register_profile("seqarena", deadline=None, derandomize=True)
hypothesis.settings.load_profile("seqarena")


def check(*, typechecker: Any) -> Any:
    """Decorates what the hook of ``make test`` imports: by jaxtyping if shapes are annotated, else by its type checker.

    Both check the same types. jaxtyping's wrapper of the functions without shapes took a third of the tests' time.
    """
    return lambda kind: check_shapes(kind, typechecker=typechecker) if has_shapes(kind) else typechecker(kind)


def has_shapes(kind: Any) -> bool:
    """Returns whether a function's annotations may have shapes: one in quotes may, and so may the fields of a class."""
    if inspect.isclass(kind):
        return True
    hints = inspect.get_annotations(kind).values()
    return any(isinstance(each, str) or "jaxtyping." in str(each) for each in hints)


check_shapes = jaxtyping.jaxtyped
jaxtyping.jaxtyped = check


def pytest_collection_finish() -> None:
    """Takes the imported modules out of the garbage collector's sight.

    A run collects garbage before it measures its memory. Among all the modules that took a quarter of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)
