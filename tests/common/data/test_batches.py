import errno
import fcntl
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from seqarena.common.data import nearest as nearest_module
from seqarena.common.data.batches import Ragged, ShuffledIndices, in_order, sample_indices
from seqarena.common.data.counter import hash64, mix64, permutation
from seqarena.common.data.nearest import label_of_nearest, nearest, word_counts
from seqarena.common.data.prepared import checksum, load_splits, origin, prepared, save_splits
from seqarena.common.errors import MACHINE_ERRORS, BadDataError
from seqarena.common.files import new_folder, paths_below

few = settings(max_examples=50)


def ragged(lengths: list[int]) -> Ragged:
    return Ragged.of(
        [np.arange(1, length + 1, dtype=np.uint8) for length in lengths], [n % 10 for n in range(len(lengths))]
    )


def test_mix64_is_splitmix64() -> None:
    """The first outputs of the published generator for seed 0."""
    states = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(value) for value in mix64(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_hashes_differ_by_every_key_and_broadcast() -> None:
    values = np.concatenate([hash64(0, np.arange(1000)), hash64(1, np.arange(1000)), hash64(np.arange(1000), 5)])
    assert len(set(values.tolist())) == 3000 - 2  # (0, 5) and (1, 5) are asked for twice
    bits = np.unpackbits(values.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 5))
@few
def test_every_epoch_sees_every_example_once(count: int, batch_size: int, pool: int, seed: int) -> None:
    lengths = np.asarray(hash64(seed, np.arange(count)) % np.uint64(20), dtype=np.int64)
    order = ShuffledIndices(lengths=lengths, batch_size=batch_size, seed=seed, pool=pool)
    steps = 3 * count * pool  # whole epochs and whole pools
    seen = np.concatenate([order[step] for step in range(steps)])
    assert len(seen) == steps * batch_size
    assert (np.bincount(seen, minlength=count) == steps * batch_size // count).all()
    again = ShuffledIndices(lengths=lengths, batch_size=batch_size, seed=seed, pool=pool)
    assert (again[steps - 1] == order[steps - 1]).all()


def test_epochs_and_seeds_differ_and_pools_save_padding() -> None:
    lengths = np.asarray(hash64(9, np.arange(512)) % np.uint64(100), dtype=np.int64)

    def padding(pool: int) -> float:
        order = ShuffledIndices(lengths=lengths, batch_size=16, seed=0, pool=pool)
        batches = [lengths[order[step]] for step in range(32)]
        return 1 - sum(batch.sum() for batch in batches) / sum(16 * batch.max() for batch in batches)

    assert padding(32) < 0.1
    assert padding(1) > 0.4
    first, second = (ShuffledIndices(lengths=lengths, batch_size=512, seed=0)[step] for step in (0, 1))
    assert (first != second).any()
    assert (first != ShuffledIndices(lengths=lengths, batch_size=512, seed=1)[0]).any()
    longest = [
        lengths[ShuffledIndices(lengths=lengths, batch_size=16, seed=0, pool=32)[step]].max() for step in range(32)
    ]
    assert longest != sorted(longest)  # not the short ones first


def test_ragged_pads_with_zero_and_says_what_is_real() -> None:
    split = ragged([3, 1, 2])
    tokens, real = split.padded(np.array([1, 0]))
    assert tokens.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert real.tolist() == [[True, False, False], [True, True, True]]
    assert split.lengths.tolist() == [3, 1, 2]
    assert np.concatenate(list(in_order(split.lengths, 2))).tolist() == [1, 2, 0]


def test_splits_are_saved_whole_and_mapped(tmp_path: Path) -> None:
    splits = {"train": ragged([2, 3]), "test": ragged([1])}
    (tmp_path / ".set.unfinished").mkdir()
    (tmp_path / ".set.unfinished" / "left").touch()  # by a process that was killed
    with new_folder(tmp_path / "set") as unfinished:
        assert unfinished is not None
        assert not list(unfinished.iterdir())
        save_splits(unfinished, splits, {"sha256": checksum(splits)})
        assert not (tmp_path / "set").exists()
    found, manifest = load_splits(tmp_path / "set")
    assert checksum(found) == manifest["sha256"] == checksum(splits)
    assert isinstance(found["train"].tokens, np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    with new_folder(tmp_path / "set") as unfinished:
        assert unfinished is None  # another process was first
    assert load_splits(tmp_path / "set")[1] == manifest
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "other") as unfinished:
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    (tmp_path / "set" / "train.labels.npy").write_bytes(b"cut")
    with pytest.raises(BadDataError, match=r"set: not a whole folder of prepared data.*delete the folder"):
        load_splits(tmp_path / "set")


def test_a_changed_shift_or_type_of_prepared_data_is_noticed(tmp_path: Path) -> None:
    """The checksum is of the arrays' bytes alone: with another shift or type these are other tokens."""
    folder = tmp_path / "set"

    def load() -> str:
        return prepared(folder, "a set", lambda: {"train": ragged([2, 3]), "test": ragged([1])})[1]

    found = load()
    changes = [("manifest.json", b'"train": 0', b'"train": 1'), ("train.tokens.npy", b"|u1", b"|b1"),
               ("test.labels.npy", b"|u1", b"|i1"), ("train.offsets.npy", b"<i8", b"<m8")]  # fmt: skip
    for name, old, new in changes:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new))
        with pytest.raises(BadDataError, match=r"(?s)not a whole folder of prepared data.*delete the folder"):
            load()
        (folder / name).write_bytes(content)
    assert load() == found


def test_what_a_killed_preparation_of_another_set_left_goes(tmp_path: Path) -> None:
    for name in ("killed", "busy"):
        (tmp_path / f".{name}.unfinished").mkdir()
        (tmp_path / f".{name}.lock").touch()
    with (tmp_path / ".busy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with new_folder(tmp_path / "set"):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {"set", ".busy.unfinished", ".busy.lock"}


def test_the_checksum_sees_every_byte() -> None:
    sums = {checksum({"a": ragged([2, 3])}), checksum({"a": ragged([3, 2])}), checksum({"b": ragged([2, 3])})}
    sums.add(checksum({"a": Ragged.of([np.array([1, 2], np.uint8), np.array([1, 2, 3], np.uint8)], [0, 2])}))
    assert len(sums) == 4


def test_orders_are_the_same_in_another_process() -> None:
    code = "from seqarena.common.data.counter import permutation; print(permutation(50, 3, 1).tolist())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(permutation(50, 3, 1).tolist())


def test_some_examples_are_drawn_by_the_keys_and_keep_their_order() -> None:
    few = sample_indices(100, 10, 3, 1)
    assert few.tolist() == sample_indices(100, 10, 3, 1).tolist() == sorted(set(few.tolist()))
    assert few.tolist() != sample_indices(100, 10, 4, 1).tolist()
    assert (
        sample_indices(3, None, 0).tolist()
        == sample_indices(3, 3, 0).tolist()
        == sample_indices(3, 9, 0).tolist()
        == [0, 1, 2]
    )


def test_some_examples_of_several_sequences_are_those_that_they_were() -> None:
    sequences = [np.array(each, dtype=np.uint8) for each in ([1], [2, 3], [4, 5, 6], [7], [8], [9, 9])]
    pairs = Ragged.of(sequences, [0, 1, 1], shift=1)
    some = pairs.some(np.array([0, 2]))
    assert (len(some), some.sequences, some.shift, some.labels.tolist()) == (2, 2, 1, [0, 1])
    for mine, theirs in ((0, 0), (1, 2)):
        for found, expected in zip(some.padded(np.array([mine])), pairs.padded(np.array([theirs])), strict=True):
            assert found.tolist() == expected.tolist()


def test_the_nearest_training_example_is_found_in_any_form(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    train, test = draws.integers(0, 5, (50, 4)), draws.integers(0, 5, (9, 4))
    expected = ((test[:, None] - train) ** 2).sum(axis=2).argmin(axis=1)  # of equals the first
    for rows in (7, 4_096):
        monkeypatch.setattr(nearest_module, "ROWS", rows)
        assert nearest(train, test).tolist() == expected.tolist()
        assert nearest(sparse.csr_matrix(train), sparse.csr_matrix(test)).tolist() == expected.tolist()
    labels = train[:, 0]
    monkeypatch.setattr(nearest_module, "TESTED", 5)
    found = label_of_nearest(train, labels, test, test[:, 0])
    assert found == np.mean(labels[expected[:5]] == test[:5, 0])


def test_words_that_training_has_not_count_for_nothing() -> None:
    train, test = word_counts(["b a a", "c"], ["A new b"])
    assert train.toarray().tolist() == [[2, 1, 0], [0, 0, 1]]
    assert test.toarray().tolist() == [[1, 1, 0]]


def test_a_pipe_is_no_data_and_a_name_may_be_of_any_bytes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadDataError, match="a pipe or a device; write its output to a file"):
        origin(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    name = tmp_path / "folder" / os.fsdecode(b"caf\xe9.txt")  # Latin-1, as old archives have them
    name.touch()
    assert len({origin(name), origin(name.parent)}) == 2


def test_an_edit_behind_a_link_to_a_folder_is_noticed(tmp_path: Path) -> None:
    for name in ("data", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "a.txt").write_text("text")
    before = origin(tmp_path / "data")
    (tmp_path / "disk" / "a.txt").write_text("another text")
    assert origin(tmp_path / "data") != before


def test_an_edit_that_keeps_size_and_time_is_noticed(tmp_path: Path) -> None:
    """Made by ``cp -p``, by rsync or by an archive, or within one tick of the clock."""
    path = tmp_path / "text.txt"
    path.write_text("one text")
    before, status = (origin(path), origin(tmp_path)), path.stat()
    time.sleep(0.02)  # longer than a tick
    path.write_text("two text")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert all(now != then for now, then in zip((origin(path), origin(tmp_path)), before, strict=True))


def test_a_vocabulary_is_identified_with_the_files_that_are_read_with_it(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]")
    before = origin(vocabulary)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert origin(vocabulary) != before


def test_links_are_followed_and_no_folder_is_entered_twice(tmp_path: Path) -> None:
    for name in ("top/b/f", "top/c/f", "disk/f", "disk/g/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    top = tmp_path / "top"
    links = {"a": "c", "b/up": "..", "d": "../disk", "e": "../disk/g", "lost": "nowhere", "z": "z"}
    for name, target in links.items():
        (top / name).symlink_to(target)
    (tmp_path / "disk" / "back").symlink_to("../top")
    found = [path.relative_to(top).as_posix() for path in paths_below(top)]
    assert found == ["a", "b", "b/f", "b/up", "c", "c/f", "d", "d/back", "d/f", "d/g", "d/g/f", "e", "lost", "z"]
    assert [path for path in paths_below(tmp_path / "disk") if path.is_file()] == [
        tmp_path / "disk" / name for name in ("back/b/f", "back/c/f", "f", "g/f")
    ]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_errors_of_the_machine_are_not_called_damage(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(number, "of the machine")

    save_splits(tmp_path, {"train": ragged([3])}, {"sha256": ""})
    monkeypatch.setattr(np, "load", failing)
    with pytest.raises(OSError, match=re.escape(f"{MACHINE_ERRORS[number]}: '{tmp_path}'")) as caught:
        load_splits(tmp_path)
    assert not isinstance(caught.value, BadDataError)
    assert "delete" not in str(caught.value)


def test_a_full_disk_while_data_are_prepared_is_said_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space left on the device; make room"), new_folder(tmp_path / "set"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_arrays_that_do_not_fit_on_the_disk_are_said_with_the_folder(tmp_path: Path) -> None:
    """NumPy raises an error without a number; a limit on a file's size cuts an array as a full disk does."""
    splits = {"train": ragged([20_000])}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(OSError, match=re.escape(f"make room and run again: '{tmp_path / 'set'}'")):
            prepared(tmp_path / "set", "made", lambda: splits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "set").exists()
