"""Generated inference pairs with quantifiers, negation and hierarchies of nouns and verbs, and with proved labels.

A sentence is a quantifier, a noun, an optional "not", and a verb: "some poodles do not run". Nouns form hierarchies
(poodles, dogs, animals), and so do verbs (sprint, run, move). Labels are proved by enumerating all small worlds in
which every noun has a member. The label is entailment if the hypothesis is true in all worlds where the premise is,
contradiction if in none of them, and neutral otherwise. Each hypothesis has one premise of every label, so that the
hypothesis alone does not predict the label; the bag of words of both does not determine it either. No hypothesis of a
test set is in training. Validation has premises of its own, but hypotheses of training.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from seqarena.common.data.counter import Draws
from seqarena.common.data.held_out import draw_for_split

Label = Literal["entailment", "neutral", "contradiction"]
QUANTIFIERS = ("all", "some", "no", "not all")
NOUNS = (("animals", "dogs", "poodles"), ("animals", "cats", "siamese"), ("people", "artists", "painters"),
         ("people", "farmers", "shepherds"), ("plants", "trees", "oaks"), ("plants", "flowers", "roses"),
         ("animals", "birds", "owls"), ("animals", "fish", "trout"), ("people", "athletes", "runners"),
         ("people", "children", "toddlers"), ("vehicles", "cars", "taxis"),
         ("vehicles", "boats", "ferries"))  # fmt: skip
"""Hierarchies of nouns, each from the most general to the most specific."""
TRIES = 60
"""Number of premises drawn per hypothesis before it is discarded. Some hypotheses lack premises of every label."""
VERBS = (("move", "run", "sprint"), ("move", "walk", "stroll"), ("speak", "sing", "hum"), ("rest", "sleep", "snore"),
         ("move", "swim", "dive"), ("grow", "bloom", "wilt"), ("shine", "glow", "glitter"))  # fmt: skip
"""Hierarchies of verbs, each from the most general to the most specific."""
Term = tuple[int, int]
"""Index of a hierarchy, and index in it."""
Sentence = tuple[str, Term, bool, Term]
"""Quantifier, noun, whether the verb is negated, verb."""
Thing = tuple[frozenset[str], frozenset[str]]
"""The nouns and the verbs that apply to a thing."""


def text(sentence: Sentence) -> str:
    """Returns a sentence in words."""
    quantifier, noun, negated, verb = sentence
    return f"{quantifier} {NOUNS[noun[0]][noun[1]]} {'do not ' if negated else ''}{VERBS[verb[0]][verb[1]]}"


def relation(premise: Sentence, hypothesis: Sentence) -> Label:
    """Returns the label of a pair. It depends only on positions in the hierarchies and on words that these share."""
    (_, noun, _, verb), (_, other_noun, _, other_verb) = premise, hypothesis
    noun_line, verb_line = (
        _representative_line(NOUNS, noun[0], other_noun[0]),
        _representative_line(VERBS, verb[0], other_verb[0]),
    )
    return _prove(
        (premise[0], (0, noun[1]), premise[2], (0, verb[1])),
        (hypothesis[0], (noun_line, other_noun[1]), hypothesis[2], (verb_line, other_verb[1])),
    )


def _representative_line(lines: tuple[tuple[str, ...], ...], first: int, second: int) -> int:
    """Maps hierarchy ``second`` to one of three representatives, as ``first`` is mapped to hierarchy 0.

    0: the same hierarchy; 1: another one with the same most general word; 2: another one without.
    """
    return 0 if first == second else 1 if lines[first][0] == lines[second][0] else 2


@functools.cache
def _prove(premise: Sentence, hypothesis: Sentence) -> Label:
    both = premise, hypothesis
    nouns = sorted({NOUNS[line][index] for _, (line, index), _, _ in both})
    verbs = sorted({VERBS[line][index] for *_, (line, index) in both})
    things, worlds = _worlds(tuple(nouns), tuple(verbs))
    found = set(_holds(hypothesis, things, worlds[_holds(premise, things, worlds)]).tolist())
    return "neutral" if len(found) == 2 else "entailment" if found == {True} else "contradiction"


@functools.cache
def _worlds(nouns: tuple[str, ...], verbs: tuple[str, ...]) -> tuple[list[Thing], npt.NDArray[np.int64]]:
    """Returns all things that differ in these words, and all worlds in which each noun has a member.

    A world is a set of things, as a bit mask. Things that agree in all these words are represented by one.
    """
    things = list(itertools.product(_possible(nouns, NOUNS), _possible(verbs, VERBS)))
    worlds = np.arange(1 << len(things))
    for noun in nouns:
        worlds = worlds[worlds & sum(1 << n for n, thing in enumerate(things) if noun in thing[0]) != 0]
    return things, worlds


def _holds(sentence: Sentence, things: Sequence[Thing], worlds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns whether a sentence is true, for each world."""
    quantifier, (noun_line, noun_index), negated, (verb_line, verb_index) = sentence
    noun, verb = NOUNS[noun_line][noun_index], VERBS[verb_line][verb_index]
    positive = quantifier in ("some", "no")  # they quantify over members that do; the others, over those that do not
    witnesses = sum(
        1 << n for n, thing in enumerate(things) if noun in thing[0] and ((verb in thing[1]) != negated) == positive
    )
    exists: npt.NDArray[np.bool_] = worlds & witnesses != 0
    return exists if quantifier in ("some", "not all") else ~exists


def _possible(names: Sequence[str], lines: tuple[tuple[str, ...], ...]) -> list[frozenset[str]]:
    """Returns the possible sets of words for one thing. A specific word implies the more general ones of its line."""

    def wider(name: str) -> set[str]:
        return {other for line in lines if name in line for other in line[: line.index(name)]}

    subsets = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
    return [frozenset(some) for some in subsets if all(wider(name) & set(names) <= set(some) for name in some)]


def pairs(count: int, seed: int, part: int) -> list[tuple[str, str, Label]]:
    """Returns premises, hypotheses and labels. They depend only on seed and part.

    ``part`` is the number of the split to which all hypotheses belong.
    """
    draws = Draws(seed, part)
    labels: tuple[Label, ...] = ("entailment", "neutral", "contradiction")
    found: list[tuple[str, str, Label]] = []
    while len(found) < count:
        hypothesis = draw_for_split(part, lambda _: _with_text(_draw_sentence(draws)))
        wanted: dict[Label, list[Sentence]] = {label: [] for label in labels}
        for _ in range(TRIES):
            premise = _draw_premise(hypothesis, draws)
            wanted[relation(premise, hypothesis)].append(premise)
            if all(wanted.values()):
                found += [(text(some[0]), text(hypothesis), label) for label, some in wanted.items()]
                break
    return found[:count]


def _with_text(sentence: Sentence) -> tuple[str, Sentence]:
    return text(sentence), sentence


def _draw_sentence(draws: Draws) -> Sentence:
    noun, verb = ((draws.below(len(lines)), draws.below(3)) for lines in (NOUNS, VERBS))
    return draws.one_of(QUANTIFIERS), noun, draws.below(3) == 0, verb


def _draw_premise(sentence: Sentence, draws: Draws) -> Sentence:
    """Draws a sentence from the hierarchies of another one; each is replaced with probability 1/8."""
    _, noun, _, verb = sentence
    noun_line = draws.below(len(NOUNS)) if draws.below(8) == 0 else noun[0]
    verb_line = draws.below(len(VERBS)) if draws.below(8) == 0 else verb[0]
    return draws.one_of(QUANTIFIERS), (noun_line, draws.below(3)), draws.below(3) == 0, (verb_line, draws.below(3))


def words() -> list[str]:
    """Returns the words of all sentences, for a vocabulary."""
    frames = [*" ".join(QUANTIFIERS).split(), "do", "not"]
    return sorted({*frames, *itertools.chain(*NOUNS), *itertools.chain(*VERBS)})
