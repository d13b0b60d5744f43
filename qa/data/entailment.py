"""Generated inference pairs: quantifiers, negation, kinds of animals and ways of moving, with labels that are proved.

A sentence is a quantifier, a noun, perhaps a "not", and a verb: "some poodles do not run". Every kind is a part of
another one (poodles, dogs, animals), and so is every way (sprint, run, move). A hypothesis follows from a premise if it
holds in every small world where the premise does and every kind has a member, contradicts it if in none, and is
neutral otherwise: all worlds there can be are looked at. Each hypothesis comes with as many premises of one label as of
another, so that it alone says nothing; nor do the words of both, without their order and parts, say all. No
hypothesis is in two splits.
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
"""From the widest kind to the narrowest."""
TRIES = 60
"""Premises that are drawn for a hypothesis before another one is; a few hypotheses follow from nothing near them."""
VERBS = (("move", "run", "sprint"), ("move", "walk", "stroll"), ("speak", "sing", "hum"), ("rest", "sleep", "snore"),
         ("move", "swim", "dive"), ("grow", "bloom", "wilt"), ("shine", "glow", "glitter"))  # fmt: skip
"""Verbs in lines; each verb of a line is a way of doing the one before it."""
Term = tuple[int, int]
"""Line and place."""
Sentence = tuple[str, Term, bool, Term]
"""Quantifier, noun, whether the verb is negated, verb."""
Thing = tuple[frozenset[str], frozenset[str]]
"""The nouns that fit it, and the verbs."""


def text(sentence: Sentence) -> str:
    """Returns a sentence in words."""
    quantifier, noun, negated, verb = sentence
    return f"{quantifier} {NOUNS[noun[0]][noun[1]]} {'do not ' if negated else ''}{VERBS[verb[0]][verb[1]]}"


def relation(premise: Sentence, hypothesis: Sentence) -> Label:
    """Returns how a hypothesis relates to a premise; it depends on what their lines share alone."""
    (_, noun, _, verb), (_, other_noun, _, other_verb) = premise, hypothesis
    noun_line, verb_line = _shared(NOUNS, noun[0], other_noun[0]), _shared(VERBS, verb[0], other_verb[0])
    return _proved(
        (premise[0], (0, noun[1]), premise[2], (0, verb[1])),
        (hypothesis[0], (noun_line, other_noun[1]), hypothesis[2], (verb_line, other_verb[1])),
    )


def _shared(lines: tuple[tuple[str, ...], ...], first: int, second: int) -> int:
    """Returns a line that shares with the first one of all what ``second`` shares with ``first``."""
    return 0 if first == second else 1 if lines[first][0] == lines[second][0] else 2


@functools.cache
def _proved(premise: Sentence, hypothesis: Sentence) -> Label:
    both = premise, hypothesis
    nouns = sorted({NOUNS[line][place] for _, (line, place), _, _ in both})
    verbs = sorted({VERBS[line][place] for *_, (line, place) in both})
    things, worlds = _worlds(tuple(nouns), tuple(verbs))
    found = set(_holds(hypothesis, things, worlds[_holds(premise, things, worlds)]).tolist())
    return "neutral" if len(found) == 2 else "entailment" if found == {True} else "contradiction"


@functools.cache
def _worlds(nouns: tuple[str, ...], verbs: tuple[str, ...]) -> tuple[list[Thing], npt.NDArray[np.int64]]:
    """Returns all things that these words can tell apart, and all worlds in which each noun has a member.

    A world is a set of things; of those that agree in all these words one will do: a number whose bits say which.
    """
    things = list(itertools.product(_possible(nouns, NOUNS), _possible(verbs, VERBS)))
    worlds = np.arange(1 << len(things))
    for noun in nouns:
        worlds = worlds[worlds & sum(1 << n for n, thing in enumerate(things) if noun in thing[0]) != 0]
    return things, worlds


def _holds(sentence: Sentence, things: Sequence[Thing], worlds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns in which worlds a sentence is true."""
    quantifier, (line, place), negated, (way, manner) = sentence
    noun, verb = NOUNS[line][place], VERBS[way][manner]
    wanted = quantifier in ("some", "no")  # what they ask for: a member that does; the others, for one that does not
    those = sum(
        1 << n for n, thing in enumerate(things) if noun in thing[0] and ((verb in thing[1]) != negated) == wanted
    )
    exists: npt.NDArray[np.bool_] = worlds & those != 0
    return exists if quantifier in ("some", "not all") else ~exists


def _possible(names: Sequence[str], lines: tuple[tuple[str, ...], ...]) -> list[frozenset[str]]:
    """Returns the sets of names that one thing can have: with a narrower one it has all the wider ones of its line."""

    def wider(name: str) -> set[str]:
        return {other for line in lines if name in line for other in line[: line.index(name)]}

    subsets = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
    return [frozenset(some) for some in subsets if all(wider(name) & set(names) <= set(some) for name in some)]


def pairs(count: int, seed: int, part: int) -> list[tuple[str, str, Label]]:
    """Returns premises, hypotheses and labels; the same for the same seed and part on any machine.

    ``part`` is the split that all hypotheses belong to.
    """
    draws = Draws(seed, part)
    labels: tuple[Label, ...] = ("entailment", "neutral", "contradiction")
    found: list[tuple[str, str, Label]] = []
    while len(found) < count:
        hypothesis = draw_for_split(part, lambda _: _with_text(_drawn(draws)))
        wanted: dict[Label, list[Sentence]] = {label: [] for label in labels}
        for _ in range(TRIES):
            premise = _near(hypothesis, draws)
            wanted[relation(premise, hypothesis)].append(premise)
            if all(wanted.values()):
                found += [(text(some[0]), text(hypothesis), label) for label, some in wanted.items()]
                break
    return found[:count]


def _with_text(sentence: Sentence) -> tuple[str, Sentence]:
    return text(sentence), sentence


def _drawn(draws: Draws) -> Sentence:
    noun, verb = ((draws.below(len(lines)), draws.below(3)) for lines in (NOUNS, VERBS))
    return draws.one_of(QUANTIFIERS), noun, draws.below(3) == 0, verb


def _near(sentence: Sentence, draws: Draws) -> Sentence:
    """Returns a sentence about the same lines of nouns and verbs, now and then about another one."""
    _, noun, _, verb = sentence
    line = draws.below(len(NOUNS)) if draws.below(8) == 0 else noun[0]
    way = draws.below(len(VERBS)) if draws.below(8) == 0 else verb[0]
    return draws.one_of(QUANTIFIERS), (line, draws.below(3)), draws.below(3) == 0, (way, draws.below(3))


def words() -> list[str]:
    """Returns the words of all sentences, for a vocabulary."""
    frames = [*" ".join(QUANTIFIERS).split(), "do", "not"]
    return sorted({*frames, *itertools.chain(*NOUNS), *itertools.chain(*VERBS)})
