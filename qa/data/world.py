"""Generated questions about a small world in SQuAD's format: where people live, their jobs, purchases and departures.

Every paragraph has three sentences of five words. One states the requested fact in the same words for a second person,
so that neither the type of an answer nor its neighbouring words identify it. The third sentence is a distractor.

1.1: the distractor has the question's name and verb but no answer. 2.0: it states a fact of another kind about a third
person. In an unanswerable question, the question's person and the third person are swapped. Paragraphs with and without
an answer therefore have the same words equally often; only the combination of name and fact tells them apart.

The content of a paragraph determines the order of its sentences and its split, so that no paragraph is in two splits.
"""

import itertools
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from seqarena.common.data.counter import Draws, hash_text
from seqarena.common.data.held_out import draw_for_split

NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karla", "Leo",
         "Marta", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tilda", "Victor")  # fmt: skip
TOWNS = ("Aachen", "Bergen", "Cork", "Delft", "Essen", "Florence", "Ghent", "Havana", "Izmir", "Jena", "Kyoto", "Lima",
         "Malmo", "Nice", "Oslo", "Porto")  # fmt: skip
JOBS = ("baker", "cook", "doctor", "farmer", "lawyer", "nurse", "painter", "pilot", "sailor", "singer", "tailor",
        "teacher", "waiter", "writer")  # fmt: skip
COLOURS = ("black", "blue", "brown", "green", "grey", "red", "white", "yellow")
THINGS = ("bag", "bike", "boat", "chair", "clock", "coat", "hat", "lamp", "piano", "ring", "rug", "table")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SPLITS = ("train", "dev")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Templates of one kind of fact: its statement, its question, and the distractor of 1.1, without an answer."""

    statement: str
    question: str
    answers: tuple[tuple[str, ...], ...]
    """Words of an answer: one from each list."""
    distractor: str


RELATIONS: tuple[Relation, ...] = (
    Relation(statement="{name} lives in {answer} .", question="Where does {name} live ?", answers=(TOWNS,),
             distractor="{name} saw {other} live ."),
    Relation(statement="{name} is a {answer} .", question="What does {name} do ?", answers=(JOBS,),
             distractor="{name} saw {other} do ."),
    Relation(statement="{name} bought {answer} .", question="What did {name} buy ?", answers=(COLOURS, THINGS),
             distractor="{name} saw {other} buy ."),
    Relation(statement="{name} left on {answer} .", question="When did {name} leave ?", answers=(DAYS,),
             distractor="{name} saw {other} leave ."),
)  # fmt: skip


def squad(count: int, seed: int, split: Literal["train", "dev"], *, unanswerable: bool) -> dict[str, Any]:
    """Returns ``count`` questions in the official JSON format. With ``unanswerable``, a third of them have no answer.

    They depend only on seed, split and settings.
    """
    kind = SPLITS.index(split)

    def draw(number: int, attempt: int) -> tuple[str, dict[str, Any]]:
        return _paragraph(f"{split}-{number}", Draws(seed, kind, number, attempt), unanswerable)

    paragraphs = [draw_for_split(kind, partial(draw, number)) for number in range(count)]
    version = "v2.0" if unanswerable else "1.1"
    return {"version": version, "data": [{"title": "a small world", "paragraphs": paragraphs}]}


def _paragraph(identifier: str, draws: Draws, unanswerable: bool) -> tuple[str, dict[str, Any]]:
    """Returns the text of a paragraph, and the paragraph's JSON with its question."""
    name, other = draws.some_of(NAMES, 2)
    relation = draws.one_of(RELATIONS)
    no_answer = unanswerable and draws.below(3) == 0
    answer, wrong = (" ".join(words) for words in draws.some_of(list(itertools.product(*relation.answers)), 2))
    if unanswerable:
        third = draws.one_of([each for each in NAMES if each not in (name, other)])
        another = draws.one_of([each for each in RELATIONS if each is not relation])
        detail = " ".join(map(draws.one_of, another.answers))
        stated, unrelated = (third, name) if no_answer else (name, third)
        distractor = another.statement.format(name=unrelated, answer=detail)
    else:
        stated, distractor = name, relation.distractor.format(name=name, other=other)
    fact = relation.statement.format(name=stated, answer=answer)
    sentences = [fact, relation.statement.format(name=other, answer=wrong), distractor]
    context = " ".join(Draws(hash_text(" ".join(sentences))).some_of(sentences, len(sentences)))
    question = {
        "id": identifier,
        "question": relation.question.format(name=name),
        "answers": [] if no_answer else [_answer(context, fact, answer)],
        **({"is_impossible": no_answer} if unanswerable else {}),
    }
    return context, {"context": context, "qas": [question]}


def _answer(context: str, statement: str, answer: str) -> dict[str, str | int]:
    return {"text": answer, "answer_start": context.index(statement) + statement.index(answer, statement.index(" "))}


def answers_of_right_kind(context: str, question: str) -> list[str]:
    """Returns all answers of the right kind in a paragraph, whichever person they are about."""
    relation = next(
        each for each in RELATIONS if re.fullmatch(each.question.format(name=r"\w+").replace("?", r"\?"), question)
    )
    before = relation.statement.split("{answer}")[0].format(name=r"\w+")
    return re.findall(rf"{before}([\w ]+?) \.", context)


def words() -> list[str]:
    """Returns the words of this world, for a vocabulary."""
    frames = [text.format(name="", answer="", other="") for each in RELATIONS
              for text in (each.statement, each.question, each.distractor)]  # fmt: skip
    named = itertools.chain(NAMES, TOWNS, JOBS, COLOURS, THINGS, DAYS)
    return sorted({word.lower() for word in itertools.chain(named, *(frame.split() for frame in frames))})
