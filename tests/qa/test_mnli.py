"""Pairs read from files and rows, their labels by name, their tokens."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.qa.data import mnli
from seqarena.qa.data.mnli import LABELS, Mnli, Pair, read
from seqarena.qa.data.pairs import encode

ROWS = [('It "rains" .', "It is wet .", "entailment"), ("He runs", "He sits", "contradiction"), ("a", "b", "neutral")]
PAIRS = [Pair(premise=one, hypothesis=two, label=LABELS.index(label)) for one, two, label in ROWS]


def test_every_form_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The label stands last in GLUE's table and first in MultiNLI's; the hub numbers it; quotes are text."""
    undecided = [*ROWS, ("x", "y", "-")]
    lines = [json.dumps({"sentence1": one, "sentence2": two, "gold_label": label, "pairID": "1"})
             for one, two, label in undecided]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    glue = [
        "index\tsentence1\tsentence2\tlabel1\tgold_label",
        *(f"0\t{a}\t{b}\tneutral\t{c}" for a, b, c in ROWS),
        "1\tx\ty\t-",
    ]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress("\r\n".join(glue).encode()))
    # annotators' labels stand behind, as many as there were
    multi = ["gold_label\tsentence1\tsentence2\tlabel1\tlabel2", *(f"{c}\t{a}\t{b}\tneutral" for a, b, c in undecided)]
    (tmp_path / "c.txt").write_text("\n".join(multi))
    found = [read(path) for path in sorted(tmp_path.iterdir())]
    assert capsys.readouterr().err.count("skipped 1 pairs without a majority") == 3
    for order in (LABELS, ("contradiction", "entailment", "neutral")):
        features = datasets.Features({"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"),
                                      "label": datasets.ClassLabel(names=list(order))})  # fmt: skip
        columns = {"premise": [a for a, _, _ in ROWS], "hypothesis": [b for _, b, _ in ROWS],
                   "label": [order.index(c) for *_, c in ROWS]}  # fmt: skip
        path = tmp_path / "d.parquet"
        datasets.Dataset.from_dict(columns, features=features).to_parquet(path)
        found.append(read(path))
    assert found == [PAIRS] * 5
    assert len({mnli.checksum([each]) for each in found}) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "gold_label": "yes"}', "line 1: expected a label .* 'yes'"),
        (
            "x.jsonl",
            '{"premise": "a", "hypothesis": "b", "label": 1}',
            "expected the name of a label, found the number 1",
        ),
        ("x.jsonl", '{"sentence1": "a", "gold_label": "neutral"}', "expected sentence2"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "gold_label": "-"}', "expected labelled pairs, found none"),
        ("x.tsv", "sentence1\tgold_label\na\tb", "expected columns sentence1, sentence2 and gold_label"),
        ("x.tsv", "sentence1\tsentence2\tgold_label\na\tb", "line 2: expected 3 columns, found 2"),
        ("x.csv", "a", "expected .jsonl, .tsv"),
    ],
)
def test_bad_files_are_one_message(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadDataError, match=message):
        read(tmp_path / name)


def rows_of(count: int) -> str:
    return "\n".join(
        json.dumps({"sentence1": f"premise {number}", "sentence2": "b", "gold_label": LABELS[number % 3]})
        for number in range(count)
    )


def test_the_splits(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(rows_of(60) + "\n" + rows_of(60).replace('"b"', '"c"'))
    (tmp_path / "dev.jsonl").write_text(rows_of(5))
    paths = {"train": str(tmp_path / "train.jsonl"), "matched": str(tmp_path / "dev.jsonl")}
    data = Mnli(**paths, extra=str(tmp_path / "dev.jsonl"), held_out=0.2)
    splits, checksum = data.load()
    assert set(splits) == {"train", "validation", "matched", "extra"}
    assert len(splits["train"]) + len(splits["validation"]) == 120
    premises = {name: {each.premise for each in splits[name]} for name in ("train", "validation")}
    assert not premises["train"] & premises["validation"]
    assert 0.05 < len(splits["validation"]) / 120 < 0.4
    assert Mnli(**paths, held_out=0.2).load()[1] == checksum  # what is added compares nothing


def test_the_checksum_covers_the_border_between_two_splits(tmp_path: Path) -> None:
    lines = rows_of(20).split("\n")
    (tmp_path / "train.jsonl").write_text(rows_of(60))
    sums = set()
    for border in (10, 11, 20):
        parts = {"matched": lines[:border], "mismatched": lines[border:]}
        paths = {name: str(tmp_path / f"{name}{border}.jsonl") for name, some in parts.items() if some}
        for name, path in paths.items():
            Path(path).write_text("\n".join(parts[name]))
        sums.add(Mnli(train=str(tmp_path / "train.jsonl"), held_out=0.2, **paths).load()[1])
    assert len(sums) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": "x"}, "expected --data.train and --data.matched"), ({"length": 4}, "data.length"),
        ({"generated": 3}, "data.generated"), ({"held_out": 1.0}, "data.held_out"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        Mnli(**changes).check()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), st.integers(5, 14))
def test_a_pair_is_cut_as_googles_code_cuts_it(lengths: list[tuple[int, int]], length: int) -> None:
    tokenizer = word_tokenizer(["p", "h"])
    pairs = [Pair(premise="p " * one, hypothesis="h " * two, label=1) for one, two in lengths]
    encoded = encode(pairs, tokenizer, length)
    batch = encoded.batch(np.arange(len(pairs)))
    cls, sep, p, h = (tokenizer.id(name) for name in ("[CLS]", "[SEP]", "p", "h"))
    for row, (one, two) in enumerate(lengths):
        first, second = ["p"] * one, ["h"] * two
        while len(first) + len(second) > length - 3:  # _truncate_seq_pair
            (first if len(first) > len(second) else second).pop()
        expected = [cls, *[p] * len(first), sep, *[h] * len(second), sep]
        assert batch.tokens[row][batch.real[row]].tolist() == expected
        assert batch.types[row].sum() == len(second) + 1
        assert encoded.lengths[row] == len(expected)
