"""No generated set tests what it trains on: splits share no content, of every task that has a generated quick set."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqarena.common.data import corpus
from seqarena.common.data.batches import Ragged
from seqarena.common.data.held_out import SHARES, draw_for_split, split_of
from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import WrongUseError
from seqarena.common.training.runtime import make_accelerator
from seqarena.lra.data import digits
from seqarena.lra.data.listops.language import CLOSE, MIN
from seqarena.lra.pictures.tasks import TASKS as PICTURES
from seqarena.pretraining import data as text
from seqarena.pretraining.data.shards import Corpus, Shard
from seqarena.pretraining.wikitext.sources import lines_of_book
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.summarization.data import wire
from seqarena.vqa.data import VqaData

Contents = Mapping[str, Iterable[object]]
"""Split -> what its examples show."""


def expressions(data: Any, folder: Path) -> Contents:
    """Expressions, the arguments of each operator sorted: none minds their order."""
    splits, _ = data.load(folder)
    return {
        name: [argument_order_left_out(split[n].tolist()) for n in range(len(split))] for name, split in splits.items()
    }


def argument_order_left_out(tokens: list[int]) -> object:
    opened: list[list[Any]] = [[]]
    for token in tokens:
        if MIN <= token < CLOSE:
            opened.append([token])
        elif token == CLOSE:
            operator, *arguments = opened.pop()
            opened[-1].append((operator, *sorted(arguments, key=repr)))
        else:
            opened[-1].append(token)
    return opened[0][0]


def places(data: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Contents:
    """Digits with their height and place."""
    found: list[tuple[int, ...]] = []
    real = digits.draw

    def recorded(drawing: digits.Drawing, size: int) -> Any:
        found.append((drawing.digit, drawing.height, drawing.top, drawing.left))
        return real(drawing, size)

    monkeypatch.setattr(digits, "draw", recorded)
    splits, _ = data.load(folder)
    ends = np.cumsum([len(split) for split in splits.values()]).tolist()
    return {name: found[end - len(splits[name]) : end] for name, end in zip(splits, ends, strict=True)}


def drawn_places(data: Any, folder: Path) -> Contents:
    """Digits with their height and place, of the pictures in colour."""
    parts = zip(("train", "validation", "test"), (data.train, data.held_out, data.test), strict=True)
    return {
        name: [(each.digit, each.height, each.top, each.left) for each in data.drawings(split, count)]
        for split, (name, count) in enumerate(parts)
    }


def markers(data: Any, folder: Path) -> Contents:
    """Places of the two markers."""
    splits, _ = data.load(folder)
    images = {name: {split[n].tobytes() for n in range(len(split))} for name, split in splits.items()}
    missing, known = set().union(*images.values()), {}
    for places, _, image in data._stream():
        known[image.tobytes()] = places
        if missing <= known.keys():
            break
    return {name: [known[image] for image in some] for name, some in images.items()}


def sequences(data: Any, folder: Path) -> Contents:
    """Bytes or pixels, both documents of a pair one by one."""
    splits, _ = data.load(folder)
    return {name: [split[n].tobytes() for n in range(len(split.offsets) - 1)] for name, split in splits.items()}


def facts(data: Any, _folder: Path) -> Contents:
    """The statements of a paragraph, in any order, and the question."""
    splits, _ = data.load()
    return {
        name: [(each.text, *sorted(split.contexts[each.context].split(" . "))) for each in split.questions]
        for name, split in splits.items()
    }


def pairs(data: Any, _folder: Path) -> Contents:
    """Premise and hypothesis."""
    splits, _ = data.load()
    return {name: [(each.premise, each.hypothesis) for each in split] for name, split in splits.items()}


def headlines(data: Any, folder: Path) -> Contents:
    """What ROUGE compares of a headline."""
    tokenizer = word_tokenizer(wire.words())
    splits = data.load(tokenizer, folder)
    parts = {"train": splits.train, "validation": splits.validation.encoded, "test": splits.test.encoded}
    numbers = tokenizer.id("#")
    return {
        name: [tuple(token for token in target(part.targets, n) if token != numbers) for n in range(len(part))]
        for name, part in parts.items()
    }


def target(targets: Ragged, number: int) -> list[int]:
    found: list[int] = targets[number].tolist()
    return found


def regions(data: Any, folder: Path) -> Contents:
    """The boxes of all detectors in a scene."""
    loaded: VqaData = data.load(folder)
    found = {}
    for name, split in loaded.splits.items():
        pictures = np.unique(split.pictures)
        found[name] = [each.tobytes() for each in split.views.read(pictures).features]
    return found


CONTENTS: Mapping[tuple[str, str], tuple[Callable[..., Contents], Mapping[str, int]]] = {
    ("lra", "listops"): (expressions, {"train": 8_000, "validation": 500, "test": 500}),
    ("lra", "text"): (sequences, {}),
    ("lra", "text-legacy"): (sequences, {}),
    ("lra", "retrieval"): (sequences, {}),
    ("lra", "retrieval-imdb"): (sequences, {}),
    ("lra", "image"): (places, {"train": 500, "validation": 100, "test": 100}),
    ("lra", "pathfinder"): (markers, {"train": 500, "validation": 100, "test": 100}),
    ("lra", "pathx"): (markers, {"train": 500, "validation": 100, "test": 100}),
    ("lra", "associative-recall"): (sequences, {}),
    **{("lra", name): (drawn_places, {"train": 500, "held_out": 100, "test": 100}) for name in PICTURES},
    ("qa", "squad1"): (facts, {"generated": 4_000}),
    ("qa", "squad2"): (facts, {"generated": 4_000}),
    ("qa", "mnli"): (pairs, {"generated": 1_000}),
    ("summarization", "wire"): (headlines, {"generated": 1_000}),
    ("summarization", "gigaword"): (headlines, {"generated": 1_000}),
    ("vqa", "scenes"): (regions, {"scenes": 200, "held_out": 100}),
    ("vqa", "vqa2"): (regions, {"generated": 200}),
}
"""The content of examples of each task with a generated quick set, and sizes small enough for a test."""
READ = {"pretraining"}
"""Packages whose quick sets are the bundled book, read in a row: below."""
SAME = {("lra", "text-legacy"): {("validation", "test")}}
"""Splits that are one by the task's definition."""


def test_every_generated_quick_set_is_in_the_table() -> None:
    tasks = {(name, task) for name in PACKAGES if name not in READ for task in find_package(name).tasks}
    assert set(CONTENTS) == tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of prepared data, so that data of two tasks are made once."""
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize(("package", "task"), CONTENTS)
def test_no_two_splits_share_content(package: str, task: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, sizes = CONTENTS[package, task]
    run: Any = find_package(package).presets[task]["quick"].run
    given = [monkeypatch] if contents is places else []
    found = {name: set(some) for name, some in contents(replace(run.data, **sizes), folder, *given).items()}
    assert len(found) >= 3
    assert all(found.values())
    for first, second in itertools.combinations(found, 2):
        if (first, second) not in SAME.get((package, task), set()):
            assert not found[first] & found[second], (first, second)


@pytest.mark.parametrize("name", ["valid", "test"])
def test_a_language_model_is_not_tested_on_what_it_was_trained_on(name: str) -> None:
    """Chapters are in one split. The book repeats verses of its own: a few in a hundred, seldom two in a row."""
    lines = lines_of_book()
    held_out, train = ([*lines(each)] for each in (name, "train"))
    verses, following = set(train), set(itertools.pairwise(train))
    assert np.mean([verse in verses for verse in held_out]) < 0.03
    assert np.mean([pair in following for pair in itertools.pairwise(held_out)]) < 0.01


def test_a_chapter_of_the_book_is_in_one_split() -> None:
    chapters = [tuple(verses) for verses in corpus.chapters()]
    assert len(set(chapters)) == len(chapters)
    numbers = np.arange(len(chapters) + 1)
    shard = Shard(tokens=np.zeros(len(chapters), np.uint16), sentences=numbers, documents=numbers)
    parts = text.split(Corpus(shards=[shard], tokenizer=word_tokenizer([]), manifest={}), text.MaskedText())
    assert (sum(each[0].astype(int) for each in parts.values()) == 1).all()


def test_a_content_belongs_to_one_split_and_shares_are_those_promised() -> None:
    splits = np.array([split_of(f"content {number}") for number in range(4_000)])
    assert np.bincount(splits) / len(splits) == pytest.approx(SHARES, abs=0.02)
    assert split_of("content 7") == splits[7]


def test_an_example_is_drawn_until_its_content_belongs_to_the_split() -> None:
    def draw(attempt: int) -> tuple[str, int]:
        return f"content {attempt}", attempt

    for split in range(3):
        first = draw_for_split(split, draw)
        assert [split_of(f"content {attempt}") == split for attempt in range(first + 1)] == [False] * first + [True]
    other = 1 - min(1, split_of("always the same"))
    with pytest.raises(WrongUseError, match="too few"):
        draw_for_split(other, lambda attempt: ("always the same", attempt))


def test_a_smaller_set_begins_as_a_larger_one() -> None:
    """An example is a function of seed, split and number: how many there are changes none."""
    few, many = (list(wire.pairs(count, 3, 2)) for count in (5, 20))
    assert many[:5] == few


@pytest.mark.extras  # whole sets: a minute
@pytest.mark.parametrize(("package", "task"), CONTENTS)
def test_a_quick_set_is_the_one_that_the_record_names(package: str, task: str, tmp_path: Path) -> None:
    found = find_package(package)
    preset = found.presets[task]["quick"]
    checksum = found.assembly(preset.run, tmp_path, make_accelerator("float32")).data_checksum
    assert found.tasks[task].checksums.get("quick", checksum) == checksum
