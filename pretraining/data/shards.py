"""Tokens of a corpus on disk: shards, mapped into memory, and a manifest.

A shard stores some thousand documents in three arrays: ``tokens``, the start of each sentence in them, and the start
of each document among the sentences. A shard is complete once its JSON file exists, which is written last; the corpus
is complete once ``manifest.json`` exists. Shards and vocabulary of an interrupted preparation are used again only
by the sources that made them (``begin``).
"""

import functools
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqarena.common.data.prepared import report_outdated
from seqarena.common.data.tokenization import Tokenizer, load_tokenizer
from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import LOCK, write_atomically, write_json
from seqarena.common.runs.sources import Sources, imported_by
from seqarena.common.training.log import with_progress
from seqarena.common.training.workers import exit_with_parent
from seqarena.pretraining.data.documents import Text, sentences

DOCUMENTS = 2_000
"""Documents per shard. An interruption loses at most one shard per worker."""
ARRAYS = {"tokens": ("<u2", "<i4"), "sentences": ("<i8",), "documents": ("<i8",)}
"""Arrays of a shard with their possible types, which their checksums do not cover."""
TOKENIZER = "tokenizer"
SOURCES = "sources.json"
LEFT_OUT = (
    "seqarena.common.training.log", "seqarena.common.training.workers", "seqarena.pretraining.data.sequences",
    "seqarena.pretraining.masking",
)  # fmt: skip
"""Modules that do not change the tokens: the progress bar, worker processes, and what later reads the tokens."""
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Some documents; all arrays are mapped into memory."""

    tokens: Tokens
    sentences: npt.NDArray[np.int64]
    """Sentence n is ``tokens[sentences[n] : sentences[n + 1]]``."""
    documents: npt.NDArray[np.int64]
    """Document n consists of the sentences from ``documents[n]`` up to ``documents[n + 1]``."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All shards, and the tokenizer that encoded them."""

    shards: list[Shard]
    tokenizer: Tokenizer
    manifest: Mapping[str, Any]


def _sources() -> Sources:
    """Returns the sources that the tokens depend on."""
    return imported_by(__name__, LEFT_OUT)


def begin(folder: Path) -> None:
    """Deletes what other sources left unfinished in the folder of a corpus, and records the sources there are now."""
    record, sources = folder / SOURCES, _sources()
    try:
        before = json.loads(record.read_bytes())
    except (OSError, ValueError):
        before = None
    if before != sources:
        for each in folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name not in (LOCK, SOURCES):
                each.unlink()
        write_json(record, sources)


def write_corpus(
    texts: Iterable[str], tokenizer: Tokenizer, folder: Path, *, workers: int, what: str, read: Text | None = None
) -> int:
    """Tokenizes documents into ``folder`` and returns the number of characters; a repeated call resumes.

    ``read``: counter of the invalid bytes.

    Raises:
        BadDataError: the documents contain no token.
        OSError: a worker process was killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / TOKENIZER)
    fingerprint = load_tokenizer(folder / TOKENIZER).fingerprint
    counts: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers, get_context("spawn"), _start) as pool:
        try:
            for shard in with_progress(_shards(texts, folder, fingerprint, pool, 2 * workers), what, None):
                counts.append(shard)
        except BrokenProcessPool as error:
            raise OSError(
                f"{what}: a worker process was killed, for example because memory ran out; the same command continues "
                "with the shards that are missing"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)  # finished shards are kept for the next run
            raise
    totals = {name: sum(shard[name] for shard in counts) for name in ("characters", *ARRAYS)}
    if not totals["tokens"]:
        raise BadDataError(f"{what}: there is no text in it")
    manifest = {"tokenizer": fingerprint, "vocabulary": len(tokenizer), "shards": counts, **totals}
    manifest["sources"] = dict(_sources())
    manifest["replaced"] = 0 if read is None else read.replaced
    write_json(folder / "manifest.json", manifest)
    return int(totals["characters"])


def _shards(
    texts: Iterable[str], folder: Path, fingerprint: str, pool: Executor, ahead: int
) -> Iterator[dict[str, Any]]:
    """Yields the JSON record of each shard, in order; at most ``ahead`` shards wait in memory."""
    waiting: list[Future[dict[str, Any]] | dict[str, Any]] = []
    stream = iter(texts)
    for number in itertools.count():
        batch = list(itertools.islice(stream, DOCUMENTS))
        if not batch:
            break
        digest = hashlib.sha256("\0".join([fingerprint, *batch]).encode("utf-8", "surrogatepass")).hexdigest()
        done = _read_finished(folder, number, digest)
        waiting.append(done or pool.submit(_write_shard, folder, number, batch, digest))
        if len(waiting) > ahead:
            yield _result(waiting.pop(0))
    yield from map(_result, waiting)


def _result(one: Future[dict[str, Any]] | dict[str, Any]) -> dict[str, Any]:
    return one if isinstance(one, dict) else one.result()


def _read_finished(folder: Path, number: int, digest: str) -> dict[str, Any] | None:
    """Returns the record of a finished shard of the same documents, or None."""
    try:
        found: dict[str, Any] = json.loads((folder / f"{number:05}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if found.get("source") == digest else None


def _start() -> None:
    exit_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core is parallel enough


_load_once = functools.cache(load_tokenizer)


def _write_shard(folder: Path, number: int, texts: list[str], digest: str) -> dict[str, Any]:
    tokenizer = _load_once(folder / TOKENIZER)
    cut = [sentences(text) for text in texts]
    encoded = tokenizer.encode([sentence for document in cut for sentence in document])
    kind = np.uint16 if len(tokenizer) <= 2**16 else np.int32
    counts = np.array([len(each) for each in encoded], dtype=np.int64)
    of_document = np.repeat(np.arange(len(cut)), [len(document) for document in cut])
    kept = counts > 0
    per_document = np.bincount(of_document[kept], minlength=len(cut))
    arrays = {
        "tokens": np.concatenate([np.zeros(0, kind), *encoded]).astype(kind),
        "sentences": np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int64),
        "documents": np.concatenate([[0], np.cumsum(per_document[per_document > 0])]).astype(np.int64),
    }
    (folder / f"{number:05}.json").unlink(missing_ok=True)
    hashes = {}
    for name, array in arrays.items():
        write_atomically(folder / f"{number:05}.{name}.npy", functools.partial(np.save, arr=array))
        hashes[name] = hashlib.sha256(array.data).hexdigest()
    found = {
        "source": digest,
        "characters": sum(map(len, texts)),
        "tokens": len(arrays["tokens"]),
        "sentences": len(arrays["sentences"]) - 1,
        "documents": len(arrays["documents"]) - 1,
        "sha256": hashes,
    }
    write_json(folder / f"{number:05}.json", found)
    return found


def read_corpus(folder: Path) -> tuple[Corpus, str]:
    """Returns a corpus, mapped into memory, and the sha256 of its content.

    Prints it where other sources made the corpus than there are now.

    Raises:
        BadDataError: the manifest does not match its shards or its tokenizer; names the file.
    """
    hint = "delete the folder and run again"
    digest = hashlib.sha256()
    with damage(folder, "folder of prepared text", hint):
        manifest = json.loads((folder / "manifest.json").read_bytes())
        tokenizer = load_tokenizer(folder / TOKENIZER)
        if tokenizer.fingerprint != manifest["tokenizer"]:
            raise BadDataError(
                f"{folder}: made with tokenizer {manifest['tokenizer']}, found {tokenizer.fingerprint}; {hint}"
            )
        digest.update(tokenizer.fingerprint.encode())
        shards = []
        for number, said in enumerate(manifest["shards"]):
            arrays = {name: np.load(folder / f"{number:05}.{name}.npy", mmap_mode="r") for name in ARRAYS}
            for name, array in arrays.items():
                if array.dtype.str not in ARRAYS[name]:
                    kinds = " or ".join(ARRAYS[name])
                    raise BadDataError(
                        f"{folder}/{number:05}.{name}.npy: expected type {kinds}, found {array.dtype.str}; {hint}"
                    )
                found = hashlib.sha256(array.data).hexdigest()
                if found != said["sha256"][name]:
                    raise BadDataError(f"{folder}/{number:05}.{name}.npy: sha256 {found} is not the manifest's; {hint}")
                digest.update(found.encode())
            shards.append(Shard(**arrays))
    report_outdated(folder, manifest.get("sources"), _sources())
    return Corpus(shards=shards, tokenizer=tokenizer, manifest=manifest), digest.hexdigest()


def summary(corpus: Corpus) -> str:
    """Returns the sizes of a corpus as one printed line."""
    manifest = corpus.manifest
    return (
        f"{manifest['documents']:,} documents, {manifest['sentences']:,} sentences, {manifest['tokens']:,} tokens "
        f"of {manifest['characters']:,} characters"
    )


def say(text: str) -> None:
    """Prints a line to standard error."""
    print(text, file=sys.stderr)
