"""Shards to sequences and batches: borders of documents, orders of pairs, splits."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.data.tokenization import load_tokenizer
from seqarena.common.errors import BadDataError
from seqarena.pretraining.data import MaskedText, sequences, split
from seqarena.pretraining.data.batches import Builder
from seqarena.pretraining.data.sequences import ALONE, BACKWARD, FORWARD, Sequences, build
from seqarena.pretraining.data.shards import Corpus, Shard
from seqarena.pretraining.masking import NONE, Masker


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
    there = batch.to(torch.device("cpu"))
    assert (there.real is None) == bool(batch.real.all())
    assert there.token_count() == batch.token_count()
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
