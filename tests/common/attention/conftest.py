import functools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from seqarena.common.attention import conditions


@pytest.fixture(autouse=True)
def fused_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused passes are taken where they can be, at the lengths of tests too."""
    monkeypatch.setattr(conditions, "FUSED_PAIRS", 1)
    monkeypatch.setattr(conditions, "FEW_SCORES", 0)


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fills memory that is not written with NaN, and gives Triton's interpreter a GPU's maximum and minimum.

    There, the larger of a number and NaN is the number. NumPy's is NaN.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    for name, function in (("create_maxnumf", np.fmax), ("create_minnumf", np.fmin)):
        replaced = functools.partialmethod(interpreter.InterpreterBuilder.binary_op, op=function)
        monkeypatch.setattr(interpreter.InterpreterBuilder, name, replaced)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
