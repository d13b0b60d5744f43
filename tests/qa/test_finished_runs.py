"""A finished run that is requested again notices what has changed: weights, vocabulary, additional examples."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import BadDataError
from seqarena.qa.data import world
from tests.qa.test_training import RUNS, TINY, checkpoint, measure


def test_a_finished_run_notices_other_weights_where_it_started(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "bert")
    run = replace(RUNS["mnli"], model=replace(TINY, init=source)).completed({"model.norm"})
    first = measure(run, tmp_path / "run")
    assert measure(run, tmp_path / "run") == first
    weights = tmp_path / "bert" / "model.safetensors"
    before = weights.read_bytes()
    tensors = load_file(weights)
    save_file({name: 2 * value for name, value in tensors.items()}, weights)
    with pytest.raises(
        BadDataError, match=r"the weights of model.init have changed since this run began .*--overwrite"
    ):
        measure(run, tmp_path / "run")
    with pytest.raises(BadDataError, match=r"model.safetensors is damaged or was changed: checksums.json"):
        measure(run, tmp_path / "other")
    weights.write_bytes(before)
    assert measure(run, tmp_path / "run") == first


def test_a_finished_run_notices_another_vocabulary_where_it_started(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "bert")
    run = replace(RUNS["mnli"], model=replace(TINY, init=source)).completed({"model.norm"})
    first = measure(run, tmp_path / "run")
    assert measure(run, tmp_path / "run") == first
    word_tokenizer(sorted(world.words(), reverse=True)).save(tmp_path / "bert")
    with pytest.raises(BadDataError, match=r"began on data of sha256 \w+, now they are \w+"):
        measure(run, tmp_path / "run")


def test_a_finished_run_notices_another_stress_set(tmp_path: Path) -> None:
    extra = tmp_path / "extra.jsonl"
    extra.write_text('{"sentence1": "all dogs run", "sentence2": "some dogs run", "gold_label": "entailment"}')
    run = replace(RUNS["mnli"], data=replace(RUNS["mnli"].data, extra=str(extra)))
    first = measure(run, tmp_path / "run")
    assert measure(run, tmp_path / "run") == first
    extra.write_text(extra.read_text().replace("entailment", "neutral"))
    with pytest.raises(
        BadDataError, match=r"the file of data.extra has changed since this run scored it .*--overwrite"
    ):
        measure(run, tmp_path / "run")
