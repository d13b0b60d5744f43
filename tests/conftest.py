import hypothesis
import pytest
import torch

# No test depends on a clock, and one commit gives one verdict: the examples of a property are the same in every run.
hypothesis.settings.register_profile("seqarena", deadline=None, derandomize=True)
hypothesis.settings.load_profile("seqarena")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)
