from pathlib import Path

import pytest

from seqarena.common.data.tokenization import train_tokenizer
from seqarena.pretraining.data import shards
from tests.pretraining.executor import Now
from tests.pretraining.texts import TEXTS


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    train_tokenizer(TEXTS, "wordpiece", 120).save(folder)
    return folder


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of five documents, written in this process."""
    monkeypatch.setattr(shards, "ProcessPoolExecutor", Now)
    monkeypatch.setattr(shards, "DOCUMENTS", 5)
