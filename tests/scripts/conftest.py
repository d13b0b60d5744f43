import pytest

from seqarena.common.runs.results import Result
from tests.scripts.results import CORRECT, result


@pytest.fixture
def results() -> list[Result]:
    return [result(row, seed, correct[seed]) for row, correct in CORRECT.items() for seed in range(3)]
