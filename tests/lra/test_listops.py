import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqarena.common.data import prepared
from seqarena.common.data.batches import Ragged
from seqarena.common.data.prepared import checksum
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.lra.data.listops import ListOps
from seqarena.lra.data.listops.floors import floors
from seqarena.lra.data.listops.generator import generate
from seqarena.lra.data.listops.language import CLOSE, MIN, SYMBOLS, Bytes, encode, evaluate
from seqarena.lra.data.listops.language import content as content_of
from seqarena.lra.data.listops.official import FILES, HEADER, read_tsv
from seqarena.lra.presets import PRESETS
from seqarena.lra.tasks import LISTOPS


def decode(tokens: Bytes) -> str:
    """Returns an expression as the official files spell it: each pair of a left-nested tuple in parentheses."""
    words: list[str] = []
    opened: list[int] = []  # for each open operator, where its text starts
    for token in tokens.tolist():
        if MIN <= token < CLOSE:
            opened.append(len(words))
            words.append(SYMBOLS[token])
            continue
        if token == CLOSE:
            start = opened.pop()
            words[start:] = [f"( {' '.join(words[start:])} ] )"]
        else:
            words.append(SYMBOLS[token])
        if opened:
            start = opened[-1]
            words[start:] = [f"( {' '.join(words[start:])} )"]
    return " ".join(words)


def write_tsv(path: Path, split: Ragged) -> None:
    """Writes examples as the official files have them."""
    lines = [HEADER, *(f"{decode(split[example])}\t{label}" for example, label in enumerate(split.labels))]
    path.write_bytes("".join(f"{line}\r\n" for line in lines).encode("ascii"))


SHORT = ListOps(train=300, validation=40, test=60, longer_than=4, shorter_than=31, max_depth=4, max_arguments=5)


def python_value(source: str) -> int:
    """Returns an expression's value by the plainest recursion."""
    words = source.replace("(", "").replace(")", "").split()

    def read(at: int) -> tuple[int, int]:
        if not words[at].startswith("["):
            return int(words[at]), at + 1
        operator, values, at = words[at], [], at + 1
        while words[at] != "]":
            value, at = read(at)
            values.append(value)
        middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
        rules = {"[MIN": min(values), "[MAX": max(values), "[SM": sum(values) % 10, "[MED": sum(middle) // len(middle)}
        return rules[operator], at + 1

    value, end = read(0)
    assert end == len(words)
    return value


def depth(tokens: np.ndarray) -> int:
    steps = np.where((tokens > 10) & (tokens < CLOSE), 1, np.where(tokens == CLOSE, -1, 0))
    return int(steps.cumsum().max())


def test_labels_are_the_values_and_lengths_are_those_asked_for() -> None:
    splits = generate(SHORT)
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [300, 40, 60]
    for split in splits.values():
        for example, label in enumerate(split.labels):
            tokens = split[example]
            assert python_value(decode(tokens)) == label == evaluate(tokens)
            assert 4 < len(tokens) < 31
            assert 1 <= depth(tokens) <= 3  # the fourth level holds digits only


def test_no_two_splits_share_an_expression() -> None:
    splits = generate(SHORT)
    seen = [bytes(split[example]) for split in splits.values() for example in range(len(split))]
    assert len(set(seen)) == len(seen) == 400


def test_the_order_of_arguments_makes_no_other_expression() -> None:
    sources = (
        "[MED 1 [SM 2 3 [MIN 4 5 ] ] 1 ]",
        "[MED [SM [MIN 5 4 ] 3 2 ] 1 1 ]",
        "[MED 1 [SM 2 4 [MIN 3 5 ] ] 1 ]",
        "[MAX 1 1 ]",
        "[MAX 2 2 ]",
        "[MIN 2 2 ]",
    )
    found = [int(content_of(encode(source))) for source in sources]
    assert found[0] == found[1]
    assert len(set(found)) == 5


def test_the_same_seed_gives_the_same_bytes_for_any_number_of_workers() -> None:
    sums = [checksum(generate(SHORT, workers=workers)) for workers in (1, 2, 5)]
    assert len(set(sums)) == 1
    assert checksum(generate(replace(SHORT, seed=1))) != sums[0]


def test_long_expressions_follow_the_published_statistics() -> None:
    """lra.md section 3, measured on 12,000 trees: mean length 1,034, labels 0 and 9 near 17 %, every tree deep."""
    split = generate(ListOps(train=1_500, validation=1, test=1))["train"]
    assert 500 < split.lengths.min() <= split.lengths.max() < 2_000
    assert split.lengths.mean() == pytest.approx(1_034, abs=40)
    shares = np.bincount(split.labels, minlength=10) / len(split)
    assert shares[0] == pytest.approx(0.166, abs=0.04)
    assert shares[9] == pytest.approx(0.170, abs=0.04)
    assert all(depth(split[example]) == 9 for example in range(100))


def test_impossible_wishes_are_refused() -> None:
    few = ListOps(train=500, validation=1, test=1, longer_than=3, shorter_than=5, max_depth=2, max_arguments=2)
    with pytest.raises(WrongUseError, match=r"expected 502 distinct expressions .*, found only 220"):
        generate(few)  # 4 operators, 55 pairs of digits in any order
    for changes in ({"train": 0}, {"longer_than": 30}, {"max_arguments": 1}, {"operator_probability": 1.0}):
        with pytest.raises(WrongUseError, match="data"):
            replace(SHORT, **changes).check()  # type: ignore[arg-type]


def test_the_language_spells_and_refuses() -> None:
    source = "( ( ( [MAX 4 ) 3 ) ] )"
    assert decode(encode(source)) == source
    assert [SYMBOLS[token] for token in encode(source)] == ["[MAX", "4", "3", "]"]
    nested = "( ( ( [MED 1 ) ( ( ( [SM 9 ) 9 ) ] ) ) ] )"
    assert decode(encode(nested)) == nested
    assert evaluate(encode(nested)) == (1 + 8) // 2
    assert evaluate(encode(nested), 1, np.array([0, 0, 0, 5])) == 3  # the inner sum is guessed as 5
    assert evaluate(encode("7")) == 7
    for wrong in ("[MAX 1 2", "[MAX ]", "]", "1 2", "[MIN 1 ] 3", ""):
        assert evaluate(encode(wrong)) < 0


def test_official_files_go_out_and_in(tmp_path: Path) -> None:
    split = generate(SHORT)["test"]
    write_tsv(tmp_path / "file.tsv", split)
    raw = (tmp_path / "file.tsv").read_bytes()
    assert raw.startswith(b"Source\tTarget\r\n( ( ( ")
    assert raw.count(b"\r\n") == raw.count(b"\n") == 61
    assert checksum({"": read_tsv(tmp_path / "file.tsv")}) == checksum({"": split})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("( ( ( [MAX 4 ) 3 ) ] )\t12", "line 3: expected a label from 0 to 9, found '12'"),
        ("( ( ( [MAX 4 ) 3 ) ] )\tx", "line 3: expected a label from 0 to 9, found 'x'"),
        ("( ( ( [MAX 4 ) 3 ) ] )", "line 3: expected 2 columns (Source, Target), found 1"),
        ("( ( ( [MAC 4 ) 3 ) ] )\t4", "line 3: unknown symbol '[MAC'; nearest: [MAX"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t3", "line 3: the expression evaluates to 4, but its label is 3"),
        ("( ( ( [MAX 4 ) 3 ) )\t4", "line 3: expected one complete expression: it ends early"),
        ("4 ]\t4", "line 3: expected one complete expression: unexpected symbol 2, ]"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "basic_train.tsv"
    path.write_text(f"Source\tTarget\r\n( ( ( [MAX 4 ) 3 ) ] )\t4\r\n{line}\r\n")
    with pytest.raises(BadDataError) as caught:
        read_tsv(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_editors_marks_are_forgiven_and_other_bytes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "basic_train.tsv"
    row = b"( ( ( [MAX 4 ) 3 ) ] )\t4"
    path.write_bytes(b"\xef\xbb\xbfSource\tTarget\n" + row + b"\n\n")
    assert len(read_tsv(path)) == 1
    path.write_bytes(b"Source\tTarget\n" + row + b"\n" + row.replace(b"4", "\uff14".encode()))
    with pytest.raises(BadDataError, match=r"line 3: expected plain ASCII, found byte b'\\xef' at position 12"):
        read_tsv(path)
    path.write_bytes(b"Source\tTarget\n( ( [MAX 4 ) 3 ) ] )\t4\n")
    with pytest.raises(BadDataError, match="line 2: expected balanced parentheses, found 2 opening and 3 closing"):
        read_tsv(path)


def test_other_broken_files(tmp_path: Path) -> None:
    for content, message in (("Target\tSource\r\n", "line 1: expected the header"), ("", "an empty file"),
                             ("Source\tTarget\r\n", "only a header")):  # fmt: skip
        (tmp_path / "basic_train.tsv").write_text(content)
        with pytest.raises(BadDataError, match=message):
            read_tsv(tmp_path / "basic_train.tsv")
    with pytest.raises(BadDataError, match=r"basic_val\.tsv does not exist; expected basic_train"):
        read_tsv(tmp_path / "basic_val.tsv")


def test_data_are_kept_read_again_and_checked(tmp_path: Path) -> None:
    splits, first = SHORT.load(tmp_path)
    again, second = SHORT.load(tmp_path)
    assert first == second == checksum(again) == checksum(splits)
    assert len(list((tmp_path / "lra").iterdir())) == 1
    official = tmp_path / "official"
    official.mkdir()
    for name, file in FILES.items():
        write_tsv(official / file, splits[name])
    above, _ = replace(SHORT, path=str(tmp_path)).load(tmp_path / "elsewhere")  # the release unpacks to some levels
    assert checksum(above) == first
    read, third = replace(SHORT, path=str(official)).load(tmp_path)
    assert third == first
    assert isinstance(read["train"], Ragged)


def test_data_of_an_edited_generator_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SHORT.load(tmp_path)
    SHORT.load(tmp_path)
    assert "changed" not in capsys.readouterr().err
    real = prepared.imported_by
    monkeypatch.setattr(prepared, "imported_by", lambda name: {**real(name), "lra/data/listops/language.py": "edited"})
    SHORT.load(tmp_path)
    assert (
        "before lra/data/listops/language.py changed and is used as it is; delete it to make it again"
        in capsys.readouterr().err
    )


def test_floors_rise_from_majority_to_exact() -> None:
    found = floors(generate(replace(SHORT, train=3_000, test=1_000)))
    assert list(found) == [
        "majority class", "root operator", "depth 1", "depth 2", "depth 3", "nearest training example"
    ]  # fmt: skip
    values = list(found.values())[:5]
    assert all(lower < higher for lower, higher in itertools.pairwise(values))
    assert values[-1] == 1.0  # three levels of operators are all there are
    assert 0.1 < values[0] < 0.16
    assert 0.2 < values[1] < 0.32


def test_floors_of_a_hand_made_set() -> None:
    train = ["[MAX 9 1 ]", "[MAX 9 2 ]", "[MIN 0 1 ]", "[MIN 0 3 ]", "[MIN 4 0 ]"]
    test = ["[MAX 9 3 ]", "[MAX 5 3 ]", "[MIN 0 7 ]", "[MAX 1 [MIN 0 2 ] ]"]
    splits = {
        name: Ragged.of([encode(each) for each in sources], [python_value(each) for each in sources])
        for name, sources in (("train", train), ("test", test))
    }
    assert floors(splits) == {
        "majority class": 0.25,  # always 0
        "root operator": 0.5,  # MAX is 9, MIN is 0
        "depth 1": 1.0,
        "depth 2": 1.0,
        "depth 3": 1.0,
        "nearest training example": 0.5,  # wrong: MAX of 5 and 3, MIN inside MAX
    }


def test_damaged_data_are_noticed(tmp_path: Path) -> None:
    SHORT.load(tmp_path)
    (labels,) = (tmp_path / "lra").rglob("train.labels.npy")
    np.save(labels, np.full(300, 7, dtype=np.uint8))
    with pytest.raises(BadDataError, match=r"prepared data are damaged .*delete the folder"):
        SHORT.load(tmp_path)


def test_the_quick_tier_has_its_bytes() -> None:
    """Whoever changes them raises the generator's version; another checksum is another protocol."""
    assert checksum(generate(PRESETS["listops"]["quick"].run.data)) == LISTOPS.checksums["quick"]
    assert checksum(generate(SHORT)) == "d54165e5ddf7e6a6bbbf510cc195f6024cacc4a680fc1a858da37fd069fcf70c"


@pytest.mark.extras
def test_the_full_tier_has_its_bytes() -> None:
    full = checksum(generate(PRESETS["listops"]["xiong2021"].run.data))
    assert full == LISTOPS.checksums["xiong2021"] == LISTOPS.checksums["lra-jax"]


def test_the_quick_tier_is_what_its_preset_says() -> None:
    data = PRESETS["listops"]["quick"].run.data
    assert (data.longer_than, data.shorter_than, data.max_depth, data.max_arguments) == (4, 31, 4, 5)
