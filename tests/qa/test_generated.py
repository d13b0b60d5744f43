"""The generated world and the generated inferences: right answers, nothing given away, the same everywhere."""

import itertools
from collections import Counter

import pytest

from seqarena.common.data.counter import Draws
from seqarena.qa.data import entailment, world
from seqarena.qa.data.entailment import NOUNS, QUANTIFIERS, VERBS, Sentence, relation
from seqarena.qa.data.mnli import LABELS, Mnli, Pair
from seqarena.qa.data.squad import Squad, from_json
from seqarena.qa.floors import pair_floors, squad_floors


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_the_world_answers_its_questions(version: str) -> None:
    questions = from_json(world.squad(200, 3, "train", unanswerable=version == "2.0"), version, "here")  # type: ignore[arg-type]
    assert len(questions) == 200
    unanswered = 0
    for each in questions.questions:
        context = questions.contexts[each.context]
        name = next(name for name in world.NAMES if name in each.text)
        kind = next(one for one in world.RELATIONS if one.question.format(name=name) == each.text)
        stated = [sentence for sentence in context.split(" . ") if sentence.split()[0] == name]
        frame = kind.statement.split("{answer}")[0].format(name=name)
        facts = [sentence.removesuffix(" .").removeprefix(frame) for sentence in stated if sentence.startswith(frame)]
        assert facts == [text for text, _ in each.answers]
        candidates = world.answers_of_right_kind(context, each.text)
        assert set(candidates) >= {text for text, _ in each.answers}
        assert len(candidates) == 2  # of another person too
        unanswered += not each.answers
    assert (0.2 < unanswered / 200 < 0.45) if version == "2.0" else unanswered == 0


def test_neither_lengths_nor_words_tell_whether_there_is_an_answer() -> None:
    questions = from_json(world.squad(6_000, 0, "train", unanswerable=True), "2.0", "here")
    shapes: dict[bool, set[tuple[object, ...]]] = {True: set(), False: set()}
    total, unanswered = Counter[str](), Counter[str]()
    for each in questions.questions:
        context = questions.contexts[each.context]
        sentences = [set(sentence.split()) for sentence in context.split(" . ")]
        asked = set(each.text.split())
        repeated = Counter(word for word in context.split() if word in world.NAMES)
        most_shared = max(len(asked & sentence) for sentence in sentences)
        shapes[bool(each.answers)].add((len(sentences), len(context.split()), *sorted(repeated.values()), most_shared))
        counts = [f"{count} x {word}" for word, count in Counter(context.split()).items()]
        words = [*counts, *(f"asked {word}" for word in asked), *(f"again {word}" for word in asked & {*repeated})]
        total.update(words)
        unanswered.update([] if each.answers else words)
    assert shapes[True] == shapes[False] == {(3, 15, 1, 1, 1, 1)}
    share = unanswered["asked ?"] / len(questions)
    for word, count in total.items():
        assert abs(unanswered[word] - count * share) < 4 * (count * share * (1 - share)) ** 0.5 + 1, word


def test_the_same_everywhere_and_other_ones_elsewhere() -> None:
    one = world.squad(40, 0, "train", unanswerable=True)
    assert one == world.squad(40, 0, "train", unanswerable=True)
    assert one != world.squad(40, 1, "train", unanswerable=True) != world.squad(40, 0, "dev", unanswerable=True)
    assert entailment.pairs(30, 0, 0) == entailment.pairs(30, 0, 0) != entailment.pairs(30, 0, 1)


def test_words_cover_the_text() -> None:
    known = set(world.words())
    paragraphs = world.squad(80, 0, "dev", unanswerable=True)["data"][0]["paragraphs"]
    texts = [paragraph["context"] for paragraph in paragraphs] + [
        each["question"] for p in paragraphs for each in p["qas"]
    ]
    assert {word for text in texts for word in text.lower().split()} <= known
    pairs = entailment.pairs(300, 0, 0)
    assert {word for one, two, _ in pairs for word in f"{one} {two}".split()} <= set(entailment.words())


def judged(premise: Sentence, hypothesis: Sentence) -> str:
    """By looking at every world of up to two things of each sort, one by one."""
    names = sorted({NOUNS[each[1][0]][each[1][1]] for each in (premise, hypothesis)})
    ways = sorted({VERBS[each[3][0]][each[3][1]] for each in (premise, hypothesis)})
    sorts = []
    for has in itertools.product([False, True], repeat=len(names) + len(ways)):
        thing = dict(zip([*names, *ways], has, strict=True))
        chains = (*NOUNS, *VERBS)
        whole = all(
            thing[wide] or not thing[narrow]
            for line in chains
            for wide, narrow in itertools.combinations([word for word in line if word in thing], 2)
        )
        sorts += [thing] if whole and any(thing[name] for name in names) else []
    outcomes = set()
    for chosen in itertools.product([False, True], repeat=len(sorts)):
        there = [thing for thing, is_there in zip(sorts, chosen, strict=True) if is_there]
        if all(any(thing[name] for thing in there) for name in names) and true(premise, there):
            outcomes.add(true(hypothesis, there))
    return "neutral" if len(outcomes) == 2 else "entailment" if outcomes == {True} else "contradiction"


def true(sentence: Sentence, there: list[dict[str, bool]]) -> bool:
    quantifier, (line, place), negated, (way, manner) = sentence
    does = [thing[VERBS[way][manner]] is not negated for thing in there if thing[NOUNS[line][place]]]
    return {"all": all(does), "some": any(does), "no": not any(does), "not all": not all(does)}[quantifier]


def test_labels_are_proved() -> None:
    draws = Draws(5)
    seen: Counter[str] = Counter()
    for _ in range(60):
        hypothesis = entailment._draw_sentence(draws)
        premise = entailment._draw_premise(hypothesis, draws)
        label = relation(premise, hypothesis)
        assert label == judged(premise, hypothesis), (entailment.text(premise), entailment.text(hypothesis))
        seen[label] += 1
    assert set(seen) == set(LABELS)


@pytest.mark.parametrize(
    ("premise", "hypothesis", "label"),
    [
        (("all", (0, 1), False, (0, 2)), ("some", (0, 2), False, (0, 0)), "entailment"),  # dogs sprint, poodles move
        (("no", (0, 0), False, (0, 0)), ("no", (0, 2), False, (0, 2)), "entailment"),
        (("some", (0, 1), False, (0, 1)), ("all", (0, 1), False, (0, 1)), "neutral"),
        (("not all", (0, 1), False, (0, 1)), ("all", (0, 1), False, (0, 1)), "contradiction"),
        (("all", (0, 1), True, (0, 0)), ("no", (0, 1), False, (0, 1)), "entailment"),
        (("all", (0, 1), False, (0, 1)), ("all", (1, 1), False, (0, 1)), "neutral"),
    ],
)
def test_some_labels_anyone_can_check(premise: Sentence, hypothesis: Sentence, label: str) -> None:
    assert set(QUANTIFIERS) >= {premise[0], hypothesis[0]}
    assert relation(premise, hypothesis) == label


def test_nothing_is_given_away() -> None:
    """The hypothesis alone says nothing at all; the words of both far from all."""
    splits, _ = Mnli(generated=6_000, held_out=0.05).load()
    labels = Counter(each.label for each in splits["matched"])
    assert max(labels.values()) - min(labels.values()) <= 1
    found = pair_floors(splits["train"], splits["matched"])
    assert found["words of the hypothesis alone"] < 0.36
    assert found["words of both"] < 0.55


def test_floors_say_what_their_rules_score() -> None:
    leaky = [Pair(premise="x", hypothesis=f"{label} sign", label=number) for number, label in enumerate(LABELS)] * 5
    assert pair_floors(leaky, leaky)["words of the hypothesis alone"] == 1.0
    assert pair_floors(leaky, leaky)["most frequent label"] == pytest.approx(1 / 3)
    data = Squad(version="2.0", generated=400, held_out=0.1)
    splits, _ = data.load()
    found = squad_floors(splits["train"], splits["test"], unanswerable=True, generated=True)
    assert set(found) == {
        "first sentence", "sentence with most words of the question", "no answer", "any answer of the right kind",
        "nearest training example",
    }  # fmt: skip
    assert found["no answer"] == pytest.approx(sum(not each.answers for each in splits["test"].questions) / 40)


def test_the_nearest_training_question_lends_its_answer() -> None:
    """Learned by heart all is right; of held-out questions little is, with nothing to copy where there is no answer."""
    for version, unanswerable in (("1.1", False), ("2.0", True)):
        splits, _ = Squad(version=version, generated=2_000, held_out=0.1).load()  # type: ignore[arg-type]
        train, test = splits["train"], splits["test"]
        again = squad_floors(train, train.some(train.questions[:100]), unanswerable=unanswerable, generated=True)
        apart = squad_floors(train, test, unanswerable=unanswerable, generated=True)
        assert again["nearest training example"] == 1.0
        assert apart["nearest training example"] < 0.6
