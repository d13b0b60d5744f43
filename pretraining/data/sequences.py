"""Builds sequences from documents: blocks of one document, pairs of its segments, or rows packed with several.

Sequences are lists of token ranges, computed once per length and seed; tokens are not copied. Two documents meet only
in the negatives of next-sentence pairs and in packed rows, where attention does not cross documents.
"""

from dataclasses import dataclass
from typing import Literal, no_type_check

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import sample_indices
from seqarena.common.data.compiled import compiled
from seqarena.common.data.counter import GOLDEN, hash64, mix64
from seqarena.pretraining.data.shards import Shard

Building = Literal["blocks", "order", "next", "packed"]
Ranges = npt.NDArray[np.int64]
OPEN = 256
"""Number of rows that stay open while blocks are packed."""
FORWARD, BACKWARD, ALONE = 0, 1, -100
"""Order of a pair: original, or swapped or unrelated. Of a single segment: no target."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Token ranges of each sequence, without ``[CLS]`` and ``[SEP]``."""

    parts: Ranges
    """(parts, 3): shard, start and end of each part in the shard's tokens."""
    first: Ranges
    """Sequence n consists of the parts from ``first[n]`` up to ``first[n + 1]``."""
    order: npt.NDArray[np.int64]
    """``FORWARD``, ``BACKWARD`` (swapped, or from another document) or ``ALONE``."""
    packed: bool

    def __len__(self) -> int:
        return len(self.order)

    def some(self, count: int, seed: int) -> "Sequences":
        """Returns at most ``count`` sequences, drawn by ``seed``, in their original order."""
        if len(self) <= count:
            return self
        chosen = sample_indices(len(self), count, seed)
        counts = np.diff(self.first)[chosen]
        parts = np.concatenate([np.arange(self.first[each], self.first[each + 1]) for each in chosen.tolist()])
        return Sequences(
            parts=self.parts[parts],
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            order=self.order[chosen],
            packed=self.packed,
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sequence, special ones counted."""
        parts = np.add.reduceat(self.parts[:, 2] - self.parts[:, 1], self.first[:-1]) if len(self) else self.order
        counts = np.diff(self.first)
        lengths: npt.NDArray[np.int64] = parts + (2 * counts if self.packed else counts + 1)
        return lengths


def build(
    shards: list[Shard], chosen: list[npt.NDArray[np.bool_]], building: Building, length: int, short: float, seed: int
) -> Sequences:
    """Returns the sequences of the ``chosen`` documents of each shard, of at most ``length`` tokens.

    With probability ``short`` a pair gets a target length drawn from 2 upwards, as in BERT.
    """
    parts, counts, orders = [], [], []
    for number, (shard, some) in enumerate(zip(shards, chosen, strict=True)):
        sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
        key = hash64(seed, number)[0]
        if building in ("order", "next"):
            found, order = _pairs(sentences, documents, some, length - 3, short, building == "next", key)
            count = np.where(order == ALONE, 1, 2)
            found = found[np.arange(len(found)) % 2 < np.repeat(count, 2)]
        else:
            found = _blocks(sentences, documents, some, length - 2)
            count = np.ones(len(found), dtype=np.int64)
            if building == "packed":
                rows = _rows(found[:, 1] - found[:, 0] + 2, length)
                found, count = found[np.argsort(rows, kind="stable")], np.bincount(rows)
            order = np.full(len(count), ALONE)
        parts.append(np.column_stack([np.full(len(found), number), found]))
        counts.append(count)
        orders.append(order)
    return Sequences(
        parts=np.concatenate(parts).astype(np.int64),
        first=np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64),
        order=np.concatenate(orders).astype(np.int64),
        packed=building == "packed",
    )


mix = compiled(inline="always")(mix64)


@compiled()
@no_type_check
def _blocks(sentences, documents, chosen, most):
    """Returns the ranges of blocks: as many sentences of one document as fit; a longer sentence is split."""
    found = np.empty((len(sentences) + sentences[-1] // most + 1, 2), dtype=np.int64)
    count = 0
    for document in range(len(documents) - 1):
        if not chosen[document]:
            continue
        start = sentences[documents[document]]
        for sentence in range(documents[document], documents[document + 1]):
            stop = sentences[sentence + 1]
            if stop - start > most and sentences[sentence] > start:
                found[count, 0], found[count, 1] = start, sentences[sentence]
                count += 1
                start = sentences[sentence]
            while stop - start > most:
                found[count, 0], found[count, 1] = start, start + most
                count += 1
                start += most
        if start < sentences[documents[document + 1]]:
            found[count, 0], found[count, 1] = start, sentences[documents[document + 1]]
            count += 1
    return found[:count].copy()


@compiled()
@no_type_check
def _rows(sizes, length):
    """Returns the packed row of each block: the best fit among the last ``OPEN`` rows."""
    rows = np.empty(len(sizes), dtype=np.int64)
    left = np.empty(len(sizes), dtype=np.int64)
    count = 0
    for block, size in enumerate(sizes):
        best = -1
        for row in range(max(0, count - OPEN), count):
            if left[row] >= size and (best < 0 or left[row] < left[best]):
                best = row
        if best < 0:
            best = count
            left[best] = length
            count += 1
        rows[block] = best
        left[best] -= size
    return rows


@compiled(inline="always")
@no_type_check
def _draw(state, below):
    """Returns a random number in [0, ``below``) and advances ``state`` (1)."""
    state[0] += GOLDEN
    return np.int64((mix(state[0]) >> np.uint64(1)) % np.uint64(below))


@compiled()
@no_type_check
def _pairs(sentences, documents, chosen, most, short, is_next, key):
    """Returns two ranges per sequence (the second is empty for a single segment), and the order of each.

    Sentences of a document are collected until they reach the target length, then split in two at a random sentence
    boundary. Half of the pairs are swapped. For next-sentence pairs the second segment is instead replaced by one of
    another document, also where there is only one sentence; the unused sentences start the next pair.
    """
    ranges = np.empty((2 * len(sentences), 2), dtype=np.int64)
    orders = np.empty(len(sentences), dtype=np.int64)
    count = 0
    some = np.flatnonzero(chosen)
    state = np.array([key], dtype=np.uint64)
    for document in some:
        sentence, last = documents[document], documents[document + 1]
        while sentence < last:
            target = most
            if _draw(state, 2**53) < short * 2**53:
                target = 2 + _draw(state, most - 1)
            stop = sentence + 1
            while stop < last and sentences[stop] - sentences[sentence] < target:
                stop += 1
            cut = sentence + 1
            if stop - sentence > 1:
                cut += _draw(state, stop - sentence - 1)
            swap = _draw(state, 2)
            a, b = (sentences[sentence], sentences[cut]), (sentences[cut], sentences[stop])
            order = 0
            if is_next and (swap or cut == stop) and len(some) > 1:
                b = _other_segment(sentences, documents, some, document, target - (a[1] - a[0]), state)
                order, stop = 1, cut
            elif cut == stop:
                order = -100
            elif swap and not is_next:
                a, b, order = b, a, 1
            a, b = _trim(a, b, most if b[1] > b[0] else most + 1, state)
            ranges[2 * count, 0], ranges[2 * count, 1] = a
            ranges[2 * count + 1, 0], ranges[2 * count + 1, 1] = b
            orders[count] = order
            count += 1
            sentence = stop
    return ranges[: 2 * count].copy(), orders[:count].copy()


@compiled()
@no_type_check
def _other_segment(sentences, documents, some, document, wanted, state):
    """Returns a range of sentences of another document, from a random one up to a length of ``wanted`` tokens."""
    other = some[_draw(state, len(some))]
    while other == document:
        other = some[_draw(state, len(some))]
    first, last = documents[other], documents[other + 1]
    first += _draw(state, last - first)
    stop = first + 1
    while stop < last and sentences[stop] - sentences[first] < wanted:
        stop += 1
    return sentences[first], sentences[stop]


@compiled()
@no_type_check
def _trim(a, b, most, state):
    """Returns both ranges, cut to ``most`` tokens together: the longer loses tokens at a random end."""
    a_start, a_stop = a
    b_start, b_stop = b
    while a_stop - a_start + b_stop - b_start > most:
        front = _draw(state, 2)
        if a_stop - a_start > b_stop - b_start:
            a_start, a_stop = a_start + front, a_stop - (1 - front)
        else:
            b_start, b_stop = b_start + front, b_stop - (1 - front)
    return (a_start, a_stop), (b_start, b_stop)
