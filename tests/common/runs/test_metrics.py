from seqarena.common.runs.metrics import accuracy


def test_accuracy_is_per_example() -> None:
    assert accuracy([1, 2, 3], [1, 0, 3]).tolist() == [1, 0, 1]
