from collections.abc import Iterator

import pytest
import torch

from seqarena.common.attention import conditions


@pytest.fixture(autouse=True)
def fused_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused passes are taken where they can be, at the lengths of tests too."""
    monkeypatch.setattr(conditions, "FUSED_PAIRS", 1)
    monkeypatch.setattr(conditions, "FEW_SCORES", 0)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills memory that is not written with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
