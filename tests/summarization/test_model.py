"""The encoder-decoder: what it is made of, where it starts from, what it cannot see, and its loss in parts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from seqarena.common.attention import ATTENTIONS
from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.checkpoint import Pretraining, save
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.cross_entropy import chunked_cross_entropy
from seqarena.common.model.norms import NORMS
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.config import to_json
from seqarena.common.runs.run import changed_from, row_name, row_of, settings
from seqarena.summarization.__main__ import PACKAGE
from seqarena.summarization.model import Model, Summarizer
from seqarena.summarization.presets import BASE
from seqarena.summarization.run import Run
from seqarena.summarization.trainer import _start
from tests.summarization.tiny import model, texts


def run(*fields: str, attention: str | None = None) -> Run:
    found = build_run(PACKAGE, "gigaword", "quick", attention, None, 0, fields, "seqarena summarization gigaword")
    assert isinstance(found, Run)
    return found


def test_at_the_size_of_bert_base_it_has_223_9_million_numbers() -> None:
    """As two BERTs with one table of tokens; theirs counts a pooler of 590,592 numbers that nothing reads."""
    with torch.device("meta"):
        numbers = sum(each.numel() for each in Summarizer(BASE).parameters())
    pooler = 768 * 768 + 768
    assert numbers == 223_331_898
    assert numbers + pooler == 223_922_490
    crossed = 12 * (4 * (768 * 768 + 768) + 2 * 768)
    assert crossed == 28_366_848  # what no BERT has


def picked(real: torch.Tensor) -> torch.Tensor:
    """Indices of the real tokens among all positions."""
    return torch.arange(real.numel())[real.flatten()]


def test_one_table_of_tokens_serves_both_sides_and_what_is_said() -> None:
    summarizer = model()
    names = [name for name, each in summarizer.named_parameters() if each.shape == (12, 16) and "position" not in name]
    assert names == ["bert.embeddings.word.weight"]
    source, real = texts(2)
    given = {"source": source, "target": torch.tensor([[1, 4], [1, 5]]), "labels": torch.tensor([[4, 2], [5, 2]])}

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        whole = torch.ones(2, 2, dtype=torch.bool)
        found: torch.Tensor = summarizer(
            batch["source"], real, batch["target"], whole, batch["labels"], picked(whole), 0.0
        )
        return found

    for part, value in given.items():
        assert loss(given) != loss({**given, part: value % 11 + 1}), part


@pytest.mark.parametrize("places", [(name, "softmax") for name in ("softmax", "dnas", "hnas", "recency", "x3")]
                         + [("softmax", name) for name in ("dnas", "hnas", "x1", "gelu")])  # fmt: skip
def test_no_score_depends_on_a_later_token_or_on_padding(places: tuple[str, str]) -> None:
    summarizer = model(own=places[0], cross=places[1], norm="deescalated")
    source, real = texts(3)
    target = torch.randint(3, 12, (3, 6))
    whole = torch.ones_like(target, dtype=torch.bool)
    before = summarizer.decode(target, whole, summarizer.encode(source, real), real)
    for time in range(5):
        later = target.clone()
        later[:, time + 1 :] = torch.randint(3, 12, (3, 5 - time))
        after = summarizer.decode(later, whole, summarizer.encode(source, real), real)
        torch.testing.assert_close(before[:, : time + 1], after[:, : time + 1], rtol=0, atol=1e-12)
    wider = F.pad(source, (0, 3), value=7), F.pad(real, (0, 3))
    padded = torch.cat([target, torch.full((3, 2), 5)], dim=1)
    seen = summarizer.decode(padded, torch.arange(8).expand(3, -1) < 6, summarizer.encode(*wider), wider[1])
    torch.testing.assert_close(seen[:, :6], before, rtol=0, atol=1e-12)


def test_the_text_is_read() -> None:
    """Early libraries left the attention to the text out of models that start from BERT."""
    summarizer = model()
    source, real = texts(4)
    target = torch.randint(3, 12, (4, 5))
    whole = torch.ones_like(target, dtype=torch.bool)
    summarizer(source, real, target, whole, target, picked(whole), 0.1).backward()
    for layer in summarizer.decoder.layers:
        for part in ("query", "key", "value", "output"):
            assert getattr(layer.cross, part).weight.grad.any()
    turned = summarizer.decode(target, whole, summarizer.encode(source.flip(0), real.flip(0)), real.flip(0))
    assert not torch.allclose(turned, summarizer.decode(target, whole, summarizer.encode(source, real), real))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_in_parts_is_the_whole_with_its_gradients(
    smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqarena.common.model.cross_entropy.CHUNK", 4)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((11, 5), (7, 5), (7,))]
    labels = torch.randint(7, (11,))
    found = chunked_cross_entropy(*inputs, labels, smoothing)
    expected = F.cross_entropy(F.linear(*inputs), labels, reduction="sum", label_smoothing=smoothing)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    ours = torch.autograd.grad(3 * found, inputs)
    theirs = torch.autograd.grad(3 * expected, inputs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_scores_of_all_positions_are_never_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqarena.common.model.cross_entropy.CHUNK", 8)
    largest: list[int] = []
    linear = F.linear

    def seen(*inputs: torch.Tensor) -> torch.Tensor:
        found = linear(*inputs)
        largest.append(len(found))
        return found

    monkeypatch.setattr("seqarena.common.model.cross_entropy.F.linear", seen)
    hidden, table = torch.randn(50, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    chunked_cross_entropy(hidden, table, torch.zeros(9), torch.zeros(50, dtype=torch.long)).backward()
    assert max(largest) == 8
    assert len(largest) == 7


def test_the_loss_is_a_mean_over_what_is_said_and_parts_of_a_batch_add_up() -> None:
    summarizer = model()
    source, real = texts(4)
    target = torch.randint(3, 12, (4, 5))
    target_real = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    labels = torch.randint(3, 12, (4, 5))

    def loss(rows: slice) -> torch.Tensor:
        parts = (source[rows], real[rows], target[rows], target_real[rows], labels[rows])
        found: torch.Tensor = summarizer(*parts, picked(target_real[rows]), 0.1)
        return found

    stream = summarizer.decode(target, target_real, summarizer.encode(source, real), real)
    scores = summarizer.masked(stream[target_real], summarizer.bert.embeddings.table)
    expected = F.cross_entropy(scores, labels[target_real], label_smoothing=0.1)
    torch.testing.assert_close(loss(slice(None)), expected)
    torch.testing.assert_close((loss(slice(0, 1)) * 5 + loss(slice(1, 4)) * 6) / 11, expected)


def test_where_no_gradient_is_wanted_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, table, bias = (torch.randn(*shape, requires_grad=True) for shape in ((6, 4), (5, 4), (5,)))
    monkeypatch.setattr(
        "seqarena.common.model.cross_entropy.torch.zeros_like", lambda *_, **__: pytest.fail("a gradient was made")
    )
    with torch.no_grad():
        chunked_cross_entropy(hidden, table, bias, torch.zeros(6, dtype=torch.long))


def checkpoint(folder: Path, dim: int = 16) -> Path:
    """A pretrained BERT as a run of ours leaves one."""
    torch.manual_seed(5)
    tokenizer = word_tokenizer(["austria", "close", "schools", "the"])
    config = BertConfig(vocabulary=len(tokenizer), max_length=80, layers=2, dim=dim, heads=2, ffn_dim=24)
    bert = BertForPretraining(config)
    save(folder, bert, Pretraining(settings="a test", text="0" * 64, seed=0))
    tokenizer.save(folder)
    return folder


@pytest.mark.parametrize("corner", [(), ("encoder",), ("decoder",), ("encoder", "decoder")])
def test_four_corners_of_initialisation(tmp_path: Path, corner: tuple[str, ...]) -> None:
    source = checkpoint(tmp_path / "bert")
    fields = [word for part in corner for word in (f"--model.{part}-init", str(source))]
    described_run = run(*fields)
    config = described_run.model
    assert (config.dim, config.layers) == ((16, 2) if corner else (128, 2))
    assert config.pretraining == (f"{' and '.join(corner)}: a test, text 000000000000" if corner else "")
    torch.manual_seed(0)
    fresh = Summarizer(config).state_dict()
    torch.manual_seed(0)
    summarizer = Summarizer(config)
    if corner:
        notes = _start(summarizer, str(source))
        assert [note.split()[0] for note in notes] == list(corner)
    state = summarizer.state_dict()
    kept = {name for name, tensor in state.items() if torch.equal(tensor, fresh[name])}
    matrices = {name for name, tensor in state.items() if tensor.ndim > 1}
    encoder = {name for name in matrices if name.startswith("bert.")}
    crossed = {name for name in matrices if ".cross." in name}
    decoder = matrices - encoder - crossed
    table = {"bert.embeddings.word.weight"}
    expected = set()
    expected |= encoder if "encoder" in corner else set()
    expected |= decoder | table if "decoder" in corner else set()
    assert matrices - kept == expected
    assert crossed <= kept


def test_a_checkpoint_gives_the_decoder_its_own_layers_and_head(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "bert")
    summarizer = Summarizer(run("--model.decoder_init", str(source)).model)
    _start(summarizer, str(source))
    torch.manual_seed(5)
    tokenizer = word_tokenizer(["austria", "close", "schools", "the"])
    config = BertConfig(vocabulary=len(tokenizer), max_length=80, layers=2, dim=16, heads=2, ffn_dim=24)
    bert = BertForPretraining(config)
    pairs = {"attention.query": "attention.query", "feed_forward.3": "feed_forward.3",
             "residual.attention_norm": "residual.attention_norm"}  # fmt: skip
    theirs, ours = bert.state_dict(), summarizer.state_dict()
    for layer in range(2):
        for name in pairs:
            key = f"layers.{layer}.{name}.weight"
            assert torch.equal(ours[f"decoder.{key}"], theirs[f"bert.encoder.{key}"])
    assert torch.equal(ours["masked.dense.weight"], theirs["masked.dense.weight"])
    assert torch.equal(ours["target.position.weight"], theirs["bert.embeddings.position.weight"])


@pytest.mark.parametrize("preset", ["paper", "rothe", "tuned", "low-resource"])
def test_the_vocabulary_is_the_checkpoints_whatever_the_preset_names(tmp_path: Path, preset: str) -> None:
    """Another vocabulary's numbers would be fed into its embeddings, and nothing would look wrong."""
    source = str(checkpoint(tmp_path / "bert"))
    fields = ["--model.encoder-init", source, "--data.source-length", "80", "--data.target-length", "32"]
    named = PACKAGE.presets["gigaword"][preset].run.data  # type: ignore[attr-defined]
    assert named.tokenizer == "google-bert/bert-base-uncased"
    began = build_run(PACKAGE, "gigaword", preset, None, None, 0, fields, "x")
    assert began.data.tokenizer is None  # type: ignore[attr-defined]
    typed = build_run(PACKAGE, "gigaword", preset, None, None, 0, [*fields, "--data.tokenizer", "own.txt"], "x")
    assert typed.data.tokenizer == "own.txt"  # type: ignore[attr-defined]


def test_hnas_starts_as_the_softmax_that_was_trained(tmp_path: Path) -> None:
    source = str(checkpoint(tmp_path / "bert"))
    both = ("--model.encoder-init", source, "--model.decoder-init", source)
    started = run(*both, "--model.decoder-attention", "hnas", "--model.cross-attention", "hnas", attention="hnas").model
    assert (started.attention.u, started.decoder_attention.u, started.cross_attention.u) == (0.0, 0.0, 0.5)  # type: ignore[attr-defined]
    encoder = run(*both[:2], "--model.decoder-attention", "hnas", attention="hnas").model
    assert (encoder.attention.u, encoder.decoder_attention.u) == (0.0, 0.5)  # type: ignore[attr-defined]
    decoder = run(*both[2:], attention="hnas").model
    assert decoder.pretrained_otherwise == ()
    assert run(*both[2:], "--model.decoder-attention", "dnas").model.pretrained_otherwise == (
        ("pretrained with", "softmax"),
    )
    assert decoder.attention.u == 0.5  # type: ignore[attr-defined]
    typed = run(*both, "--model.decoder-attention", "hnas", "--model.decoder-attention.u", "0.25").model
    assert typed.decoder_attention.u == 0.25  # type: ignore[attr-defined]


def test_a_field_of_a_variant_may_come_before_the_choice_of_that_variant() -> None:
    model = run("--model.cross-attention.u", "0.3", "--model.cross-attention", "hnas").model
    assert model.cross_attention.u == 0.3  # type: ignore[attr-defined]


def test_what_no_model_can_be_is_refused(tmp_path: Path) -> None:
    source = str(checkpoint(tmp_path / "bert"))
    other = str(checkpoint(tmp_path / "other", dim=32))
    with pytest.raises(WrongUseError, match=r"model.dim: expected 16 as in the checkpoint .*, found 64"):
        run("--model.encoder-init", source, "--model.dim", "64")
    with pytest.raises(WrongUseError, match=r"expected one checkpoint for both"):
        run("--model.encoder-init", source, "--model.decoder-init", other)
    with pytest.raises(WrongUseError, match=r"decoder_layers 3: the checkpoint .* has 2 layers"):
        run("--model.decoder-init", source, "--model.decoder-layers", "3")
    with pytest.raises(WrongUseError, match=r"'recency' is not defined for order 'ordered_queries'"):
        run("--model.cross-attention", "recency")
    with pytest.raises(WrongUseError, match=r"unknown attention 'sofmax'; nearest: softmax"):
        run("--model.decoder-attention", "sofmax")
    with pytest.raises(WrongUseError, match=r"unknown field --decoder-attention; nearest: --model.decoder-attention"):
        run("--decoder-attention", "hnas")
    with pytest.raises(WrongUseError, match=r"expected the name of one attention variant"):
        run("--model.decoder-attention")
    with pytest.raises(WrongUseError, match=r"leaky"):
        replace(run(), model=replace(run().model, norm=replace(NORMS["deescalated"], leaky=True))).check()  # type: ignore[type-var]
    wide = Summarizer(Model(vocabulary=9, layers=2, dim=32, heads=2, ffn_dim=24, max_length=80, encoder_init=source))
    with pytest.raises(BadDataError, match=r"expected \(9, 32\)"):
        _start(wide, source)


def test_a_row_in_a_table_says_where_which_attention_is() -> None:
    preset = PACKAGE.presets["gigaword"]["quick"]
    changed = run("--model.decoder-attention", "dnas", "--model.cross-attention", "x3", attention="hnas")
    assert row_name(row_of(changed, preset)) == "hnas, decoder dnas, cross x3"
    assert changed_from(preset, changed) == {}
    assert settings(type(changed), to_json(changed)) == settings(type(preset.run), to_json(preset.run))
    assert ATTENTIONS["hnas"] == changed.model.attention
