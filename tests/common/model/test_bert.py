"""BERT and its checkpoints: round trips, old names, prefixes, damage. Parity with transformers: test_bert_oracle.py."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.visibility import Visibility
from seqarena.common.checksums import CHECKSUMS
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.checkpoint import load, save
from seqarena.common.model.bert.model import Bert, BertConfig, BertForPretraining
from seqarena.common.model.norms import NORMS

TINY = BertConfig(layers=2, dim=8, heads=2, ffn_dim=12, vocabulary=20, max_length=10)
TOKENS = torch.randint(0, 20, (3, 7), generator=torch.Generator().manual_seed(0))
TYPES = (torch.arange(7) > 3).long().expand(3, -1)
REAL = torch.arange(7)[None] < torch.tensor([[7], [5], [2]])
PLACES = torch.tensor([1, 3, 8, 15])


def answers(model: BertForPretraining) -> list[torch.Tensor]:
    scores, order = model.eval()(TOKENS, TYPES, Visibility(query_real=REAL, key_real=REAL), PLACES)
    return [scores, order]


def saved(folder: Path, config: BertConfig = TINY) -> BertForPretraining:
    torch.manual_seed(1)
    model = BertForPretraining(config)
    save(folder, model)
    (folder / CHECKSUMS).unlink()  # as a public checkpoint, which tests rewrite
    return model


@pytest.mark.parametrize("attention", ["softmax", "dnas", "hnas", "x3"])
@pytest.mark.parametrize("norm", list(NORMS))
def test_what_is_saved_is_loaded(tmp_path: Path, attention: str, norm: str) -> None:
    config = replace(TINY, attention=ATTENTIONS[attention], norm=NORMS[norm])
    model = saved(tmp_path, config)
    again, report = load(str(tmp_path))
    assert again.bert.config == config
    assert (report.new, report.unused) == ((), ())
    for one, other in zip(answers(model), answers(again), strict=True):
        assert torch.equal(one, other)


def test_a_public_checkpoint_with_hnas_keeps_every_shared_weight_and_u_zero_is_softmax(tmp_path: Path) -> None:
    model = saved(tmp_path)
    hybrid, report = load(str(tmp_path), attention=Hybrid(u=0.0))
    assert [name.split(".")[-2] for name in report.new] == ["u", "u"]
    theirs = model.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in hybrid.state_dict().items() if name in theirs)
    with torch.no_grad():
        for one, other in zip(answers(model), answers(hybrid), strict=True):
            assert torch.equal(one, other)
    for one, other in zip(answers(model), answers(hybrid), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def renamed(folder: Path, kind: str) -> None:
    """Writes the checkpoint again as somebody else would have."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "seqarena.json").unlink()
    if kind == "old names":
        tensors = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): each
                   for name, each in tensors.items()}  # fmt: skip
        tensors["bert.embeddings.position_ids"] = torch.arange(10)[None]
    elif kind == "tied decoder":
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    if kind == "pickled":
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        safetensors.torch.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["old names", "tied decoder", "pickled"])
def test_checkpoints_of_all_times_are_read(tmp_path: Path, kind: str) -> None:
    model = saved(tmp_path)
    renamed(tmp_path, kind)
    again, report = load(str(tmp_path))
    assert (report.new, report.unused) == ((), ())
    for one, other in zip(answers(model), answers(again), strict=True):
        assert torch.equal(one, other)


def test_a_body_alone_is_read_and_told(tmp_path: Path) -> None:
    model = saved(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    body = {name.removeprefix("bert."): each for name, each in tensors.items() if name.startswith("bert.")}
    safetensors.torch.save_file({**body, "qa_outputs.weight": torch.zeros(2, 8)}, tmp_path / "model.safetensors")
    again, report = load(str(tmp_path))
    assert report.unused == ("qa_outputs.weight",)
    assert all(name.startswith("cls.predictions") for name in report.new)
    assert "not in the checkpoint: cls.predictions" in str(report)
    assert again.sentences is None
    hidden = [each.bert.eval()(TOKENS, TYPES, Visibility()) for each in (model, again)]
    assert torch.equal(*hidden)
    assert torch.equal(model.bert.pooled(hidden[0]), again.bert.pooled(hidden[1]))


def test_what_is_no_checkpoint_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadDataError, match=r"config\.json is a file; expected the folder of a checkpoint, such as"):
        load(str(tmp_path / "config.json"))
    (tmp_path / "config.json").unlink()
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    content = (tmp_path / "model.safetensors").read_bytes()

    def reason(**changes: object) -> str:
        (tmp_path / "seqarena.json").unlink(missing_ok=True)
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(BadDataError) as error:
            load(str(tmp_path))
        return str(error.value)

    told = reason(hidden_size=4, vocab_size=21)
    assert "bert.embeddings.word_embeddings.weight is (20, 8), expected (21, 4)" in told
    assert "bert.pooler.dense.weight is (8, 8), expected (4, 4)" in told
    assert "expected model_type bert, albert, electra, distilbert, roberta, found t5" in reason(model_type="t5")
    assert "expected hidden_act gelu, gelu_new, gelu_pytorch_tanh, relu, found silu" in reason(hidden_act="silu")
    assert "expected position_embedding_type absolute" in reason(position_embedding_type="relative_key")
    assert "not a whole bert, 16 tensors of its body are missing" in reason(num_hidden_layers=3)
    (tmp_path / "model.safetensors").write_bytes(content[:-10])
    assert "model.safetensors: cannot be read" in reason()
    (tmp_path / "model.safetensors").unlink()
    assert "pytorch_model.bin, or a TensorFlow checkpoint; none exists" in reason()
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin: expected a dict of named tensors" in reason()
    torch.save({"a": torch.ones(99)}, tmp_path / "pytorch_model.bin")
    stored = (tmp_path / "pytorch_model.bin").read_bytes()
    changed = stored.replace(torch.ones(99).numpy().tobytes(), torch.full((99,), 1.5).numpy().tobytes())
    assert changed != stored
    (tmp_path / "pytorch_model.bin").write_bytes(changed)  # torch verifies no checksum
    assert "the checksum of pytorch_model/data/0 is wrong" in reason()
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadDataError, match=r"config.json: expected an object, found list"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadDataError, match=r"config.json: Expecting property name"):
        load(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(BadDataError, match=r"config.json does not exist"):
        load(str(tmp_path))


def test_a_pickle_that_would_run_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return print, ("harm",)

    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"bert.pooler.dense.weight": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadDataError, match=r"pytorch_model.bin: cannot be read"):
        load(str(tmp_path))
    assert "harm" not in capsys.readouterr().out


def test_a_decoder_of_its_own_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = torch.zeros(20, 8)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadDataError, match=r"decoder.weight differs from the token embeddings"):
        load(str(tmp_path))


def test_other_variants_are_not_taken_for_plain_bert(tmp_path: Path) -> None:
    saved(tmp_path / "plain")
    saved(tmp_path / "hnas", replace(TINY, attention=Hybrid()))
    types = [json.loads((tmp_path / name / "config.json").read_text())["model_type"] for name in ("plain", "hnas")]
    assert types == ["bert", "seqarena-bert"]


def test_the_head_sees_its_places_alone() -> None:
    model = BertForPretraining(TINY).eval()
    visibility = Visibility(query_real=REAL, key_real=REAL)
    scores, _ = model(TOKENS, TYPES, visibility, torch.arange(21))
    picked, _ = model(TOKENS, TYPES, visibility, PLACES)
    torch.testing.assert_close(scores[PLACES], picked, rtol=0, atol=1e-6)
    assert model.masked.bias.grad is None
    picked.sum().backward()
    assert model.bert.embeddings.word.weight.grad is not None  # tied


def test_padding_and_packing_change_nothing() -> None:
    """Two sequences in one row, each seeing itself with its own positions, are two rows."""
    for name in ("softmax", "dnas", "hnas", "x3"):
        torch.manual_seed(0)
        model = Bert(replace(TINY, attention=ATTENTIONS[name])).double().eval()
        whole = model(TOKENS[:2, :4], TYPES[:2, :4], Visibility())
        row = torch.cat([TOKENS[0, :4], TOKENS[1, :4], torch.tensor([5, 5])])[None]
        real = torch.arange(10)[None] < 8
        segments = torch.tensor([[0] * 4 + [1] * 4 + [2] * 2])
        positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0, 0]])
        seen = Visibility(query_real=real, key_real=real, segments=segments)
        packed = model(row, torch.zeros_like(row), seen, positions)[:, :8].view(2, 4, -1)
        torch.testing.assert_close(packed, whole, rtol=0, atol=1e-12)


def test_wrong_settings_are_refused() -> None:
    for changes in ({"vocabulary": 0}, {"initial_std": 0.0}, {"heads": 3}, {"token_types": -1},
                    {"embedding_dim": 0}):  # fmt: skip
        with pytest.raises(WrongUseError, match=f"model.{next(iter(changes))}|multiple of model.heads"):
            replace(TINY, **changes).check()
    with pytest.raises(WrongUseError, match="longer than the 10 positions"):
        Bert(TINY)(torch.zeros(1, 11, dtype=torch.long), torch.zeros(1, 11, dtype=torch.long), Visibility())
    with pytest.raises(WrongUseError, match="without a pooler"):
        Bert(TINY, pooler=False).pooled(torch.zeros(1, 2, 8))


def test_what_is_not_here_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First without the pickled file, which is twice the size for nothing where the other is there."""
    model = saved(tmp_path)
    asked: list[tuple[str, str | None, list[str]]] = []

    def download(source: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((source, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    again, _ = load("somebody/bert-tiny", revision="abc")
    assert torch.equal(again.masked.dense.weight, model.masked.dense.weight)
    assert [(source, revision) for source, revision, _ in asked] == [("somebody/bert-tiny", "abc")]
    assert "pytorch_model.bin" not in asked[0][2]
    (tmp_path / "model.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(BadDataError, match="none exists"):
        load("somebody/bert-tiny")
    assert asked[-1][2] == ["pytorch_model.bin"]

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("no route to the hub\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(
        BadDataError, match=r"bert-tiny: no such folder, and not available from the hub \(no route to the hub\)"
    ):
        load("somebody/bert-tiny")


@pytest.mark.unhooked
@pytest.mark.parametrize("attention", ["softmax", "dnas", "hnas", "x3"])
def test_it_compiles_to_one_graph(attention: str) -> None:
    torch.manual_seed(0)
    model = BertForPretraining(replace(TINY, attention=ATTENTIONS[attention], dropout=0.0, attention_dropout=0.0))
    given = TOKENS, TYPES, Visibility(query_real=REAL, key_real=REAL), PLACES
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(*given), model(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["model.safetensors", "seqarena.json"])
def test_a_bit_that_changed_in_a_checkpoint_of_ours_is_noticed(tmp_path: Path, name: str) -> None:
    save(tmp_path, BertForPretraining(TINY))
    content = (tmp_path / name).read_bytes()
    for bit in random.Random(0).sample(range(8 * len(content)), 30):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(BadDataError):
            load(str(tmp_path))
