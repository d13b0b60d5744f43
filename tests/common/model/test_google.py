"""Google's folders of BERT and ALBERT: config, vocabulary, names of the tensors, and the function that they compute."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.attention.visibility import Visibility
from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError
from seqarena.common.model.bert.checkpoint import load, pretraining_of, read_config, save, weights_checksum
from seqarena.common.model.bert.google import read
from seqarena.common.model.bert.model import BertForPretraining
from tests.common.model.google import table
from tests.common.model.google.forward import Network
from tests.common.model.google.write import HERE, NAMES, TOKENS, values, variables

LENGTH = 20
IDS = torch.randint(0, len(TOKENS), (1, LENGTH), generator=torch.Generator().manual_seed(0))
TYPES = (torch.arange(LENGTH) > 8).long()[None]


@pytest.fixture(params=list(NAMES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / kind, tmp_path / "google"))


def computed(model: BertForPretraining) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        hidden = model.eval().bert(IDS, TYPES, Visibility())
        scores, order = model(IDS, TYPES, Visibility(), torch.arange(LENGTH))
    assert order is not None
    return hidden[0], scores, order[0]


def test_the_function_is_that_of_googles_code(kind: str) -> None:
    model, report = load(str(HERE / kind))
    assert (report.new, report.unused) == ((), ())
    assert model.family == kind
    network = Network({name: values(name, shape) for name, shape in variables(kind).items()}, heads=2, layers=2)
    expected = network(IDS[0].numpy(), TYPES[0].numpy())
    for found, numbers in zip(computed(model), expected, strict=True):
        assert np.abs(found.numpy() - numbers).max() <= 1e-5
        assert np.abs(numbers).max() > 0.1


def test_it_is_saved_in_the_layout_of_its_family(kind: str, tmp_path: Path) -> None:
    model, _ = load(str(HERE / kind))
    save(tmp_path, model)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == read(HERE / kind / f"{NAMES[kind]}.index", kind).keys()
    again, report = load(str(tmp_path))
    assert (report.new, report.unused) == ((), ())
    assert all(one.equal(other) for one, other in zip(computed(model), computed(again), strict=True))


@pytest.mark.parametrize(("kind", "changes", "found"), [
    ("bert", {}, "gelu"), ("bert", {"hidden_act": "relu"}, "relu"), ("albert", {}, "gelu_tanh"),
    ("albert", {"hidden_act": "relu"}, "relu"),
])  # fmt: skip
def test_albert_has_the_tanh_form_of_gelu(changes: dict[str, Any], found: str, folder: Path) -> None:
    path = next(folder.glob("*_config.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert read_config(folder).activation == found


def test_a_config_json_comes_first(folder: Path, kind: str, tmp_path: Path) -> None:
    model, _ = load(str(folder))
    save(tmp_path / "own", model)
    (folder / "config.json").write_bytes((tmp_path / "own" / "config.json").read_bytes())
    next(folder.glob("*_config.json")).unlink()
    again, _ = load(str(folder))
    assert all(one.equal(other) for one, other in zip(computed(model), computed(again), strict=True))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"model_type": "roberta", "hidden_act": "gelu", "pad_token_id": 1})
    )
    with pytest.raises(BadDataError, match="expected a TensorFlow checkpoint of bert or albert, found roberta"):
        load(str(folder))


def test_vocabularies(tmp_path: Path) -> None:
    assert load_tokenizer(HERE / "bert").tokens == list(TOKENS)
    train_tokenizer(["the cat sat on the mat ."] * 3, "sentencepiece", 100).save(tmp_path / "own")
    (tmp_path / "30k-clean.model").write_bytes((tmp_path / "own" / "spiece.model").read_bytes())
    (tmp_path / "30k-clean.vocab").write_text("[CLS]\t0\n")
    text = ["the cat sat on"]
    found, expected = (load_tokenizer(each).encode(text)[0] for each in (tmp_path, tmp_path / "own" / "spiece.model"))
    assert found.tolist() == expected.tolist()


def test_all_files_identify_the_weights(folder: Path, kind: str) -> None:
    before = weights_checksum(folder)
    assert pretraining_of(folder).label == f"sha256 {before[:16]}"
    for path in sorted(folder.glob(f"{NAMES[kind]}.data-*")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"x")
        assert weights_checksum(folder) != before
        path.write_bytes(content)
    assert weights_checksum(folder) == before
    path.unlink()
    with pytest.raises(BadDataError, match=r"does not exist; expected all files of the TensorFlow checkpoint"):
        weights_checksum(folder)
    (folder / f"{NAMES[kind]}.index").write_bytes(b"")
    with pytest.raises(BadDataError, match="not a whole index of a TensorFlow checkpoint"):
        weights_checksum(folder)


def test_what_is_no_such_folder_is_one_message(folder: Path, kind: str) -> None:
    index = folder / f"{NAMES[kind]}.index"
    (folder / "model.ckpt-7.index").write_bytes(index.read_bytes())
    with pytest.raises(BadDataError, match=r"expected one TensorFlow checkpoint, found .*model.ckpt-7.index"):
        load(str(folder))
    (folder / "model.ckpt-7.index").unlink()
    (folder / "._a.index").write_bytes(b"as archives of macOS have")
    (folder / "b.index").mkdir()
    load(str(folder))
    path = next(folder.glob("*_config.json"))
    whole = path.read_text()
    for content, expected in [
        ("[]", "expected an object, found list"), (whole[:50], "Unterminated string"),
        (whole.replace('"hidden_size"', '"size"'), "expected the field hidden_size"),
        (whole.replace('"intermediate_size": 12', '"intermediate_size": 13'), r"is \(\d+, 8\), expected \(13, 8\)"),
        (whole.replace('"num_hidden_groups": 1', '"num_hidden_groups": 2').replace("gelu", "silu"),
         r"expected num_hidden_groups 1, found 2|expected hidden_act .*, found silu"),
    ]:  # fmt: skip
        path.write_text(content)
        with pytest.raises(BadDataError, match=expected):
            load(str(folder))
    path.unlink()
    with pytest.raises(BadDataError, match=r"config.json does not exist; expected .* or the files of Google's BERT"):
        load(str(folder))
    path.write_text(whole)
    index.unlink()
    with pytest.raises(BadDataError, match=r"or a TensorFlow checkpoint; none exists"):
        load(str(folder))


def test_a_checkpoint_of_another_model_is_not_a_whole_bert(folder: Path, kind: str) -> None:
    made = table.block([table.HEADER, (b"model/layer/kernel", table.tensor(content=bytes(4), sizes=(1, 1)))])
    (folder / f"{NAMES[kind]}.index").unlink()
    table.write(folder, table.table(made), bytes(4))
    with pytest.raises(BadDataError, match=re.escape(f"not a whole {kind}, ")):
        load(str(folder))
    made = table.block([table.HEADER, (b"bert/pooler/dense/kernel", table.tensor(content=bytes(4), sizes=(1,)))])
    table.write(folder, table.table(made), bytes(4))
    with pytest.raises(BadDataError, match="bert/pooler/dense/kernel has 1 dimensions, expected 2"):
        load(str(folder))


def test_variables_of_other_heads_are_reported(folder: Path, kind: str) -> None:
    """Such as those of a finetuned model; those of the optimiser are not."""
    parts = {name: values(name, shape) for name, shape in variables(kind).items() if not name.startswith("cls/pred")}
    parts |= {"output_weights": np.zeros((3, 8), np.float32), "cls/squad/output_bias": np.zeros(2, np.float32)}
    entries, data = [table.HEADER], b""
    for name, numbers in sorted(parts.items()):
        content = numbers.tobytes()
        entries.append((name.encode(), table.tensor((4, len(data)), content=content, sizes=numbers.shape)))
        data += content
    (folder / f"{NAMES[kind]}.index").unlink()
    table.write(folder, table.table(table.block(entries)), data)
    _, report = load(str(folder))
    head = "cls.predictions" if kind == "bert" else "predictions"
    assert report.unused == ("cls.squad.bias", "output_weights")
    assert all(name.startswith(head) for name in report.new)
    assert len(report.new) == 5
