"""Text to shards to sequences: every format, damage, interruptions, borders of documents."""

import gzip
import json
import lzma
from collections.abc import Iterator
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.model import BertConfig
from seqarena.common.model.norms import NORMS
from seqarena.pretraining.data import MaskedText, sequences, shards, split
from seqarena.pretraining.data.batches import Builder
from seqarena.pretraining.data.documents import from_hub, sentences
from seqarena.pretraining.data.sequences import ALONE, BACKWARD, FORWARD, Sequences, build
from seqarena.pretraining.data.shards import Corpus, Shard, read_corpus, write_corpus
from seqarena.pretraining.masking import NONE, Masker
from seqarena.pretraining.model import check

TEXTS = [
    "Call me Ishmael. Some years ago I went to sea! Whenever it is damp, I go.",
    "There now is your city.\nRight and left the streets take you waterward",
    "Once more. Say you are in the country; in some high land of lakes? Take almost any path.",
] * 6


def write(folder: Path, kind: str) -> Path:
    """The texts in one of the formats."""
    folder.mkdir()
    plain = "\n\n".join(TEXTS).encode()
    lines = "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(TEXTS)).encode()
    if kind == "parquet":
        datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(len(TEXTS)))}).to_parquet(folder / "a.parquet")
    elif kind.startswith("jsonl"):
        (folder / f"a.{kind}").write_bytes(gzip.compress(lines) if kind.endswith("gz") else lines)
    elif kind == "two files":
        half = len(TEXTS) // 2
        for name, some in (("a.txt", TEXTS[:half]), ("b.txt", TEXTS[half:])):
            (folder / name).write_text("\n\n\n".join(some))
    else:
        (folder / f"a.{kind}").write_bytes(lzma.compress(plain) if kind.endswith("xz") else plain)
    return folder


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    train_tokenizer(TEXTS, "wordpiece", 120).save(folder)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of five documents, written in this process."""

    class Now(Executor):
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> "Now":
            return self

        def __exit__(self, *_: object) -> None: ...
        def shutdown(self, **_: object) -> None: ...
        def submit(self, call, *given):  # type: ignore[no-untyped-def]
            return call(*given)

    monkeypatch.setattr(shards, "ProcessPoolExecutor", Now)
    monkeypatch.setattr(shards, "DOCUMENTS", 5)


@pytest.mark.parametrize("kind", ["txt", "txt.xz", "jsonl", "jsonl.gz", "parquet", "two files"])
def test_every_format_gives_the_same_tokens(tmp_path: Path, vocabulary: Path, kind: str) -> None:
    data = MaskedText(path=str(write(tmp_path / "in", kind)), tokenizer=str(vocabulary))
    made, checksum = data.load(tmp_path)
    tokenizer = load_tokenizer(vocabulary)
    expected = np.concatenate([np.concatenate(tokenizer.encode(sentences(text))) for text in TEXTS])
    found = np.concatenate([shard.tokens for shard in made.shards])
    assert (found == expected).all()
    assert [len(shard.documents) - 1 for shard in made.shards] == [5, 5, 5, 3]
    assert made.manifest["documents"] == len(TEXTS)
    again, same = data.load(tmp_path)
    assert same == checksum
    assert again.manifest == made.manifest


def test_the_hub_is_read_by_its_layout(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", "parquet")
    assert list(from_hub(str(folder))) == TEXTS
    with pytest.raises(BadDataError, match=r"cannot be read .*--data.path to files"):
        next(iter(from_hub(str(tmp_path / "nothing"))))
    datasets.Dataset.from_dict({"title": ["a"]}).to_parquet(folder / "a.parquet")
    with pytest.raises(BadDataError, match="row 0: expected text in column text, found title"):
        next(iter(from_hub(str(folder))))


def test_an_interrupted_corpus_goes_on_with_the_shards_that_are_missing(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, real = load_tokenizer(vocabulary), shards._write_shard
    write_corpus(TEXTS, tokenizer, tmp_path / "whole", workers=1, what="test")
    written: list[int] = []

    def stop(folder: Path, number: int, *given: object) -> dict:
        if number == 2 and not written.count(-1):
            written.append(-1)
            raise KeyboardInterrupt
        written.append(number)
        return real(folder, number, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "_write_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(TEXTS, tokenizer, tmp_path / "cut", workers=1, what="test")
    with pytest.raises(BadDataError, match="not a whole folder of prepared text"):  # no manifest: not taken for whole
        read_corpus(tmp_path / "cut")
    (tmp_path / "cut" / "00001.json").write_text("{")  # cut short
    write_corpus(TEXTS, tokenizer, tmp_path / "cut", workers=1, what="test")
    assert written == [0, 1, -1, 1, 2, 3]
    assert read_corpus(tmp_path / "cut")[1] == read_corpus(tmp_path / "whole")[1]
    write_corpus([*TEXTS[:-1], "Another end."], tokenizer, tmp_path / "cut", workers=1, what="test")
    assert written[6:] == [3]  # other documents are not taken for those that were there


def edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the rule that cuts sentences is another one, and so is its file."""
    real = shards.imported_by
    name = "pretraining/data/documents.py"
    monkeypatch.setattr(shards, "imported_by", lambda *given: {**real(*given), name: "edited"})
    monkeypatch.setattr(shards, "sentences", lambda text: [each[:10] for each in sentences(text)])


def test_tokens_of_an_edited_generator_are_told(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = MaskedText(path=str(write(tmp_path / "in", "txt")), tokenizer=str(vocabulary))
    _, before = data.load(tmp_path)
    assert data.load(tmp_path)[1] == before
    assert "delete it" not in capsys.readouterr().err
    edited(monkeypatch)
    assert data.load(tmp_path)[1] == before
    assert (
        "was made before pretraining/data/documents.py changed and is used as it is; delete it to make it again"
        in capsys.readouterr().err
    )


def test_an_edit_of_the_progress_bar_begins_nothing_again() -> None:
    names = set(shards._sources())
    assert {"pretraining/data/documents.py", "common/data/tokenization/wordpiece.py"} < names
    assert {"pretraining/data/__init__.py", "pretraining/data/shards.py"} < names
    assert not {name for name in names if name.startswith("common/training") or "masking" in name}


def test_sentencepiece_gives_the_same_shards_and_is_stored_with_them(tmp_path: Path) -> None:
    data = MaskedText(path=str(write(tmp_path / "in", "txt")), kind="sentencepiece", vocabulary=100)
    made, checksum = data.load(tmp_path / "one")
    assert data.load(tmp_path / "other")[1] == checksum  # its training is deterministic
    where = next((tmp_path / "one" / "pretraining").iterdir())
    assert where.name.endswith("sentencepiece100")
    tokenizer = load_tokenizer(where / "tokenizer" / "spiece.model")
    assert tokenizer.fingerprint == made.tokenizer.fingerprint == made.manifest["tokenizer"]
    expected = np.concatenate([np.concatenate(tokenizer.encode(sentences(text))) for text in TEXTS])
    assert (np.concatenate([shard.tokens for shard in made.shards]) == expected).all()


def test_an_interrupted_corpus_of_an_edited_generator_begins_again(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MaskedText(path=str(write(tmp_path / "in", "txt")), tokenizer=str(vocabulary))
    real = shards._write_shard

    def stop(folder: Path, number: int, *given: object) -> dict:
        if number == 2:
            raise KeyboardInterrupt
        return real(folder, number, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as cut:
        cut.setattr(shards, "_write_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            data.load(tmp_path / "cut")
    edited(monkeypatch)
    found, expected = (data.load(tmp_path / name)[1] for name in ("cut", "whole"))
    assert found == expected


def test_a_vocabulary_is_kept_of_an_interruption_but_not_of_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MaskedText(path=str(write(tmp_path / "in", "txt")), vocabulary=120)
    trained = []

    def counted(*given: Any) -> Any:
        trained.append(given)
        return train_tokenizer(*given)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seqarena.pretraining.data.train_tokenizer", counted)
    with monkeypatch.context() as cut:
        cut.setattr(shards, "_write_shard", stop)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                data.load(tmp_path)
    assert len(trained) == 1
    edited(monkeypatch)
    data.load(tmp_path)
    assert len(trained) == 2


def test_a_raised_version_leaves_older_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [MaskedText(), MaskedText(path=__file__), MaskedText(hub="a/b:c"), MaskedText(hub="a/b", tokenizer="d")]
    before = [each._name() for each in every]
    monkeypatch.setattr("seqarena.pretraining.data.VERSION", 10**6)
    assert not {each._name() for each in every} & {*before}


def test_damage_is_named(tmp_path: Path, vocabulary: Path) -> None:
    def reason(content: bytes, name: str = "a.txt", **changes: object) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises((BadDataError, WrongUseError)) as error:
            replace(MaskedText(path=str(path), tokenizer=str(vocabulary)), **changes).load(tmp_path)  # type: ignore[arg-type]
        return str(error.value)

    assert "a.txt: there is no text in it" in reason(b"\n")
    assert "a.txt: there is no text in it" in reason(b"", tokenizer=None)
    assert "expected files that end in .parquet, .jsonl, .txt" in reason(b"x", "a.csv")
    assert "line 2: invalid UTF-8 at byte 1 (b'\\xff')" in reason(b"a\n\xff\n", strict=True)
    assert "b.jsonl, line 2: expected an object with" in reason(b'{"text": "a"}\n{"txt": 1}\n', "b.jsonl")
    assert "b.jsonl, line 1: expected text in" in reason(b'{"text": 3}\n', "b.jsonl")
    assert "not a whole Parquet file" in reason(b"PAR1", "c.parquet")
    assert "not a whole text file" in reason(gzip.compress(b"words\n" * 99)[:-9], "d.txt.gz")
    half = b'{"text": "a \\ud800 b"}\n'
    assert "e.jsonl, line 1: invalid UTF-8" in reason(half, "e.jsonl", strict=True)
    column = pa.array([b"a \xff b"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": column}), tmp_path / "f.parquet")
    assert "invalid UTF-8 at byte 3" in reason((tmp_path / "f.parquet").read_bytes(), "f.parquet", strict=True)
    missing = tmp_path / "nowhere"
    with pytest.raises(BadDataError, match=r"nowhere: no such file or folder"):
        MaskedText(path=str(missing)).load(tmp_path)
    vocabulary_file = tmp_path / "vocab.txt"
    vocabulary_file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    with pytest.raises(BadDataError, match=r"vocabulary has no \[MASK\]"):
        load_tokenizer(vocabulary_file)
    vocabulary_file.write_text("[PAD]\n[PAD]\n")
    with pytest.raises(BadDataError, match=r"expected each token once, found .* twice"):
        load_tokenizer(vocabulary_file)


def test_invalid_bytes_are_replaced_and_counted(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\n\n".join(TEXTS).encode().replace(b"Ishmael", b"Ish\xffmael\xfe"))
    data = MaskedText(path=str(path), tokenizer=str(vocabulary))
    data.load(tmp_path)
    assert "12 invalid bytes of UTF-8 were replaced" in capsys.readouterr().err
    with pytest.raises(BadDataError, match="12 invalid bytes of UTF-8 were replaced when it was prepared"):
        replace(data, strict=True).load(tmp_path)


def test_a_worker_that_is_killed_is_one_message(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system kills it when memory runs out."""

    def killed(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(shards, "_write_shard", killed)
    with pytest.raises(OSError, match=r"test: a worker process was killed, .*; the same command continues"):
        write_corpus(TEXTS, load_tokenizer(vocabulary), tmp_path, workers=1, what="test")


def test_what_does_not_match_its_manifest_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    tokenizer = load_tokenizer(vocabulary)
    write_corpus(TEXTS, tokenizer, tmp_path, workers=1, what="test")
    tokens = np.load(tmp_path / "00001.tokens.npy")
    np.save(tmp_path / "00001.tokens.npy", tokens[::-1])
    with pytest.raises(BadDataError, match=r"00001.tokens.npy: sha256 [0-9a-f]+ is not the manifest's; delete"):
        read_corpus(tmp_path)
    np.save(tmp_path / "00001.tokens.npy", tokens)
    read_corpus(tmp_path)
    np.save(tmp_path / "00001.tokens.npy", tokens.view(tokens.dtype.newbyteorder()))  # the same bytes, other numbers
    with pytest.raises(BadDataError, match=r"00001.tokens.npy: expected type <u2 or <i4, found >u2; delete"):
        read_corpus(tmp_path)
    np.save(tmp_path / "00001.tokens.npy", tokens)
    train_tokenizer(TEXTS[:3], "wordpiece", 110).save(tmp_path / "tokenizer")
    with pytest.raises(BadDataError, match="made with tokenizer"):
        read_corpus(tmp_path)


def toy(lengths: list[list[int]]) -> list[Shard]:
    """Documents of sentences of so many tokens, each token its own number; two shards."""
    made, number = [], 0
    for some in (lengths[::2], lengths[1::2]):
        counts = [count for document in some for count in document]
        tokens = np.arange(number, number + sum(counts), dtype=np.int32)
        number += sum(counts)
        made.append(
            Shard(
                tokens=tokens,
                sentences=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                documents=np.concatenate([[0], np.cumsum([len(document) for document in some])]).astype(np.int64),
            )
        )
    return made


def parts_of(found: Sequences) -> Iterator[list[np.ndarray]]:
    return (list(found.parts[a:b]) for a, b in zip(found.first[:-1], found.first[1:], strict=True))


LENGTHS = [[3, 4, 5, 2], [7], [30, 2, 2], [1] * 12, [6, 6, 6, 6], [2, 9, 3, 3], [40], [4, 4]]
EVERY = [np.ones(4, dtype=bool)] * 2


def document_of(shard: Shard, token: int) -> int:
    sentence = int(np.searchsorted(shard.sentences, token, side="right")) - 1
    return int(np.searchsorted(shard.documents, sentence, side="right")) - 1


@pytest.mark.parametrize("length", [8, 16, 64])
@pytest.mark.parametrize("building", ["blocks", "packed"])
def test_blocks_hold_every_token_once_and_one_document(building: str, length: int) -> None:
    made = toy(LENGTHS)
    found = build(made, EVERY, building, length, 0.0, 0)  # type: ignore[arg-type]
    assert (found.lengths <= length).all()
    seen = [np.arange(start, stop) + 10_000 * shard for shard, start, stop in found.parts]
    total = sum(len(shard.tokens) for shard in made)
    assert len(np.unique(np.concatenate(seen))) == len(np.concatenate(seen)) == total
    for shard, start, stop in found.parts:
        assert document_of(made[shard], start) == document_of(made[shard], stop - 1)
    if building == "packed" and length == 64:
        assert len(found) <= len(found.parts) / 2
    chosen = [np.array([True, False, False, True]), np.zeros(4, dtype=bool)]
    some = build(made, chosen, building, length, 0.0, 0)  # type: ignore[arg-type]
    assert {document_of(made[0], start) for _, start, _ in some.parts} == {0, 3}


@pytest.mark.parametrize("building", ["order", "next"])
def test_pairs_are_what_their_order_says(building: str) -> None:
    made = toy(LENGTHS * 40)
    every = [np.ones(160, dtype=bool)] * 2
    found = build(made, every, building, 20, 0.1, 3)  # type: ignore[arg-type]
    assert (found.lengths <= 20).all()
    assert (build(made, every, building, 20, 0.1, 3).parts == found.parts).all()  # type: ignore[arg-type]
    for parts, order in zip(parts_of(found), found.order.tolist(), strict=True):
        homes = [(shard, document_of(made[shard], start)) for shard, start, _ in parts]
        assert all(
            document_of(made[shard], stop - 1) == home[1] for (shard, _, stop), home in zip(parts, homes, strict=True)
        )
        if order == ALONE:
            assert len(parts) == 1
            continue
        (_, a, _), (_, b, _) = parts
        if building == "next":
            assert (homes[0] == homes[1]) == (order == FORWARD)
        else:
            assert homes[0] == homes[1]
            assert (a < b) == (order == FORWARD)
    share = (found.order == BACKWARD).sum() / (found.order != ALONE).sum()
    assert 0.45 < share < 0.75  # of next, single sentences always
    assert (found.order == ALONE).any() == (building == "order")


def test_short_pairs_are_as_frequent_as_asked() -> None:
    made = toy([[3] * 22] * 400)
    every = [np.ones(200, dtype=bool)] * 2
    plain, short = (build(made, every, "order", 67, probability, 0).lengths for probability in (0.0, 0.5))
    assert set(plain.tolist()) == {67}
    assert 0.3 < (short < 55).mean() < 0.9


def corpus(vocabulary: Path) -> Corpus:
    tokenizer = load_tokenizer(vocabulary)
    some = [replace(shard, tokens=(shard.tokens % 100 + 10).astype(np.uint16)) for shard in toy(LENGTHS)]
    return Corpus(shards=some, tokenizer=tokenizer, manifest={"documents": 8})


@pytest.mark.parametrize("building", ["blocks", "order", "next", "packed"])
def test_a_batch_is_what_bert_reads(vocabulary: Path, building: str) -> None:
    made = corpus(vocabulary)
    found = build(made.shards, EVERY, building, 24, 0.0, 0)  # type: ignore[arg-type]
    builder = Builder(made, found, Masker(MaskedText().masking, made.tokenizer, np.ones(120, np.int64), 0))
    every = np.arange(len(found))
    batch = builder.batch(every, np.zeros(len(found), np.int64))
    whole = batch.tokens.clone().scatter_(
        1, batch.places, batch.targets.where(batch.targets != NONE, batch.tokens[:, :1])
    )
    cls, sep, pad = (made.tokenizer.id(name) for name in ("[CLS]", "[SEP]", "[PAD]"))
    for row, parts in enumerate(parts_of(found)):
        texts = [made.shards[shard].tokens[start:stop].tolist() for shard, start, stop in parts]
        expected, types, segments, positions = [], [], [], []
        for number, text in enumerate(texts):
            piece = [*([cls] if number == 0 or building == "packed" else []), *text, sep]
            expected += piece
            types += [0 if building == "packed" else number] * len(piece)
            segments += [number] * len(piece)
            positions += list(range(len(piece)))
        rest = batch.tokens.shape[1] - len(expected)
        assert whole[row].tolist() == expected + [pad] * rest
        assert batch.real[row].tolist() == [True] * len(expected) + [False] * rest
        assert batch.types[row].tolist() == types + [0] * rest
        if building == "packed":
            assert batch.segments is not None
            assert batch.positions is not None
            assert batch.segments[row].tolist() == segments + [len(parts)] * rest
            assert batch.positions[row].tolist() == positions + [0] * rest
    assert batch.weight() == int((batch.targets != NONE).sum())
    half = batch.rows(0, 2)
    assert (half.segments is None) == (building != "packed")
    padded = Builder(made, found, builder.masker, pad_to=30).batch(every, np.zeros(len(found), np.int64))
    assert padded.tokens.shape[1] == 30
    longer = batch.longer(30)
    for name in ("tokens", "types", "real", "places", "targets"):
        some = getattr(padded, name)[:, : getattr(longer, name).shape[1]]
        assert torch.equal(getattr(longer, name), some) == (name != "tokens" or not pad), name
    assert longer.weight() == batch.weight()
    assert padded.weight() == batch.weight()


def test_epochs_have_other_masks_and_the_same_sequences(vocabulary: Path) -> None:
    order = ShuffledIndices(lengths=np.full(10, 5), batch_size=4, seed=0)
    seen = [order.with_epochs(step) for step in range(5)]
    assert sorted(np.concatenate([examples for examples, _ in seen])[:10].tolist()) == list(range(10))
    assert np.concatenate([epochs for _, epochs in seen]).tolist() == [0] * 10 + [1] * 10


def test_splits_share_no_document(vocabulary: Path) -> None:
    made = corpus(vocabulary)
    parts = split(made, MaskedText(held_out=0.3))
    for number in range(2):
        assert (sum(parts[name][number].astype(int) for name in parts) == 1).all()
    assert sum(len(sequences(made, MaskedText(), parts[name], 16)) for name in parts) > 8
    with pytest.raises(BadDataError, match="8 documents are too few"):
        split(made, MaskedText(held_out=0.001))


def test_packing_wastes_little() -> None:
    """Blocks of long documents too: each goes where it fits best."""
    generator = np.random.default_rng(0)
    made = toy([generator.integers(2, 30, 12).tolist() for _ in range(300)])
    every = [np.ones(150, dtype=bool)] * 2
    packed, blocks = (build(made, every, kind, 64, 0.0, 0) for kind in ("packed", "blocks"))  # type: ignore[arg-type]
    assert len(packed) <= 1.2 * (packed.lengths.sum() / 64)
    assert len(packed) < 0.95 * len(blocks)
    few = packed.some(20, seed=3)
    assert len(few) == 20
    assert set(map(tuple, few.parts.tolist())) <= set(map(tuple, packed.parts.tolist()))
    assert packed.some(10**6, seed=3) is packed


def test_another_vocabulary_for_the_book_is_trained() -> None:
    assert not MaskedText().is_trained
    assert MaskedText(kind="sentencepiece").is_trained
    assert MaskedText(vocabulary=500).is_trained
    assert (
        len({data._name() for data in (MaskedText(), MaskedText(kind="sentencepiece"), MaskedText(vocabulary=500))})
        == 3
    )
    model = BertConfig(layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=400, max_length=128)
    with pytest.raises(WrongUseError, match=r"vocabulary 400 is below the 500 tokens .*--data.vocabulary 400"):
        check(model, MaskedText(vocabulary=500))


def test_settings_that_describe_no_text_are_refused() -> None:
    for changes, message in (
        ({"path": "a", "hub": "b"}, "expected at most one of them"),
        ({"length": 4}, "expected 8 to 32,768 tokens, found 4"),
        ({"last_length": 7}, "found 7"),
        ({"held_out": 0.5}, "held_out"),
        ({"short": 1.0}, "short"),
    ):
        with pytest.raises(WrongUseError, match=message):
            MaskedText(**changes).check()
    model = BertConfig(layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=9, max_length=64, token_types=1)
    with pytest.raises(WrongUseError, match="max_length 64: expected at least the longest sequence, 128"):
        check(model, MaskedText())
    with pytest.raises(WrongUseError, match="does not support packed rows"):
        check(replace(model, norm=NORMS["deescalated"]), MaskedText(length=64, building="packed"))
    with pytest.raises(WrongUseError, match="token_types: expected at least 2 for pairs of segments"):
        check(model, MaskedText(length=64, building="next"))
