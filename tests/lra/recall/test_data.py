"""Associative recall: answers, batches, floors, and settings that no sequence can have."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.data.batches import Ragged, ShuffledIndices
from seqarena.common.errors import WrongUseError
from seqarena.lra.recall.data import Recall, RecallBatches, answers, batch
from seqarena.lra.recall.floors import floors
from seqarena.lra.recall.presets import PRESETS
from seqarena.lra.recall.tasks import ASSOCIATIVE_RECALL

SMALL = Recall(lengths=(12, 24), pairs=(2, 5), train=(60, 40), validation=10, test=20, vocabulary=40)


@given(seed=st.integers(0, 2**32), pairs=st.integers(1, 5))
def test_answers_are_what_a_dictionary_gives(seed: int, pairs: int) -> None:
    data = replace(SMALL, lengths=(24,), pairs=(pairs,), train=(6,), seed=seed)
    rows = np.stack([row for row, _ in data._part(0, 0)]).astype(np.int64)
    found = answers(rows, np.full(len(rows), pairs, dtype=np.uint8))
    for row, answer in zip(rows.tolist(), found.tolist(), strict=True):
        known = dict(zip(row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        context = 2 * pairs
        assert answer == [0] * context + [known.get(token, 0) for token in row[context:]]
        assert sum(value > 0 for value in answer) == pairs


def test_a_batch_of_several_lengths_asks_for_every_key(tmp_path: Path) -> None:
    splits, _ = SMALL.load(tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 100, "validation": 20, "test": 40}
    some = batch(splits["train"], np.array([0, 99]))
    assert some.tokens.shape == some.real.shape == (2, 24)
    assert some.real.sum(dim=1).tolist() == [12, 24]
    assert some.is_query.sum(dim=1).tolist() == [2, 5]
    assert some.weight() == 7
    assert some.token_count() == 36
    moved = some.to(torch.device("cpu"))
    assert moved.query_indices is not None
    assert torch.equal(moved.values.flatten()[moved.query_indices], some.values[some.is_query])
    assert some.longer(30).tokens.shape == (2, 30)
    with pytest.raises(ValueError, match="sequences of 24 tokens cannot be padded to 23"):
        some.longer(23)


def test_every_epoch_has_every_training_sequence(tmp_path: Path) -> None:
    train = SMALL.load(tmp_path)[0]["train"]
    order = ShuffledIndices(lengths=train.lengths, batch_size=20, seed=0, pool=1)
    batches = RecallBatches(split=train, order=order)
    seen = torch.cat([batches[step].real.sum(dim=1) for step in range(5)])
    assert seen.sort().values.tolist() == [12] * 60 + [24] * 40


def test_floors_by_hand() -> None:
    # Keys 1 to 4, values 5 to 9. Row 1: the keys come back in their order; row 2: in the other order.
    train = Ragged.of([np.array([1, 5, 2, 9, 1, 0, 2, 0]), np.array([1, 6, 3, 7, 1, 0, 3, 0])], [2, 2])
    test = Ragged.of([np.array([1, 6, 2, 7, 1, 0, 2, 0]), np.array([3, 7, 4, 5, 4, 0, 3, 0])], [2, 2])
    found = floors({"train": train, "test": test}, vocabulary=10)
    assert found == {
        "any value of the sequence": 0.5,
        "first pair not recalled": 0.75,  # both of row 1; of row 2 only the last
        "usual pair at this position": 0.5,  # both of row 1
        "value in training": 0.5,  # 1 -> 6 and 3 -> 7
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pairs": (2,)}, r"the same number of entries, at least 1; found 2, 1 and 2"),
        ({"train": (0, 0)}, r"data.train: expected counts of at least 0 that are not all 0"),
        ({"train": (9, -1)}, r"data.train: expected counts of at least 0"),
        ({"validation": 0}, r"data.validation: expected at least 1, found 0"),
        ({"test": -1}, r"data.test: expected at least 1, found -1"),
        ({"lengths": ()}, r"the same number of entries, at least 1; found 0, 2 and 2"),
        ({"pairs": (2, 1)}, r"data.pairs: expected 2 to 255, .* found 1 pairs in 24 tokens"),
        ({"power": 0.0}, r"data.power: expected a number above 0 and at most 1, found 0.0"),
        ({"lengths": (24, 24), "pairs": (5, 5)}, r"24 tokens with 5 pairs are given twice"),
        ({"lengths": (12, 19)}, r"at least four tokens for each pair; found 5 pairs in 19 tokens"),
        ({"vocabulary": 11}, r"data.vocabulary: expected 12 .* to 65,536, found 11"),
    ],
)
def test_settings_that_no_sequence_can_have_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        replace(SMALL, **wrong).check()  # type: ignore[arg-type]


def test_the_smallest_settings_are_possible(tmp_path: Path) -> None:
    least = Recall(lengths=(8,), pairs=(2,), train=(1,), validation=1, test=1, vocabulary=6)
    splits, _ = least.load(tmp_path)
    assert sorted(splits["train"][0].tolist()[4:]) == [0, 0, 1, 2]


def test_copies_of_training_sequences_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = Recall(lengths=(8,), pairs=(2,), train=(2_000,), validation=1, test=50, vocabulary=6)
    few.load(tmp_path)
    assert "50 of 50 test sequences are also in train; more pairs or" in capsys.readouterr().err
    SMALL.load(tmp_path)
    assert "also in train" not in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["quick", "small"])
def test_generated_data_have_their_bytes(preset: str, tmp_path: Path) -> None:
    run = PRESETS["associative-recall"][preset].run
    assert run.data.load(tmp_path)[1] == ASSOCIATIVE_RECALL.checksums[preset]
