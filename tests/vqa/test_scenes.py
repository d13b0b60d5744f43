"""Generated scenes: what the answers are by an independent look at the objects, who saw what, batches by picture."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarena.common.errors import WrongUseError
from seqarena.common.training.step import Stepper
from seqarena.vqa.data import SHARE, Arrays, Integers, PictureViews, Split, scenes
from seqarena.vqa.data.batches import PictureOrder, QuestionBatch, unread_batch
from seqarena.vqa.data.scenes import ANSWERS, WORDS, Scenes, question_text
from seqarena.vqa.data.world import COLOURS, MATERIALS, SHAPES, draw, normal
from seqarena.vqa.floors import floors, nearest_answers, sums
from seqarena.vqa.presets import PRESETS
from seqarena.vqa.tasks import TASKS

SMALL = Scenes(scenes=60, held_out=40)
HARD = replace(
    SMALL, objects=8, colours=12, boxes=24, recall=0.6, kinds=("material", "shape", "there", "side", "count")
)


def seen(split: Split) -> Arrays:
    """The boxes of a generated split."""
    assert isinstance(split.views, Arrays)
    return split.views


def kinds(split: Split) -> Integers:
    """Of each question its place among the kinds."""
    return split.parts["kind"].of


@pytest.mark.parametrize("name", PRESETS["scenes"])
def test_chance_is_the_score_of_guessing_among_the_answers(name: str) -> None:
    preset = PRESETS["scenes"][name]
    assert isinstance(preset.run.data, Scenes)
    split = preset.run.data.split(0, 400)
    guessing = split.scores.sum(axis=1).mean() / len(preset.run.data.answers)
    assert guessing == pytest.approx(TASKS["scenes"].chance if preset.chance is None else preset.chance, abs=2e-3)


@pytest.mark.parametrize("config", [SMALL, HARD, replace(SMALL, aligned=True)], ids=["toy", "hard", "aligned"])
def test_the_people_say_what_is_there(config: Scenes) -> None:
    """The most frequent answer is read off the objects by the words of the question."""
    split, drawn = config.split(0, 60), draw(config, 0, 60)
    counted = dict.fromkeys(config.kinds, 0)
    for words, scene, options, people in zip(split.words, split.pictures, split.options, split.people, strict=True):
        text = question_text(words.tolist()).rstrip("?").split()
        things = [
            (SHAPES[shape], COLOURS[colour], MATERIALS[material], place)
            for shape, colour, material, place in zip(*(each[scene] for each in drawn.attributes), drawn.places[scene],
                                                      strict=True)
        ]  # fmt: skip
        named = {colour: (shape, material, place) for shape, colour, material, place in things}
        if text[0] == "what":
            expected = named[text[-2]][1 if text[1] == "material" else 0]
            kind = text[1]
        elif text[:2] == ["is", "there"]:
            expected, kind = ("yes" if text[3] in named else "no"), "there"
        elif text[0] == "is":
            expected, kind = ("yes" if named[text[2]][2][0] < named[text[-2]][2][0] else "no"), "side"
        else:
            expected, kind = str(min(sum(each[2] == text[2] for each in things), 4)), "count"
        counted[kind] += ANSWERS[options[people.argmax()]] == expected
        assert people.sum() == 10
        assert options[0] != options[1]
    assert all(count >= 57 for count in counted.values())  # ten people at 85 % are seldom wrong together


def test_boxes_are_of_what_each_view_found() -> None:
    drawn = draw(HARD, 1, 200)
    for view, (boxes, found) in enumerate(zip(drawn.boxes, drawn.found, strict=True)):
        for scene in range(200):
            assert set(boxes[scene]) - {HARD.objects} == set(np.flatnonzero(found[scene]))
            assert (boxes[scene] == HARD.objects).sum() == (0 if view == 0 else 1)
    shares = [found.mean() for found in drawn.found]
    assert shares[0] == pytest.approx(0.6, abs=0.05)
    assert shares[1] == pytest.approx(0.95, abs=0.03)
    assert all(found.any(axis=1).all() for found in drawn.found)
    spare = draw(replace(SMALL, background=2), 0, 50)
    assert ((spare.boxes[0] == SMALL.objects).sum(axis=1) == 2).all()


def test_each_view_shows_its_attribute_and_the_place_alone() -> None:
    """Without noise, boxes of one attribute have one feature, whatever the others are."""
    clean = replace(SMALL, noise=0.0, jitter=0.0)
    split, drawn = clean.split(0, 60), draw(clean, 0, 60)
    for view in range(3):
        rows: dict[int, set[bytes]] = {}
        for scene in range(60):
            for box, thing in enumerate(drawn.boxes[view][scene]):
                name = -1 if thing == clean.objects else int(drawn.attributes[view][scene, thing])
                rows.setdefault(name, set()).add(seen(split).features[scene, view, box].tobytes())
                if thing < clean.objects:
                    np.testing.assert_allclose(
                        seen(split).centres[scene, view, box], drawn.places[scene, thing], atol=1e-3
                    )
        assert all(len(each) == 1 for each in rows.values())
        assert len(set().union(*rows.values())) == len(rows)


def test_noise_is_of_its_size_and_each_view_has_its_own() -> None:
    """What is left when the same scenes without noise are taken away; places in aligned views are shared."""
    clean = seen(replace(SMALL, noise=0.0, jitter=0.0).split(0, 60))
    noisy = seen(SMALL.split(0, 60))
    left = noisy.features.astype(float) - clean.features.astype(float)
    assert left.std() == pytest.approx(0.3, rel=0.03)
    moved = noisy.centres.astype(float) - clean.centres.astype(float)
    assert moved.std() == pytest.approx(0.03, rel=0.05)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.corrcoef(left[:, one].ravel(), left[:, other].ravel())[0, 1]) < 0.05
    aligned = replace(SMALL, aligned=True)
    boxes, looked = draw(aligned, 0, 60).boxes, seen(aligned.split(0, 60))
    assert (boxes[0] == boxes[1]).all()
    assert (boxes[0] == boxes[2]).all()
    np.testing.assert_array_equal(looked.centres[:, 0], looked.centres[:, 2])
    assert (draw(SMALL, 0, 60).boxes[0] != draw(SMALL, 0, 60).boxes[1]).any()


@pytest.mark.parametrize("changed", [{"jitter": 0.0}, {"noise": 0.2}, {"recall": 0.6}, {"background": 1}])
def test_whatever_changes_has_another_checksum(changed: dict[str, float | int]) -> None:
    """Of the numbers themselves, not of the settings alone."""

    def without(config: Scenes) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scenes, "fingerprint", lambda _: "same")
            return config.load(Path()).checksum

    assert without(replace(SMALL, **changed)) != without(SMALL)  # type: ignore[arg-type]


def test_groups_are_what_a_missed_or_saw() -> None:
    split = replace(SMALL, scenes=400).split(0, 400)
    missed, saw = split.groups["material_missed"], split.groups["material_seen"]
    assert not (missed & saw).any()
    assert not (missed | saw)[kinds(split) != 0].any()
    both = (missed | saw)[kinds(split) == 0].mean()
    assert both == pytest.approx(0.95**2, abs=0.05)
    assert missed.sum() / (missed | saw).sum() == pytest.approx(0.3, abs=0.07)


def test_boxes_know_whether_the_primary_saw_what_they_are_on() -> None:
    split, drawn = HARD.split(0, 50), draw(HARD, 0, 50)
    told = split.views.seen_by_primary(np.arange(50))
    for scene in range(50):
        for view in (1, 2):
            for box, thing in enumerate(drawn.boxes[view][scene]):
                expected = -1 if thing == HARD.objects else int(thing in drawn.boxes[0][scene])
                assert told[scene, view - 1, box] == expected


def test_scenes_are_a_function_of_their_seed() -> None:
    one, again = SMALL.load(Path()), SMALL.load(Path())
    assert one.checksum == again.checksum
    assert replace(SMALL, seed=1).load(Path()).checksum != one.checksum
    train, test = (seen(one.splits[name]) for name in ("train", "test"))
    assert not (train.features[:10] == test.features[:10]).all(axis=(1, 2, 3)).any()
    drawn = normal(3, np.arange(100_000))
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(1, abs=0.01)


def test_floors_are_what_rules_score() -> None:
    loaded = replace(SMALL, scenes=300, held_out=300).load(Path())
    found, (train, test) = floors(loaded), (loaded.splits[name] for name in ("train", "test"))
    most = [
        max(range(12), key=lambda each, of=of: train.people[of][train.options[of] == each].sum())  # type: ignore[misc]
        for of in (kinds(train) >= 0, *(kinds(train) == kind for kind in range(3)))
    ]
    for name, guesses in (
        ("most frequent answer", np.full(900, most[0])),
        ("most frequent of its kind", np.array(most[1:])[kinds(test)]),
    ):
        counts = np.where(test.options == guesses[:, None], test.people, 0).sum(axis=1)
        assert found[name] == pytest.approx(np.minimum(1, SHARE * counts).mean())
    assert 0.3 < found["most frequent of its kind"] < 0.5
    without = replace(
        test, parts={name: replace(part, of=np.full_like(part.of, -1)) for name, part in test.parts.items()}
    )
    others = floors(replace(loaded, splits={**loaded.splits, "test": without}))  # annotations may lack a category
    assert others["most frequent of its kind"] == others["most frequent answer"]


def test_the_nearest_training_picture_lends_its_answer() -> None:
    """By heart the likeliest answer of each question; of a question that was not asked, the most frequent one."""
    train, test = (SMALL.split(number, 60) for number in (0, 2))
    best = train.options[np.arange(len(train)), train.people.argmax(axis=1)]
    assert (nearest_answers(train, train, otherwise=-1) == best).all()
    once = replace(train, words=train.words[:1].repeat(len(train), axis=0))
    unasked = (test.words != once.words[0]).any(axis=1)
    assert (nearest_answers(once, test, otherwise=7)[unasked] == 7).all()
    shown = sums(test, test.pictures[:9])
    assert shown.shape == (9, 3 * 18)
    np.testing.assert_allclose(shown[3] / 100, seen(test).features[1].sum(axis=1).reshape(-1), atol=0.1)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 3), st.integers(1, 7))
def test_every_question_once_an_epoch_and_pictures_together(pictures: int, seed: int, batch: int) -> None:
    about = np.sort(np.concatenate([np.full(1 + each % 4, each) for each in range(pictures)]))
    order = PictureOrder(pictures=about, batch_size=batch, seed=seed)
    steps = -(-len(about) * 2 // batch)
    seen = np.concatenate([order[step] for step in range(steps)])
    first, second = seen[: len(about)], seen[len(about) : 2 * len(about)]
    assert sorted(first) == sorted(second) == list(range(len(about)))
    changes = (np.diff(about[first]) != 0).sum() + 1
    assert changes == pictures  # all questions of a picture one after the other
    assert (order[3] == PictureOrder(pictures=about, batch_size=batch, seed=seed)[3]).all()


def test_a_batch_reads_each_picture_once_and_parts_keep_theirs() -> None:
    split = SMALL.split(0, 20)
    batch = unread_batch(split, np.array([5, 3, 4, 30]), len(SMALL.answers)).read()
    assert batch.features.shape == (2, 3, 8, 18)  # scenes 1 and 10
    assert batch.picture.tolist() == [0, 0, 0, 1]
    part = batch.rows(3, 4)
    assert part.features.shape[0] == 1
    np.testing.assert_array_equal(part.features[part.picture[0]], seen(split).features[10].astype(np.float32))
    assert batch.features.dtype == torch.float16  # as in files; float32 where it is computed
    there = batch.to(torch.device("cpu"))
    assert there.features.dtype == torch.float32
    assert torch.equal(there.features, batch.features.float())
    agreeing = np.zeros(12)
    agreeing[split.options[5]] = split.people[5]
    np.testing.assert_allclose(batch.targets[0], np.minimum(1, 0.3 * agreeing), atol=1e-6)
    assert batch.token_count() == 2 * 3 * 8


@pytest.mark.parametrize(
    "wrong",
    [{"objects": 8}, {"boxes": 4}, {"recall": 0.0}, {"kinds": ()}, {"kinds": ("side",), "objects": 1}, {"noise": -1.0},
     {"kinds": ("shape", "shape")}, {"colours": 13}, {"held_out": 3}],
)  # fmt: skip
def test_scenes_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongUseError, match="expected"):
        replace(SMALL, **wrong).check()  # type: ignore[arg-type]


def test_words_are_those_of_the_questions() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert set(WORDS) >= {"", *COLOURS, *MATERIALS, "left", "many"}


def test_the_longest_question_is_that_of_the_kinds(tmp_path: Path) -> None:
    for kinds, longest in ((("material",), 6), (("count",), 4), (("there", "side"), 9)):
        data = Scenes(scenes=8, held_out=8, kinds=kinds)  # type: ignore[arg-type]
        assert data.longest == longest == data.load(tmp_path).splits["train"].words.shape[1]


def test_a_process_reads_the_pictures_of_its_share_alone() -> None:
    read: list[list[int]] = []

    class Watched(Arrays):
        def read(self, pictures: np.ndarray) -> PictureViews:
            read.append(pictures.tolist())
            return super().read(pictures)

    split = SMALL.split(0, 20)
    assert isinstance(split.views, Arrays)
    watched = replace(split, views=Watched(**vars(split.views)))
    batch = unread_batch(watched, np.array([5, 3, 4, 30]), len(SMALL.answers))
    assert batch.token_count() == int(unread_batch(split, np.array([5, 3, 4, 30]), 12).read().real.sum())
    assert read == []
    accelerator = SimpleNamespace(num_processes=2, process_index=1, device=torch.device("cpu"))
    stepper = SimpleNamespace(accelerator=accelerator, micro_batch_size=None)
    share = Stepper.share(stepper, batch)  # type: ignore[arg-type]
    assert read == [[1, 10]]
    whole = batch.read()
    (part,) = share.parts
    assert isinstance(part, QuestionBatch)
    for row, question in enumerate((2, 3)):
        assert torch.equal(part.features[part.picture[row]], whole.features[whole.picture[question]])
        assert torch.equal(part.targets[row], whole.targets[question])
