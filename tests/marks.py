"""Parameters of tests that only ``make test-extras`` has."""

from typing import Any

import pytest


def in_extras(*cases: tuple[Any, ...]) -> list[Any]:
    """Returns cases as parameters for the extras."""
    return [pytest.param(*case, marks=pytest.mark.extras) for case in cases]
