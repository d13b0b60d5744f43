"""ROUGE against its definition, the commands that print it, and what stands beside it."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarena.common.data.batches import Ragged
from seqarena.common.data.tokenization import Tokenizer, word_tokenizer
from seqarena.common.errors import BadDataError, run_command
from seqarena.scripts.seqarena import dispatch
from seqarena.summarization.data import Split, Splits
from seqarena.summarization.data.batches import EncodedPairs
from seqarena.summarization.data.layouts import Pair
from seqarena.summarization.data.text import encode, normalized, without_unknown
from seqarena.summarization.floors import best_constant, floors, lead, nearest_headlines
from seqarena.summarization.metric import RougeMetric
from seqarena.summarization.rouge import METRICS, drop_unknown, intervals, rows, text_statistics

STEMS = {
    "officials": "offici",
    "official": "offici",
    "said": "say",
    "says": "sai",
    "closing": "close",
    "closed": "close",
}
"""Stems of the words below; all others are their own."""
WORDS = st.lists(
    st.sampled_from("officials official said says closing closed u.s. tie-up #.# UNK <unk> the Oil '' -lrb-".split()),
    max_size=7,
).map(" ".join)


def defined(hypothesis: str, reference: str) -> dict[str, float]:
    """F1 of ROUGE-1, -2 and -L as Lin 2004 defines them, on stems of letters and digits."""

    def stems(text: str) -> list[str]:
        words = re.findall(r"[a-z0-9]+", text.lower().replace("<unk>", "unk"))
        return [STEMS.get(word, word) for word in words]

    one, two = stems(hypothesis), stems(reference)

    def f1(common: int, said: int, told: int) -> float:
        return 0.0 if not common else 2 * (common / said) * (common / told) / (common / said + common / told)

    found = {}
    for size in (1, 2):
        counts = [Counter(tuple(some[at : at + size]) for at in range(len(some) - size + 1)) for some in (one, two)]
        common = sum((counts[0] & counts[1]).values())
        found[f"rouge{size}"] = f1(common, sum(counts[0].values()), sum(counts[1].values()))
    longest = np.zeros((len(one) + 1, len(two) + 1), dtype=int)
    for i, left in enumerate(one):
        for j, right in enumerate(two):
            same, other = longest[i, j] + 1, max(longest[i, j + 1], longest[i + 1, j])
            longest[i + 1, j + 1] = same if left == right else other
    found["rougeL"] = f1(int(longest[-1, -1]), len(one), len(two))
    return found


@settings(max_examples=150)
@given(hypothesis=WORDS, reference=WORDS)
def test_scores_are_those_of_the_definition(hypothesis: str, reference: str) -> None:
    found = rows([hypothesis], [reference])
    for name, value in defined(hypothesis, reference).items():
        assert found[name][0] == pytest.approx(value, abs=1e-12)


def test_one_rule_for_what_is_unknown() -> None:
    """Both markers are one word, which counts; digits and punctuation do not."""
    assert normalized("<unk> 's UNK  unk UNKNOWN [UNK]-led <UNK>.") == "UNK 's UNK UNK UNKNOWN UNK-led UNK."
    assert without_unknown("unk in [UNK] talks UNKNOWN <unk>-led") == "in talks UNKNOWN -led"
    assert rows(["<unk> talks"], ["UNK talks"])["rouge1"][0] == 1.0
    assert rows(["talks"], ["UNK talks"])["rouge1"][0] == pytest.approx(2 / 3)
    assert drop_unknown(["<unk> talks", "UNK"]) == ["talks", ""]
    assert rows(["up #.# percent"], ["up ## percent"])["rouge2"][0] == 1.0


def test_an_empty_hypothesis_scores_nothing_and_is_counted() -> None:
    found = rows(["", "a b"], ["a b", "a b"])
    assert found["rouge1"].tolist() == [0.0, 1.0]
    assert text_statistics(["", "a b"], ["a b", "a b"])["empty"] == 0.5


def test_intervals_hold_the_mean_and_come_back() -> None:
    scores = {name: np.random.default_rng(at).random(60) for at, name in enumerate(METRICS)}
    first, again, other = intervals(scores), intervals(scores), intervals(scores, seed=1)
    assert first == again != other
    for name, each in first.items():
        assert each.mean == pytest.approx(100 * scores[name].mean())
        error = 100 * scores[name].std() / 60**0.5
        assert each.low == pytest.approx(each.mean - 1.96 * error, abs=0.25 * error)
        assert each.high == pytest.approx(each.mean + 1.96 * error, abs=0.25 * error)


def test_what_else_is_said_of_headlines() -> None:
    found = text_statistics(["up up [UNK]", "oil - talks"], ["up .", "a b c"], ["up <unk> down", "talks on oil"])
    assert found == pytest.approx(
        {"length_ratio": 5 / 4, "unknown": 1 / 5, "with_unknown": 0.5, "empty": 0.0, "repeats": 1 / 5, "novel_1": 0.0,
         "novel_2": 2 / 3}
    )  # fmt: skip


def test_floors_are_the_first_words_one_headline_for_all_and_the_nearest_ones() -> None:
    train = [Pair(document="x x y", summary="a b"), Pair(document="c d", summary="us rain")]
    test = [Pair(document="a b c d e f g h i j", summary="a b"), Pair(document="x y", summary="us to")]
    fitted = [Pair(document="", summary=text) for text in ["us to talk", "us to", "us to go", "a b", "us rain to"]]
    assert lead("<unk> b c d e f g h i") == "UNK b c d e f g h"
    assert best_constant([pair.summary for pair in fitted]) == "us to"
    tokenizer = word_tokenizer([*"abcdefghijxy", "us", "to", "rain"])
    splits = Splits(
        train=encoded(train, tokenizer),
        validation=Split(pairs=fitted, encoded=encoded(fitted, tokenizer)),
        test=Split(pairs=test, encoded=encoded(test, tokenizer)),
        checksum="",
    )
    found = floors(splits, tokenizer)
    assert found["first 8 words"]["rouge1"] == pytest.approx((2 * 0.25 / 1.25) / 2)
    assert found["best constant headline"] == {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5}
    assert found["nearest training example"]["rouge1"] == 0.0  # "us rain" of c d, "a b" of x x y
    assert nearest_headlines(splits.train, splits.test.encoded, tokenizer) == ["us rain", "a b"]


def encoded(pairs: list[Pair], tokenizer: Tokenizer) -> EncodedPairs:
    """Pairs as tokens."""
    sources, targets = (
        Ragged.of(encode(texts, tokenizer), [0] * len(pairs))
        for texts in ([each.document for each in pairs], [each.summary for each in pairs])
    )
    return EncodedPairs(sources=sources, targets=targets, special=(0, 1, 2))


@pytest.mark.extras  # several processes
def test_the_best_constant_is_the_same_in_every_interpreter() -> None:
    """Words of equal frequency come in the order of the headlines, not of a hash."""
    code = (
        "from seqarena.summarization.floors import best_constant; "
        "print(best_constant([f'w{n % 7} w{(n + 1) % 7} w{(n + 2) % 7}' for n in range(70)]))"
    )
    said = set()
    for seed in ("1", "2", "3"):
        there = {**os.environ, "PYTHONHASHSEED": seed}
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=there)
        said.add(found.stdout)
    assert len(said) == 1


def files(folder: Path, **texts: list[str]) -> list[str]:
    words = []
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
        words += [f"--{name}", str(folder / name)]
    return words


def test_any_system_is_scored_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = files(tmp_path, hypotheses=["oil up", "", "<unk> wins"], references=["oil prices up", "a", "UNK wins"])
    assert dispatch(["summarization", "score", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["rouge1"]) == set(found["rouge2"]) == set(found["rougeL"]) == {"mean", "low", "high"}
    assert found["rouge1"]["mean"] == pytest.approx(100 * (0.8 + 0 + 1) / 3)
    assert found["drop"]["rouge1"]["mean"] == pytest.approx(100 * (0.8 + 0 + 2 / 3) / 3)
    assert found["rouge-score"] == {name: found[name] for name in METRICS}
    assert (found["rows"], found["empty"]) == (3, pytest.approx(1 / 3))
    more = files(tmp_path, baseline=["oil", "a", "UNK"], documents=["oil x", "b", "c"])
    assert dispatch(["summarization", "score", *given, *more]) == 0
    printed = capsys.readouterr()
    worse = re.search(r"minus the baseline +([+-][0-9.]+)", printed.out)
    assert worse is not None
    assert float(worse[1]) == pytest.approx(100 * (0.8 + 0 + 1 - 0.5 - 1 - 2 / 3) / 3, abs=0.01)
    assert "3 rows" in printed.out
    assert "60.00 [0.00, 100.00]" in printed.out
    assert "minus the baseline" in printed.out
    assert "empty hypotheses (score 0): 1" in printed.err


@pytest.mark.parametrize(("hypotheses", "said"), [(["a b", "c d"], "equal"), (["x", "y"], "no test")])
def test_differences_without_spread_have_no_p(
    hypotheses: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = files(tmp_path, hypotheses=hypotheses, references=["a b", "c d"], baseline=["a b", "c d"])
    assert dispatch(["summarization", "score", *given]) == 0
    assert re.search(rf"p, over these rows only +{said} +{said} +{said}", capsys.readouterr().out)


def test_differences_that_differ_by_rounding_alone_have_no_p(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2/3 - 1/3 and 1 - 2/3 are a third in every row, but not the same float."""
    given = files(tmp_path, hypotheses=["a b x", "a b c"], references=["a b c"] * 2, baseline=["a x y", "a b x"])
    assert dispatch(["summarization", "score", *given]) == 0
    assert re.search(r"p, over these rows only +no test +no test +no test", capsys.readouterr().out)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = files(tmp_path, hypotheses=["a", "b"], references=["a"])
    assert run_command(dispatch, ["summarization", "score", *given]) == 1
    assert re.search(r"hypotheses has 2 lines and \S+references 1; expected the same number", capsys.readouterr().err)
    assert run_command(dispatch, ["summarization", "score", *files(tmp_path, hypotheses=[], references=["a"])]) == 1
    assert "hypotheses is empty" in capsys.readouterr().err
    assert run_command(dispatch, ["summarization", "score", "--hypotheses", str(tmp_path / "no"), *given[2:]]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert run_command(dispatch, ["summarization", "score", "--hypotheses", "x"]) == 2
    fine = files(tmp_path, hypotheses=["a"], references=["a"])
    assert run_command(dispatch, ["summarization", "score", *fine, "--seed", "-1"]) == 2


def test_the_metric_of_the_evaluate_library_says_the_same() -> None:
    found = RougeMetric().compute(predictions=["oil up", "b"], references=["oil prices up", "b"])
    assert found is not None
    assert found["rouge1"] == pytest.approx(90.0)
    assert found["rouge1_low"] == pytest.approx(80.0)
    assert found["rouge1_high"] == pytest.approx(100.0)
    with pytest.raises(BadDataError, match="found 0 and 0"):
        RougeMetric().compute(predictions=[], references=[])
    assert set(found) == {f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")}
