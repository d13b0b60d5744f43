"""Text to shards: every format, damage, interruptions."""

import gzip
import json
import lzma
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.norms import NORMS
from seqarena.pretraining.data import MaskedText, shards
from seqarena.pretraining.data.documents import Text, from_hub, sentences
from seqarena.pretraining.data.shards import read_corpus, write_corpus
from seqarena.pretraining.model import Model, check
from tests.pretraining.texts import TEXTS

pytestmark = pytest.mark.usefixtures("small_shards")


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
    both = MaskedText(hub=f"{folder},{folder}")
    assert list(both._documents(Text(strict=True))) == [*TEXTS, *TEXTS]
    assert "," not in both._name()
    with pytest.raises(WrongUseError, match="joined with commas, found 'one,'"):
        MaskedText(hub="one,").check()
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


def test_a_changed_local_folder_in_the_layout_of_the_hub_is_tokenized_again(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(tmp_path / "in", "parquet")
    data = MaskedText(hub=f"{folder},{folder}", tokenizer=str(vocabulary))
    made, checksum = data.load(tmp_path)
    assert data.load(tmp_path)[1] == checksum
    datasets.Dataset.from_dict({"text": [*TEXTS, "One more."]}).to_parquet(folder / "a.parquet")
    again, other = data.load(tmp_path)
    assert again.manifest["documents"] == made.manifest["documents"] + 2
    assert other != checksum


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
    assert "12 invalid sequences of UTF-8 were replaced" in capsys.readouterr().err
    with pytest.raises(BadDataError, match="12 invalid sequences of UTF-8 were replaced when it was prepared"):
        replace(data, strict=True).load(tmp_path)


def test_a_worker_that_is_killed_is_one_message(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system kills a worker when memory runs out."""

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


def test_another_vocabulary_for_the_book_is_trained() -> None:
    assert not MaskedText().is_trained
    assert MaskedText(kind="sentencepiece").is_trained
    assert MaskedText(vocabulary=500).is_trained
    assert (
        len({data._name() for data in (MaskedText(), MaskedText(kind="sentencepiece"), MaskedText(vocabulary=500))})
        == 3
    )
    model = Model(layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=400, max_length=128)
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
    model = Model(layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=9, max_length=64, token_types=1)
    with pytest.raises(WrongUseError, match="max_length 64: expected at least the longest sequence, 128"):
        check(model, MaskedText())
    with pytest.raises(WrongUseError, match="does not support packed rows"):
        check(replace(model, norm=NORMS["deescalated"]), MaskedText(length=64, building="packed"))
    with pytest.raises(WrongUseError, match="token_types: expected at least 2 for pairs of segments"):
        check(model, MaskedText(length=64, building="next"))
