"""The ListOps language: symbols, operators, evaluation, and the notation of the official files."""

from typing import no_type_check

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Bytes
from seqarena.common.data.compiled import compiled
from seqarena.common.data.counter import GOLDEN, mix64
from seqarena.common.errors import suggestion

SYMBOLS = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""Symbols by token id. Digits are tokens 1 to 10, and token 0 is padding only."""
MIN, MAX, MED, SM, CLOSE = (SYMBOLS.index(symbol) for symbol in ("[MIN", "[MAX", "[MED", "[SM", "]"))
OPERATORS = 4
CLASSES = 10
DEEPEST = 64
"""Maximum nesting of operators in an expression that is read. Long Range Arena's expressions have 9."""
mix = compiled(inline="always")(mix64)
EXACT = np.zeros(OPERATORS, dtype=np.int64)
"""Default of ``guesses`` in ``evaluate``, unused because every level is evaluated."""


@compiled()
@no_type_check
def apply(operator: int, values: npt.NDArray[np.int64]) -> int:
    """Applies an operator. The median is truncated to an integer; SM is the sum modulo 10."""
    if operator == MIN:
        return values.min()
    if operator == MAX:
        return values.max()
    if operator == SM:
        return values.sum() % 10
    ordered = np.sort(values)
    middle = len(values) // 2
    if len(values) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2


@compiled()
@no_type_check
def evaluate(tokens: Bytes, depth: int = DEEPEST, guesses: npt.NDArray[np.int64] = EXACT) -> int:
    """Returns the value of an expression; operators below level ``depth`` (the root is level 1) are guessed.

    ``guesses`` has one guess per operator. For an invalid expression, returns -1 - the index of the first invalid
    token.
    """
    operators = np.empty(DEEPEST, dtype=np.int64)
    starts = np.empty(DEEPEST, dtype=np.int64)  # stack height at which an open operator's arguments begin
    values = np.empty(len(tokens) + 1, dtype=np.int64)
    level = 0
    height = 0
    for index in range(len(tokens)):
        token = tokens[index]
        if index > 0 and level == 0:
            return -1 - index
        if MIN <= token < CLOSE:
            if level == DEEPEST:
                return -1 - index
            operators[level] = token
            starts[level] = height
            level += 1
        elif token == CLOSE:
            if level == 0 or starts[level - 1] == height:
                return -1 - index
            level -= 1
            operator = operators[level]
            value = apply(operator, values[starts[level] : height]) if level < depth else guesses[operator - MIN]
            height = starts[level]
            values[height] = value
            height += 1
        else:
            values[height] = token - 1
            height += 1
    if level > 0 or height == 0:
        return -1 - len(tokens)
    return values[0]


@compiled()
@no_type_check
def content(tokens: Bytes) -> np.uint64:
    """Returns a 64-bit hash that does not depend on the order of arguments.

    All operators are commutative, so reordered expressions are the same question. The hash of an operator combines the
    operator and the sum of its arguments' hashes.
    """
    sums = np.zeros(DEEPEST + 1, dtype=np.uint64)
    operators = np.zeros(DEEPEST + 1, dtype=np.uint64)
    level = 0
    for token in tokens:
        if MIN <= token < CLOSE:
            level += 1
            operators[level] = np.uint64(token)
            sums[level] = np.uint64(0)
            continue
        bits = np.uint64(token)
        if token == CLOSE:
            bits = mix(sums[level] + operators[level])
            level -= 1
        sums[level] += mix(bits + GOLDEN)
    return sums[0]


def encode(source: str) -> Bytes:
    """Returns the tokens of an expression. Parentheses are optional and ignored.

    Raises:
        ValueError: a symbol is unknown. The message names it and similar ones.
    """
    words = source.replace("(", " ").replace(")", " ").split()
    try:
        return np.array([TOKENS[word] for word in words], dtype=np.uint8)
    except KeyError as error:
        raise ValueError(f"unknown symbol {error.args[0]!r}; {suggestion(str(error.args[0]), TOKENS)}") from error


TOKENS = {symbol: token for token, symbol in enumerate(SYMBOLS) if token}
