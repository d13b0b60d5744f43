"""A small world that is asked about, in SQuAD's own format: who lives where, does what, bought which thing and when.

A paragraph states what is asked of one person of another one too, in the same words, so that neither the kind of answer
nor its neighbourhood gives it away; one sentence shares the question's name and verb and answers nothing. Of an
unanswerable question the fact is stated of the other person alone. What a paragraph says settles the order of its
sentences, and which split it is in: no two splits state the same facts.
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
    """A kind of fact: how it is stated, asked, and mentioned without being answered."""

    statement: str
    question: str
    answers: tuple[tuple[str, ...], ...]
    """Words for the blank, one of each list."""
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
    """Returns ``count`` questions as the official JSON has them; a third of them without an answer if there are such.

    The same for the same seed and split on any machine.
    """
    kind = SPLITS.index(split)

    def drawn(number: int, attempt: int) -> tuple[str, dict[str, Any]]:
        return _paragraph(f"{split}-{number}", Draws(seed, kind, number, attempt), unanswerable)

    paragraphs = [draw_for_split(kind, partial(drawn, number)) for number in range(count)]
    version = "v2.0" if unanswerable else "1.1"
    return {"version": version, "data": [{"title": "a small world", "paragraphs": paragraphs}]}


def _paragraph(identifier: str, draws: Draws, unanswerable: bool) -> tuple[str, dict[str, Any]]:
    """Returns the text of a paragraph, and the paragraph with its question."""
    name, other = draws.some_of(NAMES, 2)
    relation = draws.one_of(RELATIONS)
    silent = unanswerable and draws.below(3) == 0
    answer, wrong = (" ".join(words) for words in draws.some_of(list(itertools.product(*relation.answers)), 2))
    fact = relation.statement.format(name=name, answer=answer)
    sentences = [
        *([] if silent else [fact]),
        relation.statement.format(name=other, answer=wrong),
        relation.distractor.format(name=name, other=other),
    ]
    context = " ".join(Draws(hash_text(" ".join(sentences))).some_of(sentences, len(sentences)))
    question = {
        "id": identifier,
        "question": relation.question.format(name=name),
        "answers": [] if silent else [_answer(context, fact, answer)],
        **({"is_impossible": silent} if unanswerable else {}),
    }
    return context, {"context": context, "qas": [question]}


def _answer(context: str, statement: str, answer: str) -> dict[str, str | int]:
    return {"text": answer, "answer_start": context.index(statement) + statement.index(answer, statement.index(" "))}


def right_kind(context: str, question: str) -> list[str]:
    """Returns what in a paragraph could answer a question, of whomever it is said."""
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
