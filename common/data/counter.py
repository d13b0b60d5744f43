"""Random numbers as a function of their purpose: without state to save, independent of the order of draws."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar, no_type_check

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Thing = TypeVar("Thing")
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@no_type_check  # called on arrays by numpy, compiled for scalars by numba
def mix64(x):
    """Returns the finaliser of splitmix64 (Steele, Lea and Flood 2014), a bijection of 64-bit unsigned integers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash64(*keys: int | npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Returns 64 well-mixed bits for each combination of keys, equal on all machines. Integers and arrays broadcast."""
    state = np.zeros(1, dtype=np.uint64)
    for key in keys:
        state = mix64(state + np.asarray(key).astype(np.uint64) + GOLDEN)
    return state


def hashed_on(state: int, *keys: Tensor) -> Tensor:
    """Returns ``hash64`` of the keys that gave ``state`` and of these, on their device; int64."""
    found = torch.full((1,), _signed(state), device=keys[0].device)
    for key in keys:
        found = found + key + _signed(int(GOLDEN))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            found = (found ^ ((found >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)  # logical shift
    return found


def _signed(bits: int) -> int:
    return bits - (bits >> 63 << 64)


def hash_text(text: str) -> int:
    """Returns 64 bits that depend on a text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Draws:
    """A sequence of random numbers, the same for the same keys on any machine."""

    def __init__(self, *keys: int) -> None:
        self.keys = keys
        self.drawn = 0
        self.ahead: list[int] = []

    def below(self, count: int) -> int:
        """Returns a number from 0 to below ``count``."""
        if not self.ahead:
            self.ahead = hash64(*self.keys, self.drawn + np.arange(64))[::-1].tolist()
            self.drawn += 64
        return self.ahead.pop() % count

    def one_of(self, things: Sequence[Thing]) -> Thing:
        """Returns a random element of ``things``."""
        return things[self.below(len(things))]

    def some_of(self, things: Sequence[Thing], count: int) -> list[Thing]:
        """Returns ``count`` different elements of ``things``, in random order."""
        remaining = list(things)
        return [remaining.pop(self.below(len(remaining))) for _ in range(count)]


def permutation(count: int, *keys: int) -> npt.NDArray[np.int64]:
    """Returns the numbers below ``count`` in an order that depends on the keys alone."""
    return np.argsort(hash64(*keys, np.arange(count)), kind="stable")
