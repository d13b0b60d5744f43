"""The vocabulary of a run from a checkpoint: the checkpoint's own, or a named one that does not contradict it."""

from pathlib import Path

import pytest
import torch

from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.checkpoint import save
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.bert.start import tokenizer_of, tokenizer_unless_typed

WORDS = ["austria", "close", "schools", "the"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[str, BertConfig]:
    """A checkpoint of nine tokens and one row of embeddings without a token."""
    torch.manual_seed(0)
    config = BertConfig(vocabulary=10, max_length=8, layers=1, dim=8, heads=2, ffn_dim=8)
    save(tmp_path / "bert", BertForPretraining(config))
    word_tokenizer(WORDS).save(tmp_path / "bert")
    return str(tmp_path / "bert"), config


def vocabulary(folder: Path, words: list[str]) -> str:
    word_tokenizer(words).save(folder)
    return str(folder)


def test_a_presets_tokenizer_gives_way_to_the_checkpoints_and_a_typed_one_does_not() -> None:
    assert tokenizer_unless_typed("google-bert/bert-base-uncased", {"model.init"}) is None
    assert tokenizer_unless_typed("vocab.txt", {"model.init", "data.tokenizer"}) == "vocab.txt"


def test_its_own_vocabulary_is_taken_without_a_word(
    checkpoint: tuple[str, BertConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    source, config = checkpoint
    tokenizer, warning = tokenizer_of(None, source, config, lambda: ["other"])
    assert (tokenizer.id("schools"), warning) == (7, None)
    copy, warning = tokenizer_of(vocabulary(tmp_path / "copy", WORDS), source, config, lambda: ["other"])
    assert (copy.id("schools"), warning) == (7, None)
    assert tokenizer_of(None, None, config, lambda: ["other"])[0].id("other") == 5


def test_a_vocabulary_of_the_same_size_and_other_numbers_is_refused(
    checkpoint: tuple[str, BertConfig], tmp_path: Path
) -> None:
    source, config = checkpoint
    permuted = vocabulary(tmp_path / "permuted", WORDS[::-1])
    message = r"is not the vocabulary of .*: 4 tokens have other ids, such as 'austria', 8 here and 5 there"
    with pytest.raises(WrongUseError, match=message):
        tokenizer_of(permuted, source, config, list)
    with pytest.raises(WrongUseError, match=r"model.vocabulary 10 is below the 12 tokens"):
        tokenizer_of(vocabulary(tmp_path / "large", [*WORDS, "a", "b", "c"]), source, config, list)


def test_tokens_that_only_one_of_both_has_are_counted(checkpoint: tuple[str, BertConfig], tmp_path: Path) -> None:
    source, config = checkpoint
    other = vocabulary(tmp_path / "other", [*WORDS[:3], "a", "an"])
    _, warning = tokenizer_of(other, source, config, list)
    assert warning is not None
    assert "has 2 tokens that are not in the vocabulary of" in warning
    assert warning.endswith("and lacks 1")


def test_a_checkpoint_without_a_vocabulary_needs_a_named_one(
    checkpoint: tuple[str, BertConfig], tmp_path: Path
) -> None:
    source, config = checkpoint
    for name in ("tokenizer.json", "vocab.txt"):
        (Path(source) / name).unlink()
    with pytest.raises(BadDataError, match=r"has no vocabulary .*; --data.tokenizer names one"):
        tokenizer_of(None, source, config, list)
    _, warning = tokenizer_of(vocabulary(tmp_path / "named", WORDS), source, config, list)
    assert warning is not None
    assert warning.endswith("has 9 tokens, the checkpoint 10; do they match?")
