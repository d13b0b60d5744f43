"""Damaged inputs for every reader: each is read, or refused in one message. ``make fuzz`` tries thousands.

Where a format has a checksum, what is read must be what was written. Left out: what is pickled and read with
``--trust-pickles`` alone, LMDB among it.
"""

import argparse
import gzip
import io
import json
import lzma
import pickle
import shutil
import sys
import tarfile
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.torch
import torch
from PIL import Image as Picture

from seqarena.common.checksums import CHECKSUMS
from seqarena.common.data.archives import members
from seqarena.common.data.prepared import load_splits, save_splits
from seqarena.common.data.readers import read_json, read_lines, read_parquet
from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer, word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.checkpoint import load, save
from seqarena.common.model.bert.model import BertForPretraining
from seqarena.common.runs.results import Result
from seqarena.common.training.checkpoint import load_state, save_state
from seqarena.lra.data.image import _array, _picture
from seqarena.lra.data.listops.official import read_tsv
from seqarena.lra.data.pathfinder.release import read_image, read_list
from seqarena.lra.data.pickled import read_batch
from seqarena.lra.data.retrieval import read_aan
from seqarena.pretraining.data.documents import Text, documents
from seqarena.pretraining.wikitext.sources import lines_of_path
from seqarena.qa.data import mnli, squad
from seqarena.scripts.curves import read_curves
from seqarena.scripts.leaderboard.records import missing_runs
from seqarena.summarization.data.layouts import find
from seqarena.vqa.data.detected import read_layer
from seqarena.vqa.data.published import read_annotations, read_answers, read_questions
from seqarena.vqa.formats import pictures as read_pictures
from seqarena.vqa.regions import read as read_regions
from seqarena.vqa.regions import write as write_regions
from tests.common.data.test_batches import ragged
from tests.common.model.google.write import HERE as GOOGLE
from tests.common.model.google.write import NAMES
from tests.common.model.test_bert import TINY
from tests.qa.questions import squad as questions
from tests.vqa.test_regions import as_hdf5, as_npz, as_tsv, pictures

SENTENCES = "the cat sat on the mat .\n\na dog barked at <unk> .\n" * 3
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3072)).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A file or folder that is whole, and what reads it."""

    make: Callable[[Path], object]
    """Writes into an empty folder; each of the files is damaged in turn."""
    read: Callable[[Path], Any]
    """Reads that folder to the end."""
    files: str = "*"
    """Pattern of the files to damage."""
    has_checksum: bool = False
    """Whether all that is read must be what was written."""


def of_bytes(name: str, content: bytes, read: Callable[[Path], Any]) -> Reader:
    """Returns the reader of one file."""
    return Reader(
        make=lambda folder: (folder / name).write_bytes(content),
        read=lambda folder: read(folder / name),
        has_checksum=name.endswith((".gz", ".xz", ".zip", ".png")),
    )


def array(values: Any) -> bytes:
    """Returns what ``numpy.save`` writes."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def parquet(**columns: list[Any]) -> bytes:
    """Returns a Parquet file as the hub has them, with the hub's record of its columns."""
    table = pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {}}})})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


def picture() -> bytes:
    """Returns a PNG file of 32 x 32 pixels."""
    file = io.BytesIO()
    Picture.fromarray(IMAGES[0, :1024].reshape(32, 32)).save(file, "png")
    return file.getvalue()


def archive() -> bytes:
    """Returns a packed tar of two texts."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in ("a.txt", "b.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = len(SENTENCES)
            tar.addfile(entry, io.BytesIO(SENTENCES.encode()))
    return file.getvalue()


def wikitext() -> bytes:
    """Returns a zip as WikiText is published."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for split in ("train", "valid", "test"):
            made.writestr(f"wiki/wiki.{split}.tokens", SENTENCES)
    return file.getvalue()


def headlines(folder: Path) -> None:
    """Writes pairs of texts and headlines as tables."""
    for split in ("train", "valid", "test"):
        rows = [{"document": "oil prices rose .", "summary": "oil up"}, {"document": "rain .", "summary": "rain"}]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))


def all_headlines(folder: Path) -> list[Any]:
    """Returns every pair of a folder."""
    return [list(read()) for read in find(folder).values()]


def texts(path: Path) -> list[str]:
    """Returns all documents; bytes that are no UTF-8 are refused in packed text alone."""
    return list(documents(path, Text(strict=path.suffix == ".gz")))


def two_splits(path: Path) -> list[list[str]]:
    """Returns the lines of two splits of WikiText."""
    return [list(lines_of_path(path, ("tokens",))(each)) for each in ("train", "test")]


def squad_questions(path: Path) -> squad.Questions:
    """Returns the questions of version 1.1."""
    return squad.read(path, "1.1", "train")


def table_of_regions(folder: Path) -> list[Any]:
    """Returns the regions in a table."""
    return list(read_pictures(folder / "found.tsv", "tsv", False))


def regions(folder: Path) -> None:
    """Writes a detector's regions of three pictures."""
    width = pictures()[0].features.shape[1]
    write_regions(folder / "R", iter(pictures()), detector="R", pictures=3, boxes=4, width=width, source="s")


def bert(folder: Path, *, public: bool) -> None:
    """Writes a checkpoint of ours, with its checksums, or one as older public ones are: a zip of pickled tensors."""
    save(folder, BertForPretraining(TINY))
    if public:
        (folder / CHECKSUMS).unlink()
        torch.save(safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()


def weights(folder: Path) -> dict[str, Any]:
    """Returns all tensors of a checkpoint."""
    return {name: tensor.tolist() for name, tensor in load(str(folder))[0].state_dict().items()}


def plan(folder: Path) -> None:
    """Writes a sweep's plan of one run."""
    (folder / "sweeps").mkdir()
    entry = {"folder": "a", "package": "lra", "task": "listops", "preset": "quick", "changed": {}, "run": {"model": {}},
             "row": "softmax", "seed": 0, "command": "c"}  # fmt: skip
    (folder / "sweeps" / "plan.json").write_text(json.dumps({"runs": [entry]}))


def result(folder: Path) -> None:
    """Copies a result that is committed."""
    committed = next((Path(__file__).parent.parent / "results" / "hour").rglob("result.json"))
    shutil.copy(committed, folder)


QUESTIONS = {"questions": [{"question_id": 1, "image_id": 2, "question": "what ?"}]}
ANNOTATIONS = {"annotations": [{"question_id": 1, "image_id": 2, "answers": [{"answer": "yes"}] * 10}]}
NLI = [{"gold_label": "neutral", "sentence1": "a man .", "sentence2": "a woman ."}] * 2
CURVE = b'{"step": 1, "loss": 2.5, "tokens_per_second": 9.0}\n{"step": 2, "validation": {"accuracy": 0.5}}\n'
VOCABULARY = "".join(f"{word}\n" for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "##s")).encode()
READERS: dict[str, Reader] = {
    "JSON": of_bytes("a.json.gz", gzip.compress(json.dumps(questions([["France"]])).encode()), read_json),
    "JSON lines": of_bytes("a.jsonl.xz", lzma.compress(b'{"a": 1}\n{"a": [2]}\n'), lambda path: list(read_lines(path))),
    "Parquet": of_bytes(
        "a.parquet", parquet(text=["a", "b"] * 9), lambda path: [list(read_parquet(path)[0]), read_parquet(path)[1]]
    ),
    "tar": of_bytes("a.tar.gz", archive(), lambda path: list(members(path, (".txt",)))),
    "CIFAR-10 pickle": of_bytes(
        "data_batch_1",
        pickle.dumps({b"data": IMAGES, b"labels": [1, 2, 3, 4]}, protocol=2),
        lambda path: read_batch(path.read_bytes()),
    ),
    "array": of_bytes("x.npy", array(IMAGES[:, :1024]), lambda path: _array(path.read_bytes(), str(path))),
    "picture": of_bytes("a.png", picture(), lambda path: _picture(path.read_bytes(), "cat/a.png", str(path), 1)),
    "ListOps": of_bytes("a.tsv", b"Source\tTarget\n( [MAX 1 2 ] )\t2\n( [MIN 3 4 ] )\t3\n", read_tsv),
    "Pathfinder list": of_bytes("0.npy", array(np.array([["imgs/0", "a.png", "0", "1"]])), read_list),
    "Pathfinder picture": of_bytes("a.png", picture(), lambda path: read_image(path, 32, "line 1")),
    "AAN": of_bytes("a.tsv", b"1\t5\t6\ta text\tanother\n0\t7\t8\tb\tc\n", lambda path: list(read_aan(path, 2))),
    "text": of_bytes("a.txt.gz", gzip.compress(SENTENCES.encode()), texts),
    "text lines": of_bytes(
        "a.jsonl.gz",
        gzip.compress("".join(f'{{"text": "{number**5}"}}\n' for number in range(40)).encode()),
        texts,
    ),
    "text in Parquet": of_bytes("a.parquet", parquet(text=["a", "b"] * 9), texts),
    "WikiText": of_bytes("a.zip", wikitext(), two_splits),
    "SQuAD": of_bytes(
        "a.json",
        json.dumps(questions([["France"], ["Normandy"]])).encode(),
        squad_questions,
    ),
    "MNLI": of_bytes("a.jsonl", "".join(f"{json.dumps(each)}\n" for each in NLI).encode(), mnli.read),
    "headlines": Reader(make=headlines, read=all_headlines),
    "VQA questions": of_bytes("a.json", json.dumps(QUESTIONS).encode(), read_questions),
    "VQA annotations": of_bytes("a.json", json.dumps(ANNOTATIONS).encode(), read_annotations),
    "VQA answers": of_bytes("a.json", json.dumps({"yes": 0, "no": 1}).encode(), read_answers),
    "regions as a table": Reader(
        make=lambda folder: as_tsv(folder, pictures()),
        read=table_of_regions,
    ),
    "regions as .npz": Reader(
        make=lambda folder: as_npz(folder, pictures(), turned=False),
        read=lambda folder: list(read_pictures(folder / "npz", "npz", False)),
    ),
    "regions as HDF5": Reader(
        make=lambda folder: as_hdf5(folder, pictures(), ragged=True),
        read=lambda folder: list(read_pictures(folder / "train.hdf5", "hdf5", True)),
        files="*.hdf5",
    ),
    "regions": Reader(make=regions, read=lambda folder: read_regions(folder / "R", verify=True)),
    "a detector's layer": Reader(
        make=lambda folder: np.savez(folder / "fc7.npz", weight=np.ones((2, 3)), bias=np.ones(2)),
        read=lambda folder: read_layer(folder / "fc7.npz"),
    ),
    "vocabulary": of_bytes("vocab.txt", VOCABULARY, load_tokenizer),
    "SentencePiece": Reader(
        make=lambda folder: train_tokenizer(SENTENCES.split("\n"), "sentencepiece", 100).save(folder),
        read=lambda folder: load_tokenizer(folder).encode_with_offsets([SENTENCES]),
        files="spiece.model",
    ),
    "tokenizer": Reader(make=lambda folder: word_tokenizer(["up", "down"]).save(folder), read=load_tokenizer),
    "BERT": Reader(make=lambda folder: bert(folder, public=False), read=weights),
    "BERT as pickled tensors": Reader(make=lambda folder: bert(folder, public=True), read=weights),
    **{
        f"Google's {kind}": Reader(
            make=lambda folder, kind=kind: shutil.copytree(GOOGLE / kind, folder, dirs_exist_ok=True),
            read=weights,
            files=f"{name}.*",
            has_checksum=True,
        )
        for kind, name in NAMES.items()
    },
    "result": Reader(make=result, read=Result.read),
    "plan": Reader(make=plan, read=missing_runs),
    "curve": of_bytes("metrics.jsonl", CURVE, lambda path: read_curves(path.parent)),
    "checkpoint": Reader(
        make=lambda folder: save_state(folder / "last.pt", {"format": 4, "model": {"w": torch.ones(9)}}),
        read=lambda folder: load_state(folder / "last.pt"),
    ),
    "prepared data": Reader(
        make=lambda folder: save_splits(folder, {"train": ragged([3, 1, 2])}, {"sha256": ""}), read=load_splits
    ),
}


def damaged(content: bytes, generator: np.random.Generator) -> bytes:
    """Returns a file's bytes with one kind of damage: bits turned, a part cut, zeroed, doubled or made of others."""
    made, kind = bytearray(content), int(generator.integers(7))
    start, stop = sorted(generator.integers(0, len(made) + 1, 2).tolist())
    if kind <= 1:
        for place in generator.integers(0, max(1, len(made)), 1 if kind else 8).tolist():
            made[place : place + 1] = bytes([made[place] ^ 1 << int(generator.integers(8))]) if made else b""
    elif kind == 2:
        del made[stop:]
    elif kind == 3:
        made[start : start + 16] = bytes(len(made[start : start + 16]))
    elif kind == 4:
        made[start:start] = made[start:stop][:64]
    elif kind == 5:
        made[start:start] = generator.bytes(int(generator.integers(1, 9)))
    else:  # a value of another kind, where the file is text
        words = (b"null", b"[]", b"{}", b"-1", b"1e999", b'"x"', b"[" * 100_000, b"\xff", b"")
        made[start : start + int(generator.integers(1, 6))] = words[int(generator.integers(len(words)))]
    return bytes(made)


def shown(content: Any) -> str:
    """Returns all that was read as text."""
    with np.printoptions(threshold=sys.maxsize):
        return repr(content)


def attempts(reader: Reader, seed: int, times: int) -> Iterator[tuple[str, bool, BaseException | None]]:
    """Yields what became of each damaged copy: its file, whether it was read, and a defect of ours if there is one."""
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as place:
        whole, copy = Path(place, "whole"), Path(place, "copy")
        whole.mkdir()
        reader.make(whole)
        shutil.copytree(whole, copy)
        expected = shown(reader.read(copy))
        files = sorted(each for each in whole.rglob(reader.files) if each.is_file())
        for _ in range(times):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            file = copy / files[int(generator.integers(len(files)))].relative_to(whole)
            file.write_bytes(damaged(file.read_bytes(), generator))
            try:
                found = shown(reader.read(copy))
            except (BadDataError, WrongUseError, OSError):
                yield file.name, False, None
            except ValueError as error:
                yield file.name, False, None if reader is READERS["CIFAR-10 pickle"] else error
            except Exception as error:
                yield file.name, False, error
            else:
                is_other = reader.has_checksum and found != expected
                yield file.name, not is_other, AssertionError("other content was read") if is_other else None


def main() -> int:
    """Prints how many damaged files of each reader were read or refused; returns 1 if one ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2_000, help="damaged copies for each reader (default: 2000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    defects = 0
    for name, reader in READERS.items():
        found: Counter[str] = Counter()
        for file, is_read, error in attempts(reader, options.seed, options.times):
            found["read" if is_read else "refused" if error is None else "defect"] += 1
            if error is not None:
                print(f"{name}, {file}:", file=sys.stderr)
                traceback.print_exception(error, limit=-4)
        defects += found["defect"]
        print(f"{name}: {found['refused']:,} refused, {found['read']:,} read, {found['defect']:,} defects", flush=True)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
