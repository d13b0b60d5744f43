"""Some damaged copies of every kind of file that is read; ``make fuzz`` tries thousands."""

import pytest

from tests.fuzz import READERS, attempts


# numpy leaves a damaged .npz open until it is collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.extras
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_one_message(name: str) -> None:
    found = list(attempts(READERS[name], seed=0, times=100))
    for file, _, error in found:
        if error is not None:
            raise AssertionError(f"{name}, {file}") from error
    assert len(found) == 100
    assert name == "plan" or any(not is_read for _, is_read, _ in found)  # what is no plan is told, not refused
