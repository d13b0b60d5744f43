"""Text and Retrieval: archives, folders and the hub's layout give the same bytes; damage is named."""

import io
import itertools
import tarfile
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest

from seqarena.common.data import archives
from seqarena.common.data.batches import Ragged
from seqarena.common.data.corpus import chapters
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.lra import checksums
from seqarena.lra.data import imdb, text
from seqarena.lra.data.book import Book, Chapters, seam, split_chapters
from seqarena.lra.data.retrieval import Retrieval, RetrievalImdb, film_pairs
from seqarena.lra.data.reviews import Review, naive_bayes
from seqarena.lra.data.text import Text

REVIEWS = 6
"""Of each label in train and in test."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imdb, "REVIEWS", REVIEWS)
    monkeypatch.setattr(text, "VALIDATION", 4)
    monkeypatch.setattr(checksums, "TEXT", None)
    monkeypatch.setattr(checksums, "RETRIEVAL_IMDB", None)


def written(folder: Path, *, urls: bool = True) -> Path:
    """Writes reviews as the authors lay them out: film n has reviews 2n and 2n + 1, in both labels."""
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / split / label).mkdir(parents=True)
            for number in range(REVIEWS):
                words = f"{split} {label} number {number} caf\u00e9 film{split}{number // 2} " + "word " * number
                (folder / split / label / f"{number}_{number + 1}.txt").write_bytes(words.encode())
            if urls:
                lines = [f"http://www.imdb.com/title/tt{split == 'test':d}{number // 2}/usercomments" for number in
                         range(REVIEWS)]  # fmt: skip
                (folder / split / f"urls_{label}.txt").write_text("\n".join(lines) + "\n")
    return folder


def packed(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, f"w:{archive.suffix.removeprefix('.')}") as tar:
        tar.add(folder, arcname="aclImdb")
    return archive


def test_every_source_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = written(tmp_path / "aclImdb")
    hub = tmp_path / "hub" / "plain_text"
    hub.mkdir(parents=True)
    for split in ("train", "test"):
        rows = [
            {"text": path.read_text(encoding="utf-8"), "label": int(path.parent.name == "pos")}
            for path in sorted((folder / split).rglob("*_*.txt"))
            if "urls" not in path.name
        ]
        datasets.Dataset.from_list(rows).to_parquet(hub / f"{split}-00000-of-00001.parquet")
    sources = [folder, packed(folder, tmp_path / "a.tar.gz"), packed(folder, tmp_path / "a.tar.xz"), tmp_path / "hub"]
    found = {Text(path=str(source)).load(tmp_path / "data")[1] for source in sources}
    assert len(found) == 1
    splits, _ = Text(path=str(folder)).load(tmp_path / "data")
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [8, 4, 12]
    tokens, real = splits["test"].padded(np.array([0]))
    whole = bytes((tokens[0][real[0]] - 1).tolist()).decode()
    assert whole.startswith("test ")
    assert "caf\u00e9" in whole
    assert Text().load(tmp_path / "data")[1] in found  # what is prepared needs no path
    short, again = Text(path=str(folder), length=5).load(tmp_path / "data")
    assert again in found
    assert short["train"].lengths.tolist() == [5] * 8
    legacy, other = Text(path=str(folder), validation="test").load(tmp_path / "data")
    assert other not in found
    assert [len(legacy[name]) for name in ("train", "validation", "test")] == [12, 12, 12]
    assert sorted(legacy["train"][n].tobytes() for n in range(12)) == sorted(
        splits[name][n].tobytes() for name in ("train", "validation") for n in range(len(splits[name]))
    )


def test_what_is_wrong_with_a_source_is_said(tmp_path: Path) -> None:
    def reason(path: Path) -> str:
        with pytest.raises(BadDataError) as caught:
            Text(path=str(path)).load(tmp_path / "data")
        assert not (tmp_path / "data" / "lra").exists() or not list((tmp_path / "data" / "lra").iterdir())
        return str(caught.value)

    assert "no such file or folder" in reason(tmp_path / "nothing.tar.gz")
    folder = written(tmp_path / "aclImdb")
    archive = packed(folder, tmp_path / "a.tar.gz")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:-200])
    assert "cut.tar.gz: not a whole tar archive" in reason(cut)
    (tmp_path / "page.tar.gz").write_text("<html>Forbidden")
    assert "not a whole tar archive" in reason(tmp_path / "page.tar.gz")
    (folder / "train" / "pos" / "3_4.txt").unlink()
    assert "expected 6 negative and 6 positive reviews in train, found 6 and 5" in reason(folder)
    with pytest.raises(WrongUseError, match=r"data.length: expected at least 1"):
        Text(length=0).check()


def test_a_hub_that_is_not_there_says_where_else_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'stanfordnlp/imdb' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(BadDataError, match=r"stanfordnlp/imdb, split train, cannot be read .*aclImdb_v1.tar.gz.*84 MB"):
        Text().load(tmp_path)


def test_films_are_apart_and_reviews_balanced(tmp_path: Path) -> None:
    folder = written(tmp_path / "aclImdb")
    splits, _ = RetrievalImdb(path=str(folder)).load(tmp_path / "data")
    films: dict[str, set[bytes]] = {}
    for name, split in splits.items():
        if not len(split):  # so few films leave none
            continue
        assert split.sequences == 2
        assert split.labels.mean() == 0.5
        for example, label in enumerate(split.labels):
            first, second = (split[2 * example + side].tobytes().split(b" ")[5] for side in (0, 1))
            assert (first == second) == bool(label)
            films.setdefault(name, set()).update((first, second))
        for side in (0, 1):  # each review as often in one class as in the other
            texts = [
                [split[2 * n + side].tobytes() for n in np.flatnonzero(split.labels == label).tolist()]
                for label in (0, 1)
            ]
            assert sorted(texts[0]) == sorted(texts[1])
    assert not films["test"] & films["train"]
    with pytest.raises(BadDataError, match=r"expected urls_pos.txt"):
        RetrievalImdb(path=str(written(tmp_path / "bare", urls=False))).load(tmp_path / "data")
    with pytest.raises(BadDataError, match=r"needs --data.path with the authors. archive"):
        RetrievalImdb().load(tmp_path)


def review(text: str, positive: int, film: str) -> Review:
    return Review(text=text.encode(), positive=positive, film=film)


def test_no_film_is_in_two_splits_and_no_review_twice() -> None:
    """Films 0 to 59 in train, 40 to 99 in test; of each two reviews for and two against, and one that is everywhere."""
    sets = {
        name: [
            review(f"{name} {film} {number} " + "x" * (7 * number + film % 5), number % 2, f"tt{film}")
            for film in films
            for number in range(4)
        ]
        + [review("the same everywhere", 1, f"tt{films[0]}"), review("the same everywhere", 1, f"tt{films[0]}")]
        for name, films in (("train", range(60)), ("test", range(40, 100)))
    }
    known = {each.text: each for some in sets.values() for each in some}
    splits = film_pairs(sets, "here")
    films, texts = {}, {}
    for name, split in splits.items():
        firsts, seconds = ([split[2 * n + side].tobytes() for n in range(len(split))] for side in (0, 1))
        films[name] = {known[text].film for text in firsts + seconds}
        texts[name] = set(firsts + seconds)
        one, two = (np.flatnonzero(split.labels == label).tolist() for label in (1, 0))
        assert len(one) == len(two) > 8
        assert len({firsts[n] for n in one} | {seconds[n] for n in one}) == 2 * len(one)  # none in two pairs
        for same, other in zip(one, two, strict=True):
            assert firsts[same] == firsts[other]
            assert known[firsts[same]].film == known[seconds[same]].film != known[seconds[other]].film
            assert known[seconds[same]].positive == known[seconds[other]].positive
        apart = [abs(len(seconds[same]) - len(seconds[other])) for same, other in zip(one, two, strict=True)]
        assert np.mean(apart) < 3  # of texts that are up to 25 apart
    for one_name, other_name in itertools.combinations(splits, 2):
        assert not films[one_name] & films[other_name]
        assert not texts[one_name] & texts[other_name]
    assert films["train"] | films["validation"] <= {f"tt{film}" for film in range(40)}


def test_what_is_refused_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "aclImdb")
    monkeypatch.setattr(checksums, "TEXT", Text(path=str(folder)).load(tmp_path / "data")[1])
    (folder / "test" / "pos" / "3_4.txt").write_bytes(b"another")
    with pytest.raises(BadDataError, match=r"sha256 [0-9a-f]{64}, expected [0-9a-f]{64}; a file was changed"):
        Text(path=str(folder)).load(tmp_path / "data")
    assert Text().load(tmp_path / "data")[1] == checksums.TEXT
    assert len(list((tmp_path / "data" / "lra").iterdir())) == 1


def test_two_copies_of_papers_are_not_mixed_up(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for part in ("train", "eval", "test"):
            (tmp_path / name / f"new_aan_pairs.{part}.tsv").write_text(f"1\ta\tb\t{name}\tx\n")
        Retrieval(path=str(tmp_path / name), rows=(1, 1, 1)).load(tmp_path / "data")
    with pytest.raises(BadDataError, match=r"2 copies of retrieval-1-1-1 .* choose one by its --data.path"):
        Retrieval(rows=(1, 1, 1)).load(tmp_path / "data")


def test_papers_are_read_line_by_line(tmp_path: Path) -> None:
    data = Retrieval(path=str(tmp_path), rows=(3, 2, 2), length=8)
    good = '1.0\tP1\tP2\tone "text\tother text\n0.0\tP3\tP4\ttab free\tlonger than eight\n'

    def write(train: str) -> None:
        for name, content in (("train", train), ("eval", good), ("test", good)):
            (tmp_path / f"new_aan_pairs.{name}.tsv").write_text(content)

    write(good + "1\tP5\tP6\tx\ty\n")
    splits, _ = data.load(tmp_path / "data")
    assert [len(split) for split in splits.values()] == [3, 2, 2]
    tokens, real = splits["train"].padded(np.array([0, 2]))
    assert tokens.shape == (2, 2, 8)
    assert bytes((tokens[0, 0] - 1).tolist()) == b'one "tex'
    assert real.sum(dim=2).tolist() == [[8, 8], [1, 1]]
    for train, message in (
        (good, r"train.tsv: expected 3 lines, found 2"),
        (good + "1\tP5\tP6\tx\n", r"line 3: expected 5 columns separated by tabs, found 4"),
        (good + "2\tP5\tP6\tx\ty\n", r"line 3: expected label 0 or 1, found b'2'"),
        (good + "1\tP5\tP6\t\ty\n", r"line 3: expected two texts"),
        (good + "1\tP5\tP6\tx\tsome of it", r"line 3: expected a line end"),
    ):
        write(train)
        with pytest.raises(BadDataError, match=message):
            replace(data, length=9).load(tmp_path / f"data{len(train)}")
    (tmp_path / "new_aan_pairs.test.tsv").unlink()
    (tmp_path / "new_aan_pairs.train.tsv").write_text(good)
    with pytest.raises(BadDataError, match=r"new_aan_pairs.test.tsv does not exist"):
        replace(data, rows=(2, 2, 2)).load(tmp_path / "last")
    with pytest.raises(BadDataError, match=r"your own copy.*retrieval-imdb"):
        Retrieval().load(tmp_path)


def test_the_book_is_cut_by_chapters(tmp_path: Path) -> None:
    book = chapters()
    assert len(book) == 1_189
    parts = split_chapters(len(book))
    assert sorted(number for part in parts.values() for number in part) == list(range(1_189))
    splits, _ = Book(length=512).load(tmp_path)
    assert set(np.concatenate([split.lengths for split in splits.values()])) == {512}
    pairs, _ = Chapters(length=512).load(tmp_path)
    for split in pairs.values():
        assert split.sequences == 2
        assert split.labels.mean() == 0.5
    floors = Chapters(length=512).floors(pairs)
    assert floors["majority class"] == 0.5
    assert floors["shared words"] > 0.55
    assert floors["bytes at the seam"] == seam(pairs)


def test_passages_of_one_chapter_do_not_follow_each_other(tmp_path: Path) -> None:
    """Half a word at the end of one passage and its other half at the beginning of the next would tell the label."""
    splits, _ = Chapters().load(tmp_path)
    book, split = chapters(), splits["test"]
    text = "\n".join(" ".join(book[number]) for number in split_chapters(len(book))["test"]).encode()
    documents = [bytes(split[number]) for number in range(2 * len(split))]
    assert all(document in text for document in documents)
    assert not any(first + second in text for first, second in zip(documents[::2], documents[1::2], strict=True))
    assert seam(splits) == pytest.approx(0.5, abs=0.03)


def test_naive_bayes_knows_what_counts_tell() -> None:
    def examples(seed: int) -> Ragged:
        random = np.random.default_rng(seed)
        labels = random.integers(0, 2, 200)
        return Ragged.of(
            [(random.integers(0, 5, 30) + 2 * label).astype(np.uint8) for label in labels], labels.tolist()
        )

    test = examples(1)
    assert (naive_bayes(examples(0), test, pairs=False) == test.labels).mean() > 0.95
    assert (naive_bayes(examples(0), test, pairs=True) == test.labels).mean() > 0.95


def test_members_are_files_of_a_tar_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"1")
    (tmp_path / "in" / "b.bin").write_bytes(b"2")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        entry = tarfile.TarInfo("in/a.txt")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"1"))
    assert list(archives.members(tmp_path / "in", (".txt",))) == [("a.txt", b"1")]
    assert list(archives.members(tmp_path / "t.tar", (".txt",))) == [("in/a.txt", b"1")]
    with pytest.raises(BadDataError, match="does not exist"):
        list(archives.members(tmp_path / "none", (".txt",)))
