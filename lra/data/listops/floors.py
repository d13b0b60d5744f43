"""Scores of trivial rules on ListOps. A model that scores no higher has learned no more than the rule."""

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Ragged
from seqarena.common.data.nearest import FLOOR, label_of_nearest
from seqarena.lra.data import majority_class
from seqarena.lra.data.listops.language import CLASSES, CLOSE, MIN, OPERATORS, SYMBOLS, evaluate

EXAMPLES = 4_000
"""Maximum number of training examples that the rules are fitted on."""


def floors(splits: dict[str, Ragged]) -> dict[str, float]:
    """Returns rule -> accuracy on the test set. The rules are fitted on the training set.

    majority class. root operator: the most frequent value of the root operator. nearest training example: by the number
    of each symbol. depth k, a ceiling of models that see k levels: operators down to level k are evaluated exactly, and
    each deeper one is guessed as its most frequent value.
    """
    train, test = splits["train"], splits["test"]
    some = range(min(len(train), EXAMPLES))
    roots = np.array([_root(train, example) for example in some])
    labels = train.labels[: len(some)]
    by_root = [_mode(labels[roots == root]) for root in range(OPERATORS + 1)]
    guesses = _operator_values(train, some)
    rules = {"root operator": np.array([by_root[_root(test, example)] for example in range(len(test))])}
    for depth in (1, 2, 3):
        rules[f"depth {depth}"] = np.array([evaluate(test[example], depth, guesses) for example in range(len(test))])
    scores = {name: float((guessed == test.labels).mean()) for name, guessed in rules.items()}
    symbols = [_symbols(some) for some in (train, test)]
    scores[FLOOR] = label_of_nearest(symbols[0], train.labels, symbols[1], test.labels)
    return {"majority class": majority_class(splits, EXAMPLES), **scores}


def _symbols(split: Ragged) -> npt.NDArray[np.int64]:
    """Returns the count of each symbol in each expression, (examples, symbols)."""
    return np.stack([np.bincount(split[example], minlength=len(SYMBOLS)) for example in range(len(split))])


def _mode(labels: npt.NDArray[np.uint8]) -> int:
    return int(np.bincount(labels, minlength=CLASSES).argmax())


def _root(split: Ragged, example: int) -> int:
    """Returns the number of an expression's first operator, or OPERATORS for a bare digit."""
    first = int(split[example][0])
    return first - MIN if MIN <= first < CLOSE else OPERATORS


def _operator_values(split: Ragged, examples: range) -> npt.NDArray[np.int64]:
    """Returns the most frequent value of each operator, counted over all levels."""
    counts = np.zeros((OPERATORS, CLASSES), dtype=np.int64)
    for example in examples:
        tokens = split[example]
        opened: list[int] = []
        for index, token in enumerate(tokens.tolist()):
            if MIN <= token < CLOSE:
                opened.append(index)
            elif token == CLOSE:
                start = opened.pop()
                counts[int(tokens[start]) - MIN, evaluate(tokens[start : index + 1])] += 1
    modes: npt.NDArray[np.int64] = counts.argmax(axis=1)
    return modes
