"""Pairs in every layout, made into tokens and batches; and those that nobody sent."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarena.common.data.tokenization import Tokenizer, load_tokenizer, word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.summarization.data import Data, wire
from seqarena.summarization.data.batches import HeadlineBatch, TokenBudgetOrder, padding_statistics
from seqarena.summarization.data.layouts import Pair, find
from seqarena.summarization.data.text import decode, encode
from tests.summarization.tiny import PAIRS, write_sumdata


def words() -> Tokenizer:
    found = re.findall(r"[a-z]+|[^a-z\s]", " ".join(part for pair in PAIRS for part in pair).replace("<unk>", ""))
    return word_tokenizer([*found, *wire.words()])


def in_files(folder: Path, **content: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def org_data(folder: Path) -> Path:
    for split in ("train", "dev", "test"):
        for side, name in enumerate(("src", "tgt")):
            text = "".join(f"{pair[side]}\n" for pair in PAIRS).encode()
            folder.mkdir(exist_ok=True)
            (folder / f"{split}.{name}.txt.gz").write_bytes(gzip.compress(text))
    return folder


def tables(folder: Path) -> Path:
    rows = [{"document": source, "summary": target} for source, target in PAIRS]
    in_files(folder, train__tsv="document\tsummary\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS),
             valid__jsonl="".join(f"{json.dumps(row)}\n" for row in rows))  # fmt: skip
    for part in range(2):
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows[2 * part : 2 * part + 2]), folder / f"test-0000{part}-of-00002.parquet"
        )
    return folder


@pytest.mark.parametrize("layout", [write_sumdata, org_data, tables])
def test_every_layout_gives_the_same_pairs_as_they_are(tmp_path: Path, layout: object) -> None:
    readers = find(layout(tmp_path / "data"))  # type: ignore[operator]
    expected = [Pair(document=source, summary=target) for source, target in PAIRS]
    assert {name: list(read()) for name, read in readers.items()} == dict.fromkeys(
        ("train", "validation", "test"), expected
    )
    assert list(readers["test"]()) == expected  # from the beginning again


def test_files_that_are_not_what_they_promise_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match=r"no such folder; expected one with train/train.article.txt"):
        find(tmp_path / "no")
    with pytest.raises(BadDataError, match=r"no train pairs; expected"):
        find(tmp_path)
    folder = write_sumdata(tmp_path / "a")
    (folder / "sumdata/train/train.title.txt").write_text("one\ntwo\n")
    with pytest.raises(
        BadDataError, match=r"train.article.txt has 4 lines and .*train.title.txt 2; expected the same number"
    ):
        list(find(folder)["train"]())
    (folder / "sumdata/train/train.title.txt").write_text("one\n" * 7)
    with pytest.raises(BadDataError, match=r"train.article.txt has 4 lines and .*train.title.txt 7"):
        list(find(folder)["train"]())
    (folder / "sumdata/train/train.title.txt").unlink()
    with pytest.raises(BadDataError, match=r"the other file of .* is missing"):
        find(folder)
    for text, message in (("a\tb\nc\n", "line 2: expected text, tab, headline; found 1 cells"),):
        folder = in_files(tmp_path / "b", train__tsv=text, dev__tsv=text, test__tsv=text)
        with pytest.raises(BadDataError, match=message):
            list(find(folder)["test"]())
    rows = '{"document": "a"}\n'
    with pytest.raises(BadDataError, match=r"line 1: expected summary \(str\), found nothing"):
        list(find(in_files(tmp_path / "c", train__jsonl=rows, dev__jsonl=rows, test__jsonl=rows))["train"]())
    folder = write_sumdata(tmp_path / "d")
    (folder / "sumdata/Giga/input.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(BadDataError, match=r"input.txt, line 2: expected UTF-8"):
        list(find(folder)["test"]())
    with pytest.raises(WrongUseError, match=r"data.path and data.hub both set"):
        Data(path="a", hub="b").check()


def test_rows_of_the_hub_are_the_same_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(name: str, revision: object, split: str, hint: str, *, config: object) -> list[dict[str, str]]:
        asked.append((name, config, split))
        return [{"document": source, "summary": target} for source, target in PAIRS]

    monkeypatch.setattr("seqarena.summarization.data.layouts.hub_rows", rows)
    splits = Data(hub="someone/gigaword:plain", source_length=80).load(words(), tmp_path)
    assert [pair.summary for pair in splits.test.pairs] == [target for _, target in PAIRS]
    assert set(asked) == {("someone/gigaword", "plain", split) for split in ("train", "validation", "test")}


def test_counts_are_compared_and_what_is_cut_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sumdata(tmp_path / "giga", (*PAIRS, ("", "an empty text")))
    splits = Data(path=str(folder), source_length=16, target_length=6).load(words(), tmp_path / "data")
    said = capsys.readouterr().err
    assert "test: 5 pairs, but published Gigaword has 1,951" in said
    assert "train: 5 pairs, but published Gigaword has 3,803,957" in said
    assert "test, texts cut to 16 tokens: 2" in said
    assert "test, headlines cut to 6 tokens: 4" in said
    assert "test, empty texts: 1" in said
    assert splits.test.encoded.source_lengths.max() == 16
    assert splits.test.encoded.target_lengths.max() == 6
    assert [pair.document for pair in splits.test.pairs][1] == "UNK"  # as it was read


def test_tokens_to_train_on_are_kept_and_known_by_what_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sumdata(tmp_path / "giga", PAIRS * 5)
    data, tokenizer = Data(path=str(folder)), words()
    first = data.load(tokenizer, tmp_path / "data")
    assert first.train.sources.tokens.dtype == np.uint16
    made = []
    real = Data._encode

    def encoded(self: Data, pairs: object, tokenizer: Tokenizer, name: str, verbose: bool) -> object:
        made.append(name)
        return real(self, pairs, tokenizer, name, verbose)  # type: ignore[arg-type]

    monkeypatch.setattr(Data, "_encode", encoded)
    again = data.load(tokenizer, tmp_path / "data")
    assert again.checksum == first.checksum
    assert np.array_equal(again.train.targets.tokens, first.train.targets.tokens)
    assert made == ["validation", "test"]
    fewer = Data(path=str(folder), train_pairs=7, validation_pairs=3).load(tokenizer, tmp_path / "data")
    assert (len(fewer.train), len(fewer.validation.pairs), len(fewer.test.pairs)) == (7, 3, 20)
    assert fewer.checksum != first.checksum
    texts = {tuple(first.train.sources[at].tolist()) for at in range(20)}
    assert {tuple(fewer.train.sources[at].tolist()) for at in range(7)} <= texts


def test_a_marker_is_one_token_and_comes_back(tmp_path: Path) -> None:
    tokenizer = words()
    unknown = tokenizer.id("[UNK]")
    for text in ("<unk> talks in UNK", "UNK", "<unk> <unk>", "austria 's <unk>"):
        (tokens,) = encode([text], tokenizer)
        assert (tokens == unknown).sum() >= len(re.findall("<unk>|UNK", text))
        assert decode(tokens.tolist(), tokenizer).split().count("UNK") == (tokens == unknown).sum()
    tokens = encode(["closed #.# percent up ### of ##"], word_tokenizer(["closed", "percent", "up", "of", "#", "."]))[0]
    tokenizer = word_tokenizer(["closed", "percent", "up", "of", "#", "."])
    assert decode(tokens.tolist(), tokenizer) == "closed #.# percent up ### of ##"
    assert decode([2, *tokens.tolist(), 3, 0], tokenizer) == "closed #.# percent up ### of ##"


def test_real_wordpiece_takes_a_marker_as_one_token_too(tmp_path: Path) -> None:
    """BERT's own would make three or four of it."""
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##k", "talks", "<", ">", ""]))
    tokenizer = load_tokenizer(path)
    assert [each.tolist() for each in encode(["<unk> talks UNK", "[UNK] unk", "unkk"], tokenizer)] == [
        [1, 7, 1],
        [1, 1],
        [5, 6, 6],
    ]


def test_a_batch_says_what_follows_each_token() -> None:
    splits = Data(generated=100, source_length=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqarena.summarization.data.prepared", lambda folder, what, make: (make(), "sum"))
        encoded = splits.load(words(), Path("nowhere")).train
    batch = encoded.batch(np.arange(6))
    start, end, _ = encoded.special
    for row in range(6):
        source, target = encoded.sources[row].tolist(), encoded.targets[row].tolist()
        assert batch.source[row][batch.source_real[row]].tolist() == [start, *source, end]
        assert batch.target[row][batch.target_real[row]].tolist() == [start, *target]
        assert batch.labels[row][batch.target_real[row]].tolist() == [*target, end]
    assert batch.weight() == sum(len(encoded.targets[row]) + 1 for row in range(6))
    assert batch.token_count() == batch.weight() + int(batch.source_real.sum())
    longer = batch.longer(90)
    assert isinstance(longer, HeadlineBatch)
    assert torch.equal(longer.source[:, : batch.source.shape[1]], batch.source)
    assert longer.source_real.sum() == batch.source_real.sum()


def test_columns_go_by_their_names_and_parts_must_all_be_there(tmp_path: Path) -> None:
    text = "summary\tDocument\nshort\ta long text\n"
    folder = in_files(tmp_path / "a", train__tsv=text, dev__tsv=text, test__tsv=text)
    assert list(find(folder)["test"]()) == [Pair(document="a long text", summary="short")]
    folder = tables(tmp_path / "b")
    (folder / "test-00000-of-00002.parquet").unlink()
    with pytest.raises(BadDataError, match=r"1 parts of test, expected 2"):
        find(folder)


def test_a_word_that_begins_in_its_middle_is_no_digit() -> None:
    path_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "talks", "##agi", "##s", "#"]
    vocabulary = word_tokenizer(path_tokens[5:])
    agi, plural, talks = (vocabulary.id(token) for token in ("##agi", "##s", "talks"))
    assert decode([agi, plural, talks, plural], vocabulary) == "agis talkss"
    assert decode([vocabulary.id("[UNK]"), plural], vocabulary) == "UNK s"


def order(batch_size: int, pool: int, count: int = 999, seed: int = 0) -> TokenBudgetOrder:
    draws = np.random.default_rng(7)
    lengths = draws.integers(8, 90, count)
    return TokenBudgetOrder(
        lengths=lengths, targets=draws.integers(2, 30, count), batch_size=batch_size, seed=seed, pool=pool
    )


@settings(max_examples=30)
@given(batch_size=st.integers(1, 40), pool=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_epoch_sees_every_pair_once_and_no_batch_is_empty(batch_size: int, pool: int, seed: int) -> None:
    batches = order(batch_size, pool, count=batch_size * pool * 2, seed=seed)
    seen = [batches[step] for step in range(2 * pool)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(batch_size * pool * 2))
    assert all(len(each) % batches.grain == 0 < len(each) for each in seen)
    assert np.array_equal(batches[1], order(batch_size, pool, count=batch_size * pool * 2, seed=seed)[1])


@pytest.mark.parametrize("processes", [2, 3, 5, 16, 48])
def test_any_number_of_processes_shares_the_batches_of_one(processes: int) -> None:
    one = order(48, 4)
    some = replace(one, processes=processes)
    sizes, wanted = ([len(each[step]) for step in range(8)] for each in (some, one))
    assert min(sizes) >= processes
    assert sum(sizes[:4]) == 4 * 48
    if min(wanted) >= processes:
        assert all(np.array_equal(some[step], one[step]) for step in range(8))
    assert (min(wanted) >= processes) == (processes < 48)


@settings(max_examples=30)
@given(processes=st.integers(1, 20), factor=st.integers(1, 4), pool=st.integers(2, 12), seed=st.integers(0, 9))
def test_every_process_has_a_pair_of_each_batch(processes: int, factor: int, pool: int, seed: int) -> None:
    """Also of batches with the longest texts, which have the fewest pairs."""
    lengths = (10 * np.random.default_rng(7).pareto(1, 999)).astype(np.int64) + 4
    batches = TokenBudgetOrder(
        lengths=lengths, targets=lengths // 4 + 2, batch_size=processes * factor, seed=seed, pool=pool,
        processes=processes,
    )  # fmt: skip
    assert min(len(batches[step]) for step in range(pool)) >= processes


def test_batches_cost_alike_and_hold_little_padding() -> None:
    lengths = np.random.default_rng(1).gamma(6, 6, 40_000).astype(np.int64) + 4
    targets = np.random.default_rng(2).gamma(6, 2, 40_000).astype(np.int64) + 2
    batches = TokenBudgetOrder(lengths=lengths, targets=targets, batch_size=128, seed=0, pool=200)
    share, mean, most = padding_statistics(batches, 200)
    assert share > 0.9
    assert most < 1.6 * mean
    assert (
        padding_statistics(TokenBudgetOrder(lengths=lengths, targets=targets, batch_size=128, seed=0, pool=1), 100)[0]
        < 0.6
    )


def test_the_wire_keeps_the_conventions() -> None:
    pairs = list(wire.pairs(600, 0, 0))
    assert pairs == list(wire.pairs(600, 0, 0))
    assert pairs != list(wire.pairs(600, 1, 0))
    vocabulary = word_tokenizer(wire.words())
    marks = {vocabulary.id("[SEP]"), vocabulary.id("[PAD]")}
    for text, headline in pairs:
        assert re.fullmatch(r"[a-z#.,' -]+", (text + headline).replace("UNK", ""))
        assert not set(encode([text, headline], vocabulary)[0].tolist()) & marks
        assert text.count("UNK") >= headline.count("UNK")
        assert len(headline.split()) < len(text.split()) / 2
    every = " ".join(text for text, _ in pairs)
    assert all(mark in every for mark in ("UNK", "##", "-lrb-", "'s"))
    unknown = [vocabulary.id("[UNK]") in tokens for tokens in encode([text for text, _ in pairs], vocabulary)]
    assert np.array_equal(unknown, ["UNK" in text for text, _ in pairs])
