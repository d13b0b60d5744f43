"""VQA v2 from its files: generated ones in the official form, read as the real ones are, whole and broken."""

import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.vqa.data.batches import unread_batch
from seqarena.vqa.data.detected import DetectedViews, read_detector
from seqarena.vqa.data.scenes import WORDS, Scenes
from seqarena.vqa.data.vqa2 import Vqa2
from seqarena.vqa.data.written import write_scenes
from seqarena.vqa.regions import ARRAYS, _checksum, read

SCENES = 24
TESTED_QUESTIONS = "v2_OpenEnded_mscoco_val2014_questions.json"
TESTED_ANNOTATIONS = "v2_mscoco_val2014_annotations.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated files; read it, never change it."""
    return write_scenes(tmp_path_factory.mktemp("written"), SCENES)


def config(folder: Path, **changes: Any) -> Vqa2:
    settings = {"path": str(folder), "regions": tuple(str(folder / name) for name in "ABC"), "boxes": 8, "width": 18,
                "answer_count": None, "least": 1, "held_out": 0.3}  # fmt: skip
    return Vqa2(**{**settings, **changes})


def rewrite(path: Path, change: Any) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_files_hold_the_scenes_they_were_written_of(written: Path, tmp_path: Path) -> None:
    """Questions, people, scores, boxes and what the primary saw, question by question, against the generator's."""
    scenes = Scenes(scenes=SCENES, held_out=SCENES // 6)
    loaded, expected = config(written).load(tmp_path), scenes.split(1, SCENES // 6)
    test = loaded.splits["test"]
    assert len(test) == len(expected)
    own, theirs = (unread_batch(split, np.arange(len(test)), len(each.answers)).read() for split, each in
                   ((test, loaded), (expected, scenes)))  # fmt: skip
    for row in range(len(test)):
        said = [loaded.words[word] for word in test.words[row] if word]
        assert said == [WORDS[word] for word in expected.words[row] if word]
        known = {answer: own.targets[row, place].item() for place, answer in enumerate(loaded.answers)}
        wanted = {answer: theirs.targets[row, place].item() for place, answer in enumerate(scenes.answers)}
        assert {answer: value for answer, value in known.items() if value} == {
            answer: value for answer, value in wanted.items() if value and answer in known
        }
    np.testing.assert_array_equal(own.features, theirs.features)
    inside = (theirs.centres > 0.09) & (theirs.centres < 0.91)  # at the edge a box is cut off
    np.testing.assert_allclose(own.centres[inside], theirs.centres[inside], atol=1e-3)
    assert own.real.all()


def test_regions_of_your_own_are_verified_once(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And again where a file was changed: the checksum of the data names their headers, not what is in them."""
    own = tmp_path / "own"
    shutil.copytree(written, own)
    loaded = config(own).load(tmp_path / "data")
    assert capsys.readouterr().err.count("comparing its checksum") == 3
    assert config(own).load(tmp_path / "data").checksum == loaded.checksum
    assert "comparing" not in capsys.readouterr().err
    array = np.load(own / "B" / "train2014" / "features.npy", mmap_mode="r+")
    array[0, 0, 0] += 1
    array.flush()
    with pytest.raises(BadDataError, match="damaged, its sha256 is not"):
        config(own).load(tmp_path / "data")


def test_pictures_are_trained_on_or_validated_or_tested(written: Path, tmp_path: Path) -> None:
    loaded = config(written).load(tmp_path)
    pictures = {name: set((split.ids // 1_000).tolist()) for name, split in loaded.splits.items()}
    assert pictures["train"] | pictures["validation"] == set(range(1, 1 + SCENES))
    assert pictures["test"] == set(range(1 + SCENES, 1 + SCENES + SCENES // 6))
    assert not pictures["train"] & pictures["validation"]
    assert all(pictures.values())
    again = config(written).load(tmp_path)
    assert again.checksum == loaded.checksum
    assert {name: len(split) for name, split in again.splits.items()} == {
        name: len(split) for name, split in loaded.splits.items()
    }
    for changes in ({"held_out": 0.5}, {"boxes": 5}, {"least": 12}, {"length": 3}):
        assert config(written, **changes).load(tmp_path).checksum != loaded.checksum


def test_questions_about_tested_pictures_are_not_trained_on(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cut that shares a picture; and that questions are about other pictures is in the checksum."""
    folder = tmp_path / "cut"
    shutil.copytree(written, folder)
    whole = config(folder).load(tmp_path)
    shared = int(whole.splits["train"].ids[0] // 1_000)
    for path, name in ((TESTED_QUESTIONS, "questions"), (TESTED_ANNOTATIONS, "annotations")):
        rewrite(folder / path, lambda values, name=name: [
            each.update(image_id=shared) for each in values[name] if each["image_id"] == SCENES + 1
        ])  # fmt: skip
    cut = config(folder).load(tmp_path)
    assert f"3 of {3 * SCENES} questions of train2014 are skipped" in capsys.readouterr().err
    assert shared not in cut.splits["train"].ids // 1_000
    assert shared not in cut.splits["validation"].ids // 1_000
    other = tmp_path / "other"
    shutil.copytree(written, other)
    swapped = {SCENES + 1: SCENES + 2, SCENES + 2: SCENES + 1}
    for path, name in ((TESTED_QUESTIONS, "questions"), (TESTED_ANNOTATIONS, "annotations")):
        rewrite(other / path, lambda values, name=name: [
            each.update(image_id=swapped.get(each["image_id"], each["image_id"])) for each in values[name]
        ])  # fmt: skip
    assert config(other).load(tmp_path).checksum != whole.checksum


def test_what_a_setting_says_reaches_the_splits(written: Path, tmp_path: Path) -> None:
    plain = config(written).load(tmp_path)
    few = config(written, held_out=0.1).load(tmp_path)
    assert 0 < len(few.splits["validation"]) < len(plain.splits["validation"]) < len(plain.splits["train"])
    (tmp_path / "glove.txt").write_text("thing 1 2 3\n")
    layer = {"weight": np.ones((4, 18), np.float32), "bias": np.zeros(4, np.float32)}
    np.savez(tmp_path / "fc7.npz", **layer)
    given = config(written, glove=str(tmp_path / "glove.txt"), fc7=(str(tmp_path / "fc7.npz"),) * 3).load(tmp_path)
    assert given.vectors is not None
    assert given.vectors[given.words.index("thing")].tolist() == [1, 2, 3]
    assert [each.weight.shape for each in given.fc7] == [(4, 18)] * 3
    checksums = [plain.checksum, given.checksum]
    np.savez(tmp_path / "fc7.npz", **{**layer, "bias": np.ones(4, np.float32)})
    checksums.append(config(written, glove=str(tmp_path / "glove.txt"), fc7=(str(tmp_path / "fc7.npz"),) * 3)
                     .load(tmp_path).checksum)  # fmt: skip
    checksums.append(config(written, glove=str(tmp_path / "glove.txt")).load(tmp_path).checksum)
    assert len(set(checksums)) == 4
    np.savez(tmp_path / "fc7.npz", **{**layer, "bias": np.full(4, np.nan, np.float32)})
    with pytest.raises(BadDataError, match="expected finite numbers, found others in weight or bias"):
        config(written, fc7=(str(tmp_path / "fc7.npz"),) * 3).load(tmp_path)
    folder = tmp_path / "said"
    shutil.copytree(written, folder)
    annotations = folder / "v2_mscoco_train2014_annotations.json"
    rewrite(annotations, lambda values: [said.update(answer=said["answer"].upper())
                                         for each in values["annotations"] for said in each["answers"]])  # fmt: skip
    raw, changed = (config(folder, normalized_targets=each).load(tmp_path).splits["train"] for each in (False, True))
    assert not raw.people.any()
    assert changed.people.sum() == 10 * len(changed)


def test_written_boxes_tell_what_the_primary_saw(written: Path, tmp_path: Path) -> None:
    """By overlap alone, nine times out of ten as the generator knows it; boxes on nothing count as missed."""
    told = config(written).load(tmp_path).splits["test"].views.seen_by_primary(np.arange(SCENES // 6))
    known = (
        Scenes(scenes=SCENES, held_out=SCENES // 6).split(1, SCENES // 6).views.seen_by_primary(np.arange(SCENES // 6))
    )
    on_things = known >= 0
    assert (told[on_things] == known[on_things]).mean() > 0.85


def test_packed_files_are_read_and_pairs_counted(written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    shutil.copytree(written, folder)
    plain = config(folder).load(tmp_path)
    for path in folder.glob("*.json"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    ids = plain.splits["test"].ids.tolist()
    (folder / "v2_mscoco_val2014_complementary_pairs.json").write_text(json.dumps([[ids[0], ids[3]], [1, ids[2]]]))
    packed = config(folder).load(tmp_path)
    assert packed.checksum == plain.checksum
    assert packed.splits["test"].pairs.tolist() == [[0, 3]]
    assert packed.splits["train"].pairs.shape == (0, 2)


def test_a_shortened_file_is_named(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "A", tmp_path / "A")
    detector = read_detector(tmp_path / "A")
    pictures = np.arange(1, SCENES + 1)
    part, row = detector.rows(pictures, 0)
    data = DetectedViews(detectors=(detector,), boxes=8, part=part[:, None], row=row[:, None])
    path = tmp_path / "A" / "train2014" / "features.npy"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(BadDataError, match=r"features.npy is truncated"):
        data.read(np.array([SCENES - 1]))


def genome(folder: Path, written: Path) -> None:
    """Questions about a trained, a tested, another COCO picture and one of no COCO's; one answer is in no list."""
    folder.mkdir()
    (folder / "image_data.json").write_text(
        json.dumps(
            [{"image_id": 90 + coco, "coco_id": coco} for coco in range(1, 60)] + [{"image_id": 5, "coco_id": None}]
        )
    )
    asked_of = [
        {"id": image, "qas": [{"qa_id": image * 10 + number, "question": f"What is {text}?", "answer": text}
                              for number, text in enumerate(("A wood.", "green cheese"))]}
        for image in [*range(91, 150), 5]
    ]  # fmt: skip
    (folder / "question_answers.json").write_text(json.dumps(asked_of))


def test_visual_genome_adds_trained_pictures_alone(written: Path, tmp_path: Path) -> None:
    genome(tmp_path / "vg", written)
    plain, more = (config(written, **each).load(tmp_path) for each in ({}, {"visual_genome": str(tmp_path / "vg")}))
    trained = set((plain.splits["train"].ids // 1_000).tolist())
    added = more.splits["train"]
    extra = added.ids[len(plain.splits["train"]) :]
    assert set((extra // 10 - 90).tolist()) == trained
    assert (extra % 10 == 0).all()
    wood = more.answers.index("wood")
    assert (added.options[-1][added.people[-1] > 0] == wood).all()
    assert added.people[-1].max() == 10
    assert added.parts["answer_type"].of[-1] == -1
    assert "cheese" not in more.words
    assert more.checksum != plain.checksum
    for name in ("validation", "test"):
        np.testing.assert_array_equal(more.splits[name].ids, plain.splits[name].ids)
    (tmp_path / "vg" / "question_answers.json").write_text("[]")
    with pytest.raises(BadDataError, match="expected questions about the training pictures"):
        config(written, visual_genome=str(tmp_path / "vg")).load(tmp_path)


def moved(folder: Path, picture: int) -> None:
    """Makes the first tested question, and its annotation, one about another picture."""
    for path, name in ((TESTED_QUESTIONS, "questions"), (TESTED_ANNOTATIONS, "annotations")):
        rewrite(folder / path, lambda values, name=name: values[name][0].update(image_id=picture))


def listing(folder: Path, answers: str, **settings: Any) -> dict[str, Any]:
    (folder / "list.json").write_text(answers)
    return {"answer_list": str(folder / "list.json"), **settings}


def larger(folder: Path) -> dict[str, Any]:
    """The same boxes in all views, but for the size of one in the last picture."""
    for name in "BC":
        shutil.rmtree(folder / name)
        shutil.copytree(folder / "A", folder / name)
    corners = np.load(folder / "C" / "val2014" / "boxes.npy", mmap_mode="r+")
    corners[-1, -1] = [0.0, 0.0, 1.0, 1.0]
    corners.flush()
    found = read(folder / "C" / "val2014")
    sha256 = _checksum({name: getattr(found, name) for name in ARRAYS}, found.header)
    rewrite(folder / "C" / "val2014" / "header.json", lambda header: header.update(sha256=sha256))
    return {"aligned": True}


def too_high(folder: Path) -> dict[str, Any]:
    (folder / "one").mkdir()
    for name in "ABC":
        (folder / name).rename(folder / "one" / name)
    return {"regions": (str(folder / "one"),)}


def annotated(change: Any) -> Any:
    """Returns what changes the tested annotations."""
    return lambda folder: rewrite(folder / TESTED_ANNOTATIONS, lambda values: change(values["annotations"]))


def pickles(folder: Path) -> tuple[str, ...]:
    (folder / "fc7.pkl").touch()
    return (str(folder / "fc7.pkl"),) * 3


BROKEN: Mapping[str, Any] = {
    "annotation": annotated(lambda rows: rows.pop()),
    "other picture": annotated(lambda rows: rows[0].update(image_id=999)),
    "three": annotated(lambda rows: rows[0]["answers"].__delitem__(slice(3, None))),
    "picture": lambda folder: moved(folder, 999),
    "file": lambda folder: (folder / TESTED_ANNOTATIONS).unlink(),
    "regions": lambda folder: shutil.rmtree(folder / "B"),
    "counts": lambda folder: np.save(folder / "C" / "val2014" / "counts.npy", np.ones(2, np.int32)),
    "list": lambda folder: listing(folder, '["yes", "no"]', answer_count=3_129),
    "strangers": lambda folder: listing(folder, '["left", "right"]'),
    "folder": lambda folder: {"path": str(folder / "nowhere")},
    "pickle": lambda folder: {"fc7": pickles(folder)},
    "aligned": lambda _: {"aligned": True},
    "count": lambda _: {"answer_count": 3_129},
    "width": lambda _: {"width": 2_048},
    "larger": larger,
    "too high": too_high,
}
"""Breaks a copy of the files; returns the settings to load it by, if they are others."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("annotation", "an annotation for every question, 1 have none, such as"),
        ("picture", r"A: 1 of 5 pictures have no regions, such as 999; expected at most 0"),
        ("file", "expected v2_mscoco_val2014_annotations.json in it"),
        ("regions", "--data.regions: .*B does not exist; expected a folder that seqarena prepare vqa features made"),
        ("list", "list.json: expected 3,129 answers .*, found 2; --data.answer-count none"),
        ("count", "answers of at least 1 questions .*: expected 3,129 answers"),
        ("pickle", r"expected an .npz with weight and bias; pickles may run code"),
        ("folder", "--data.path: .* does not exist; expected a folder of VQA v2's questions and annotations"),
        ("aligned", "expected the same boxes from all detectors"),
        ("larger", "expected the same boxes from all detectors"),
        ("other picture", "annotations with their question's picture, 1 have another, such as"),
        ("three", "expected 10 answers to each question, found 3 to"),
        ("strangers", "expected answers that annotators gave, found none among 2"),
        ("counts", "expected version 1 and arrays"),
        ("too high", r"no regions: expected header.json, found none; its folders A/train2014, A/val2014"),
        ("width", "expected 2048 features per box .*, found 18 by scenes A"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(kind: str, message: str, written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    settings = BROKEN[kind](folder) or {}
    with pytest.raises(BadDataError, match=message):
        config(folder, **settings).load(tmp_path)


def test_pictures_may_be_missing_up_to_a_limit(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    moved(folder, 999)
    loaded = config(folder, missing=1).load(tmp_path)
    assert "1 pictures have no regions, such as 999; each gets a box of zeros" in capsys.readouterr().err
    unread = unread_batch(loaded.splits["test"], np.array([0]), len(loaded.answers))
    batch = unread.read()
    assert unread.token_count() == 3  # counted without reading
    assert batch.real[0].sum(dim=1).tolist() == [1, 1, 1]
    assert not batch.features.any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"regions": ()}, "data.regions: expected a folder for each detector"),
        ({"path": None}, "data.path: expected the folder"),
        ({"boxes": 0}, "data.boxes: expected at least 1"),
        ({"held_out": 1.0}, "data.held_out between 0 and 1"),
        ({"fc7": ("one.npz",)}, "data.fc7: expected 3 files"),
        ({"missing": -1}, "data.missing of at least 0"),
        ({"regions": ("one", "two", "one")}, "data.regions: expected distinct folders"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongUseError, match=words):
        config(Path("somewhere"), **changes).check()
