"""Records of prices: measured in turns, read with suspicion, and shown beside the scores of the same protocol."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.config import to_json
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import BaseRun
from seqarena.common.training.step import Stepper
from seqarena.lra.presets import PRESETS
from seqarena.scripts import leaderboard, price
from seqarena.scripts.benchmark.step import OURS, timed_step
from seqarena.scripts.leaderboard.cells import footnotes, headings
from seqarena.scripts.leaderboard.overview import overview_of, overview_text
from seqarena.scripts.leaderboard.remarks import named_values
from seqarena.scripts.leaderboard.table import tables
from seqarena.scripts.packages import find_package
from seqarena.scripts.price import command, measure
from seqarena.scripts.price.record import FORMAT, Price, PriceRecord, read_price, read_prices
from tests.scripts.results import only, result

QUICK: BaseRun = PRESETS["listops"]["quick"].run
SOFTMAX, DNAS = (("attention", "softmax"),), (("attention", "dnas"),)
TINY = ("lra listops --rounds 2 --steps 1 --model.dim 8 --model.heads 2 --model.ffn-dim 8 --train.batch-size 2").split()


def record(**changes: Any) -> PriceRecord:
    prices = [
        Price(row=row, forward_seconds=[1.0] * 3, training_seconds=seconds, peak_memory_bytes=memory,
              implementations=["fused"])
        for row, seconds, memory in ((SOFTMAX, [1.0, 2.0, 4.0], 100), (DNAS, [1.5, 4.0, 6.0], 150))
    ]  # fmt: skip
    made = PriceRecord(
        format=FORMAT, package="lra", task="listops", preset="quick", run=to_json(QUICK), config_version=CONFIG_VERSION,
        prices=prices, environment={"device": "a CPU", "precision": "float32"}, load=[0.5, 1.0],
        command="seqarena price", measured_at="2026-01-02T03:04:05+00:00",
    )  # fmt: skip
    return replace(made, **changes)


def test_a_ratio_is_of_the_same_round() -> None:
    """Another program that slows one round to a quarter moves neither the median nor the range much."""
    found = record().ratio(DNAS, SOFTMAX)
    assert found is not None
    assert (found.time, found.least, found.most, found.memory) == (1.5, 1.5, 2.0, 1.5)
    assert record().ratio((("attention", "x3"),), SOFTMAX) is None


def test_a_record_is_read_as_written(tmp_path: Path) -> None:
    path = record().write(tmp_path)
    assert read_price(path) == record()
    later = record(measured_at="2026-01-03T00:00:00+00:00")
    later.write(tmp_path / "more")
    assert read_prices(tmp_path) == ([later, record()], [])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("1.5", "0.5", "edited"),
        ('"format": 1', '"format": 2', "not a record"),
        ("{", "[", "not readable as JSON"),
    ],
)
def test_an_edited_record_is_skipped(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = record().write(tmp_path)
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(BadDataError, match=message):
        read_price(path)
    found, problems = read_prices(tmp_path)
    assert (found, len(problems)) == ([], 1)


@pytest.mark.parametrize("seconds", [[], [1.0, -1.0], [1.0]])
def test_impossible_prices_are_refused(tmp_path: Path, seconds: list[float]) -> None:
    prices = record().prices
    path = record(prices=[prices[0], replace(prices[1], training_seconds=seconds)]).write(tmp_path)
    with pytest.raises(BadDataError, match=r"without a positive time|rounds differ"):
        read_price(path)


def test_prices_stand_beside_scores_of_the_same_protocol_only() -> None:
    scores = [result(name, seed, 50 + seed, run=to_json(QUICK)) for name in ("softmax", "dnas") for seed in range(3)]
    table = only(tables(scores, [], "softmax", [record()]))
    assert {row.name: row.price.time for row in table.rows if row.price} == {"softmax": 1.0, "dnas": 1.5}
    assert "time / softmax" in headings(table)
    assert any("a CPU" in note and "load 0.5 to 1.0" in note for note in footnotes(table))
    slower = to_json(QUICK)  # no setting of a step's time
    slower["optim"]["lr"] *= 2
    slower["train"]["steps"] *= 2
    assert only(tables(scores, [], "softmax", [record(run=slower)])).rows[1].price is not None
    longer = to_json(QUICK)
    longer["train"]["batch_size"] += 1
    other = only(tables(scores, [], "softmax", [record(run=longer)]))
    assert not any(row.price for row in other.rows)
    assert "tokens/s" not in headings(other)  # speeds of runs, which may have shared the machine
    newer = replace(record().prices[1], training_seconds=[3.0, 6.0, 12.0])
    found = only(tables(scores, [], "softmax", [record(prices=[record().prices[0], newer]), record()]))
    assert [row.price.time for row in found.rows if row.price] == [1.0, 3.0]  # the first record is the newest


def test_a_price_is_a_ratio_to_the_row_with_which_scores_are_compared() -> None:
    decoder = ("decoder", "relu")
    some = (SOFTMAX, (*SOFTMAX, decoder), (*DNAS, decoder))
    scores = [
        replace(result(row[0][1], seed, 50 + seed, run=to_json(QUICK)), row=row) for row in some for seed in range(3)
    ]
    seconds = dict(zip(some, (2.0, 3.0, 4.0), strict=True))
    base = record().prices[0]
    prices = [replace(base, row=row, training_seconds=[seconds[row]] * 3) for row in some]
    table = only(tables(scores, [], "softmax", [record(prices=prices)]))
    assert {row.parts: row.price.time for row in table.rows if row.price} == {some[0]: 1.0, some[1]: 1.5, some[2]: 2.0}
    alone = only(tables(scores, [], "softmax", [record(prices=prices[1:])]))
    assert not any(row.price for row in alone.rows)  # softmax itself was not measured beside them


def test_prices_by_the_baseline_of_another_norm_are_named() -> None:
    norm = ("norm", "post")
    some = (SOFTMAX, (*SOFTMAX, norm), (*DNAS, norm))
    scores = [
        replace(result(row[0][1], seed, 50 + seed, run=to_json(QUICK)), row=row) for row in some for seed in range(3)
    ]
    base = record().prices[0]
    prices = [
        replace(base, row=row, training_seconds=[time] * 3) for row, time in zip(some, (2.0, 3.0, 6.0), strict=True)
    ]
    table = only(tables(scores, [], "softmax", [record(prices=prices)]))
    assert {row.name: row.price.time for row in table.rows if row.price} == {
        "softmax": 1.0, "softmax, post": 1.5, "dnas, post": 2.0
    }  # fmt: skip
    assert [note for note in table.prices if "divided" in note] == [
        "price of dnas, post: divided by that of softmax, post"
    ]


def test_a_price_counts_for_its_sources_and_data_only() -> None:
    sources = {"softmax": {"loop.py": "1"}, "dnas": {"loop.py": "1", "dnas.py": "1"}}
    scores = [
        result(name, seed, 50 + seed, run=to_json(QUICK), sources=sources[name], data_checksum="a")
        for name in ("softmax", "dnas") for seed in range(3)
    ]  # fmt: skip

    def priced(dnas: dict[str, str], softmax: dict[str, str], data: str) -> tuple[set[str], list[str]]:
        found = [replace(price, sources=own) for price, own in zip(record().prices, (softmax, dnas), strict=True)]
        table = only(tables(scores, [], "softmax", [record(prices=found, data_checksum=data)]))
        return {row.name for row in table.rows if row.price}, table.prices

    same, notes = priced(sources["dnas"], sources["softmax"], "a")
    assert same == {"softmax", "dnas"}
    assert "not recorded" not in "".join(notes)
    edited, notes = priced({"loop.py": "1", "dnas.py": "2"}, sources["softmax"], "a")
    assert edited == {"softmax"}
    assert any("no price of dnas: measured with other sources or settings" in note for note in notes)
    assert priced(sources["dnas"], {"loop.py": "2"}, "a")[0] == set()
    assert priced(sources["dnas"], sources["softmax"], "b") == (set(), [])
    own = [named_values(scores[0]), named_values(scores[3])]
    for values, names in ((own, {"softmax", "dnas"}), ([own[0], own[1] | {"model.layers": 9}], {"softmax"})):
        found = [replace(price, row_values=each) for price, each in zip(record().prices, values, strict=True)]
        table = only(tables(scores, [], "softmax", [record(prices=found)]))
        assert {row.name for row in table.rows if row.price} == names
    half = {"device": "a GPU", "precision": "bfloat16"}
    on_gpu = only(tables([replace(each, environment=half) for each in scores], [], "softmax", [record()]))
    assert not any(row.price for row in on_gpu.rows)


def test_the_overview_has_the_price() -> None:
    scores = [result(name, seed, 50 + seed, run=to_json(QUICK)) for name in ("softmax", "dnas") for seed in range(3)]
    made = [*tables(scores, [], "softmax", [record()]), *tables(scores, [], "softmax")]
    overview = overview_of(made)
    assert overview is not None
    _, columns, rows, _ = overview_text(overview, made)
    assert columns[2] == "time / softmax"
    assert rows[1][:3] == ["dnas", "2?", "1.50 (1 task)"]  # the scores of this result have no spread


def test_a_worker_times_steps_and_names_the_implementation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(QUICK, model=replace(QUICK.model, layers=1, dim=8, heads=2, ffn_dim=8))  # type: ignore[call-arg]
    monkeypatch.setattr(measure, "_steps", [])
    measure._start("lra", tiny, tmp_path, 2)
    chosen, environment = measure._warm_up(2)
    assert chosen == ["fused"]
    assert environment["precision"] == "float32"
    found = measure._round(2)
    assert min(found.training_seconds, found.forward_seconds, found.peak_memory_bytes) > 0


def test_tokens_per_step_are_those_of_the_timed_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = replace(QUICK, model=replace(QUICK.model, layers=1, dim=8, heads=2, ffn_dim=8))  # type: ignore[call-arg]
    step, taken = timed_step("lra", tiny, tmp_path, 3, OURS), list[int]()
    monkeypatch.setattr(Stepper, "backward", lambda self, share: taken.append(share.tokens))
    for number in range(3):
        step.training(number)
    assert len(set(taken)) == 3
    prices = [Price(row=row, implementations=[], training_seconds=[1.0], forward_seconds=[1.0], peak_memory_bytes=1)
              for row in ((("attention", "softmax"),), (("attention", "dnas"),))]  # fmt: skip
    monkeypatch.setattr(command, "measure", lambda *_: (prices, {}, [0.0]))
    small = "--model.layers 1 --model.dim 8 --model.heads 2 --model.ffn-dim 8".split()
    arguments = ["lra", "listops", "--attention", "softmax", "dnas", "--steps", "3", "--data-folder", str(tmp_path)]
    assert price.run([*arguments, "--runs", str(tmp_path), "--json", *small]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_step"] == pytest.approx(sum(taken) / 3)


def test_a_forward_pass_has_the_parts_of_a_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(QUICK, model=replace(QUICK.model, layers=1, dim=8, heads=2, ffn_dim=8))  # type: ignore[call-arg]
    run = replace(tiny, train=replace(QUICK.train, batch_size=8, micro_batch_size=3))
    step, sizes = timed_step("lra", run, tmp_path, 1, OURS), list[int]()
    forward = Stepper.forward
    monkeypatch.setattr(
        Stepper, "forward", lambda self, model, part: sizes.append(len(part)) or forward(self, model, part)
    )
    step.training(0)
    step = timed_step("lra", run, tmp_path, 1, OURS)
    step.forward(0)
    assert sizes == [3, 3, 2] * 2


def test_steps_of_a_language_model_have_a_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of an epoch has none, and is shorter."""
    options = ["--model.layers", "1", "--model.dim", "8", "--model.heads", "2", "--model.ffn-dim", "8"]
    run = build_run(find_package("pretraining"), "wikitext2", "quick", "softmax", None, 0, options, "test")
    fresh = list[bool]()
    forward = Stepper.forward

    def recorded(stepper: Stepper, model: Any, part: Any) -> Any:
        fresh.append(bool(part.fresh.any()))
        return forward(stepper, model, part)

    monkeypatch.setattr(Stepper, "forward", recorded)
    step = timed_step("pretraining", run, tmp_path, 1, OURS)
    step.training(0)
    step.forward(0)
    assert fresh == [False, False]


def test_a_variant_given_twice_is_refused() -> None:
    with pytest.raises(WrongUseError, match="softmax is given twice"):
        price.run([*TINY, "--attention", "softmax", "softmax"])
    with pytest.raises(WrongUseError, match="at least two variants to compare, found dnas"):
        price.run([*TINY, "--attention", "dnas"])
    with pytest.raises(WrongUseError, match="--rounds: expected at least 1"):
        price.run([*TINY, "--rounds", "0"])


@pytest.mark.extras
def test_prices_are_measured_and_found_by_the_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path / "data")]
    assert price.run([*TINY, "--attention", "softmax", "dnas", "--norm", "pre", "post", *folders, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["data_checksum"]
    assert all("common/attention/softmax.py" in each["sources"] for each in shown["prices"][:2])
    assert [each["row"] for each in shown["prices"]] == [
        [["attention", "softmax"]], [["attention", "softmax"], ["norm", "post"]],
        [["attention", "dnas"]], [["attention", "dnas"], ["norm", "post"]],
    ]  # fmt: skip
    assert [each["implementations"] for each in shown["prices"]] == [["fused"]] * 2 + [["blockwise"]] * 2
    assert len(read_prices(tmp_path / "runs")[0]) == 1
    with pytest.raises(WrongUseError, match="no results"):  # a price alone is no result
        leaderboard.run(["--runs", str(tmp_path / "runs")])
