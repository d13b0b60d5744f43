"""What rules score that look at no picture."""

from collections.abc import Mapping

import numpy as np

from vqa.data import Integers, Loaded, Split, Truths


def floors(loaded: Loaded) -> Mapping[str, float]:
    """Returns what the most frequent answer scores, of all questions and of each question's own kind of each partition.

    How often an answer is given is counted on the training questions, one for each person.
    """
    train, test = loaded.splits["train"], loaded.splits["test"]
    count = len(loaded.answers)
    found = {"most frequent answer": np.full(len(test), _likeliest(train, np.ones(len(train), dtype=bool), count))}
    for name, part in test.parts.items():
        of_train = train.parts[name]
        if not part.names:
            continue
        each: Integers = np.array([_likeliest(train, of_train.of == kind, count) for kind in range(len(part.names))])
        found[f"most frequent of its {name.replace('_', ' ')}"] = each[part.of]
    return {name: float(test.scored(guesses).mean()) for name, guesses in found.items()}


def _likeliest(train: Split, inside: Truths, answers: int) -> int:
    """Returns the answer that most people gave to some questions; to none of them, the first."""
    options, people = train.options[inside], train.people[inside]
    known = options >= 0
    return int(np.bincount(options[known], weights=people[known], minlength=answers).argmax())
