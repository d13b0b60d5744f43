"""The check of shapes that ``make test-extras`` adds to every function of the packages."""

import beartype
import pytest
import torch

from seqarena.common.shapes import Key, Query
from tests.conftest import check


@pytest.mark.parametrize("wrong", ["argument", "axis", "result", "type"])
def test_wrong_shapes_and_types_are_noticed(wrong: str) -> None:
    @check(typechecker=beartype.beartype)
    def as_key(query: Query, key: Key, scale: float = 1.0) -> Key:
        return (query if wrong == "result" else key) * scale

    query, key = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 6, 5)
    if wrong == "axis":
        key = torch.zeros(2, 4, 6, 5)
    with pytest.raises(beartype.roar.BeartypeCallHintViolation):
        as_key(query[0] if wrong == "argument" else query, key, "1" if wrong == "type" else 1.0)


def test_right_shapes_pass_and_every_call_has_its_own_axes() -> None:
    @check(typechecker=beartype.beartype)
    def as_key(query: Query, key: Key) -> Key:
        return key

    for queries, keys in ((4, 6), (1, 2)):
        assert as_key(torch.zeros(2, 3, queries, 5), torch.zeros(2, 3, keys, 5)).shape[2] == keys


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_test_may_turn_the_check_off() -> None:
    @check(typechecker=beartype.beartype)
    def as_key(query: Query, key: Key) -> Key:
        return key

    assert as_key(torch.zeros(3), torch.zeros(4)).shape == (4,)
