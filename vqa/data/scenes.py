"""Questions about generated scenes with three detectors, each of which recognises only shape, colour or material.

A scene has a few objects, each with a colour, a shape, a material and a position. The primary detector (A) recognises
shapes, B colours, C materials; all measure positions with noise. A misses some objects and uses its remaining boxes for
objects it found. Attention from A's boxes must therefore not explain away the evidence of B and C for missed objects.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from seqarena.common.data.counter import hash64
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.vqa.data import PEOPLE, SHARE, Arrays, Data, Part, Split, VqaData
from seqarena.vqa.data.world import (
    ATTRIBUTES,
    COLOURS,
    MATERIALS,
    SHAPES,
    Layout,
    Numbers,
    SceneContent,
    Truths,
    draw,
    normal,
    uniform,
)

Kind = Literal["material", "shape", "there", "side", "count"]
TEXTS: Mapping[Kind, str] = {
    "material": "what material is the {} thing",
    "shape": "what shape is the {} thing",
    "there": "is there a {} thing",
    "side": "is the {} thing left of the {} thing",
    "count": "how many {} things",
}
MOST = 4
"""Maximum count in the answers. Larger counts are clipped to it."""
ANSWERS = (*MATERIALS, *SHAPES, "yes", "no", *map(str, range(MOST + 1)))
FIRST_SHAPE, YES, NO, ZERO = len(MATERIALS), ANSWERS.index("yes"), ANSWERS.index("no"), ANSWERS.index("0")
WORDS = ("", *sorted({word for text in TEXTS.values() for word in text.split()} - {"{}"}), *COLOURS, *MATERIALS)
LENGTH = 9
SPLITS = ("train", "validation", "test")
VERSION = 1
TRUTH = 85
"""Per cent of annotators who give the true answer. The others give the next answer in the list."""


@dataclass(frozen=True, kw_only=True)
class Scenes(Layout, Data):
    """Config of the scenes, with one question of each kind per scene."""

    scenes: int = 20_000
    """Number of training scenes."""
    held_out: int = 3_400
    """Number of test scenes. Validation has a quarter as many."""
    kinds: tuple[Kind, ...] = ("material", "shape", "there")
    """Kinds of questions. material needs B and C; shape needs A and B; there needs B; side: is one thing left of
    another (B); count: number of things of a material (C, without counting duplicate boxes)."""
    noise: float = 0.3
    """Standard deviation of the noise of a box's features."""
    jitter: float = 0.03
    """Standard deviation of the noise of a box's position, as a fraction of the picture."""
    width: int = 18
    """Number of features per box, without its position."""

    @property
    def longest(self) -> int:
        """Maximum number of words of a question of these kinds."""
        return max(len(TEXTS[kind].split()) for kind in self.kinds)

    @property
    def answers(self) -> Sequence[str]:
        """The answer list: materials, shapes, yes and no, and counts if there are questions of kind count."""
        return ANSWERS if "count" in self.kinds else ANSWERS[:ZERO]

    @property
    def views(self) -> tuple[int, int, int]:
        """Number of detectors (3), of boxes per detector, and of features per box."""
        return len(ATTRIBUTES), self.boxes, self.width

    @property
    def aligned_views(self) -> bool:
        """Whether B and C use A's boxes."""
        return self.aligned

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if not 1 <= self.objects <= self.boxes - 1 - self.background or not self.objects < self.colours <= len(COLOURS):
            raise WrongUseError(
                f"expected data.boxes above data.objects + data.background, and data.colours above data.objects and at "
                f"most {len(COLOURS)}; found boxes {self.boxes}, objects {self.objects}, background {self.background}, "
                f"colours {self.colours}"
            )
        if not (0 < self.recall <= 1 and 0 < self.secondary_recall <= 1):
            raise WrongUseError(
                "data.recall, data.secondary_recall: expected fractions above 0 and up to 1, found "
                f"{self.recall} and {self.secondary_recall}"
            )
        if not self.kinds or len(set(self.kinds)) < len(self.kinds) or ("side" in self.kinds and self.objects < 2):
            raise WrongUseError("data.kinds: expected distinct kinds, and for side at least two data.objects")
        if min(self.scenes, self.held_out // 4, self.width) < 1 or min(self.noise, self.jitter, self.background) < 0:
            raise WrongUseError(
                "expected data.scenes and data.width of at least 1, data.held_out of at least 4, and data.noise, "
                "data.jitter and data.background of at least 0"
            )

    def load(self, _folder: Path) -> VqaData:
        """Returns the splits and their checksum. They are generated each time, within a second."""
        self.check()
        counts = (self.scenes, self.held_out // 4, self.held_out)
        splits = {
            name: self.split(number, count) for number, (name, count) in enumerate(zip(SPLITS, counts, strict=True))
        }
        digest = hashlib.sha256(f"{VERSION} {fingerprint(self)}".encode())
        for split in splits.values():
            assert isinstance(split.views, Arrays)
            asked = (split.words, split.options, split.people, split.pictures, split.parts["kind"].of, split.views.saw)
            for array in (*asked, *split.groups.values()):
                digest.update(np.ascontiguousarray(array.astype("<i8")).data)
            for seen in (split.views.features, split.views.centres):
                digest.update(np.ascontiguousarray(seen.astype("<f2")).data)
        return VqaData(splits=splits, answers=self.answers, words=WORDS, checksum=digest.hexdigest())

    def split(self, number: int, count: int) -> Split:
        """Returns the questions about ``count`` scenes."""
        drawn = draw(self, number, count)
        features, centres = self._boxes(drawn, number)
        asked = [self._question(kind, drawn, number) for kind in self.kinds]
        words, truth, other, missed, seen = (np.stack(each, axis=1).reshape(count * len(asked), *each[0].shape[1:])
                                             for each in zip(*asked, strict=True))  # fmt: skip
        question = np.arange(len(words))
        wrong = hash64(self.seed, number, 9, question[:, None], np.arange(PEOPLE)) % np.uint64(100) >= TRUTH
        people = np.stack([(~wrong).sum(axis=1), wrong.sum(axis=1)], axis=1)
        return Split(
            ids=question,
            words=words[:, : self.longest],
            pictures=question // len(asked),
            options=np.stack([truth, other], axis=1),
            people=people,
            scores=np.minimum(SHARE * people, 1.0),
            views=Arrays(features=features, centres=centres, saw=_seen_by_primary(drawn)),
            parts={"kind": Part(names=self.kinds, of=question % len(asked))},
            groups={"material_missed": missed, "material_seen": seen},
            pairs=np.zeros((0, 2), dtype=np.int64),
        )

    def _question(
        self, kind: Kind, drawn: SceneContent, number: int
    ) -> tuple[Numbers, Numbers, Numbers, Truths, Truths]:
        """Returns per scene: words, true answer, wrong answer, and whether A missed or found the question's object."""
        count = len(drawn.places)
        scene = np.arange(count)
        flips = (hash64(self.seed, number, 50 + list(TEXTS).index(kind), scene) % np.uint64(2)).astype(np.int64)
        first = {"material": 0, "shape": 1}.get(kind, 2)
        colour = (
            np.where(flips == 1, drawn.asked[:, 3], drawn.asked[:, 2]) if kind == "there" else drawn.asked[:, first]
        )
        thing = (drawn.attributes[1] == colour[:, None]).argmax(axis=1)
        nothing = np.zeros(count, dtype=bool)
        missed = seen = nothing
        names: Numbers = np.zeros((count, 0), dtype=np.int64)
        if kind == "material":
            truth = drawn.attributes[2][scene, thing]
            other = (truth + 1) % len(MATERIALS)
            known = drawn.found[1][scene, thing] & drawn.found[2][scene, thing]  # else the answer cannot be inferred
            missed, seen = known & ~drawn.found[0][scene, thing], known & drawn.found[0][scene, thing]
            names = _word(COLOURS, colour)
        elif kind == "shape":
            shape = drawn.attributes[0][scene, thing]
            truth, other = FIRST_SHAPE + shape, FIRST_SHAPE + (shape + 1) % len(SHAPES)
            names = _word(COLOURS, colour)
        elif kind == "there":
            truth = np.where(flips == 1, NO, YES)
            other = YES + NO - truth
            names = _word(COLOURS, colour)
        elif kind == "side":
            ends = drawn.asked[:, [0, 1]]
            things = [(drawn.attributes[1] == ends[:, [each]]).argmax(axis=1) for each in (0, 1)]
            left, right = (drawn.places[scene, each, 0] for each in things)
            truth = np.where(left < right, YES, NO)
            other = YES + NO - truth
            names = np.concatenate([_word(COLOURS, ends[:, 0]), _word(COLOURS, ends[:, 1])], axis=1)
        else:
            material = (hash64(self.seed, number, 60, scene) % np.uint64(len(MATERIALS))).astype(np.int64)
            many = np.minimum((drawn.attributes[2] == material[:, None]).sum(axis=1), MOST)
            truth, other = ZERO + many, ZERO + (many + 1) % (MOST + 1)
            names = _word(MATERIALS, material)
        return _sentence(kind, names), truth, other, missed, seen

    def _boxes(self, drawn: SceneContent, number: int) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]:
        """Returns features and centres of every box."""
        scene = np.arange(len(drawn.places))[:, None]
        features, centres = [], []
        for view, names in enumerate(ATTRIBUTES):
            directions = normal(self.seed, 99, view, np.arange(len(names) + 1)[:, None], np.arange(self.width))
            thing = drawn.boxes[view]  # object of each box; the number of objects stands for none
            is_thing = thing < self.objects
            safe = np.where(is_thing, thing, 0)
            attribute = np.where(is_thing, drawn.attributes[view][scene, safe], len(names))
            box = np.arange(self.boxes)[:, None]
            own = (self.seed, number, 20 + view, scene[..., None], box)
            features.append(directions[attribute] + self.noise * normal(*own, np.arange(self.width)))
            keys = own if not self.aligned else (self.seed, number, 20, scene[..., None], box)
            position = np.where(is_thing[..., None], drawn.places[scene, safe], uniform(*keys, 1_000 + np.arange(2)))
            centres.append(position + self.jitter * normal(*keys, 2_000 + np.arange(2)))
        return np.stack(features, axis=1).astype(np.float16), np.stack(centres, axis=1).astype(np.float16)


def _seen_by_primary(drawn: SceneContent) -> Numbers:
    """Returns whether A found the object of each box of B and C; see ``Views``."""
    scene = np.arange(len(drawn.places))[:, None, None]
    thing = np.stack(drawn.boxes[1:], axis=1)  # object of each box; the number of objects stands for none
    objects = drawn.places.shape[1]
    found: Numbers = drawn.found[0][scene, np.minimum(thing, objects - 1)].astype(np.int64)
    return np.where(thing < objects, found, -1)


def _word(names: Sequence[str], which: Numbers) -> Numbers:
    """Returns the word ids of names, by their indices (scenes, 1)."""
    return WORDS.index(names[0]) + which[:, None]


def _sentence(kind: Kind, names: Numbers) -> Numbers:
    """Returns the word ids of a question about ``names`` (scenes, gaps), 0 after its end."""
    found = np.zeros((len(names), LENGTH), dtype=np.int64)
    gap = 0
    for index, word in enumerate(TEXTS[kind].split()):
        found[:, index] = names[:, gap] if word == "{}" else WORDS.index(word)
        gap += word == "{}"
    return found


def question_text(words: Sequence[int]) -> str:
    """Returns the text of a question."""
    return " ".join(WORDS[word] for word in words if word) + "?"
