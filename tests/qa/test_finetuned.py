"""A finetuned model is a checkpoint: its files, and (extras) the library's classes with the same logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.data.tokenization import load_tokenizer, word_tokenizer
from seqarena.common.model.bert.checkpoint import load as load_bert
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.model.norms.pre import PreNorm
from seqarena.qa.finetuned import FINETUNED, save_finetuned
from seqarena.qa.model import Model, PairClassifier, Reader
from tests.qa.test_training import RUNS, TINY, measure

SMALL = Model(vocabulary=30, max_length=12, layers=2, dim=16, heads=2, ffn_dim=12, initial_std=0.3)
WORDS = word_tokenizer(["who", "wrote", "it", "ada", "byron"])
PAIRS = [("Who wrote it", "Ada"), ("Ada", "it it it Byron wrote"), ("Byron", "who")]
HEADS = {
    "squad1": ("BertForQuestionAnswering", Reader),
    "mnli": ("BertForSequenceClassification", lambda config: PairClassifier(config, 3)),
}


def written(folder: Path, task: str, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Returns a model in evaluation, and the config.json of the checkpoint that it was written to."""
    torch.manual_seed(0)
    model = HEADS[task][1](replace(SMALL, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            parameter.add_(0.1 * torch.rand_like(parameter))
    save_finetuned(folder, model, WORDS)
    return model, json.loads((folder / "config.json").read_text())


def logits(model: nn.Module, given: Any) -> list[torch.Tensor]:
    """The outputs of ours on the library's batch; those of real tokens where there is one for each token."""
    tokens, types, real = given["input_ids"], given["token_type_ids"], given["attention_mask"].bool()
    with torch.no_grad():
        if isinstance(model, PairClassifier):
            return [model(tokens, types, real)]
        start, end, _ = model(tokens, types, real, real, torch.zeros(len(real), dtype=torch.long))
    return [start[real], end[real]]


def assert_same(model: nn.Module, theirs: Any, folder: Path) -> None:
    """Compares logits on a padded batch of pairs, with the tokens and types of the library's own tokenizer."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    given = AutoTokenizer.from_pretrained(folder)(
        *map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt"
    )
    one, other = (WORDS.encode([text])[0].tolist() for text in PAIRS[1])
    row = [WORDS.id("[CLS]"), *one, WORDS.id("[SEP]"), *other, WORDS.id("[SEP]")]
    assert given["input_ids"][1].tolist() == row
    assert given["token_type_ids"][1].tolist() == [0] * (len(one) + 2) + [1] * (len(other) + 1)
    assert not given["attention_mask"].all()
    real = given["attention_mask"].bool()
    with torch.no_grad():
        found = theirs.eval()(**given)
    outputs = [found.logits] if "logits" in found else [found.start_logits[real], found.end_logits[real]]
    for mine, other in zip(logits(model, given), outputs, strict=True):
        assert (mine - other).abs().max() <= 1e-5


@pytest.mark.extras
@pytest.mark.parametrize("task", list(HEADS))
def test_the_library_opens_softmax_by_its_task(task: str, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    model, config = written(tmp_path, task)
    auto = {"squad1": "AutoModelForQuestionAnswering", "mnli": "AutoModelForSequenceClassification"}[task]
    theirs, report = getattr(transformers, auto).from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == HEADS[task][0]
    assert not any(report.values())
    assert "opened_by" not in config
    if task == "mnli":
        assert theirs.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
        assert (theirs.config.num_labels, theirs.config.problem_type) == (3, "single_label_classification")
    assert_same(model, theirs, tmp_path)


@pytest.mark.extras
@pytest.mark.parametrize("attention", [ATTENTIONS["dnas"], ATTENTIONS["x3-14"], Hybrid(u=0.3), Hybrid(per_head=True)])
@pytest.mark.parametrize("task", list(HEADS))
def test_the_plug_in_opens_other_variants(task: str, attention: Any, tmp_path: Path) -> None:
    """With their settings and their trained u; the library alone refuses them."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import load  # noqa: PLC0415

    model, config = written(tmp_path, task, attention=attention)
    assert config["opened_by"].endswith(f".load(transformers.{HEADS[task][0]}, folder)")
    with pytest.raises(ValueError, match="seqarena-bert"):
        transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert_same(model, load(getattr(transformers, HEADS[task][0]), tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head": "conditioned"}, "the library has no BERT with the conditioned head"),
        ({"norm": PreNorm()}, "the library's BERT has post-norm, this one has the norm pre"),
        ({"projection_bias": False}, "the library's BERT has attention projections with biases"),
    ],
)
def test_what_no_class_of_the_library_computes_says_so(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    _, config = written(tmp_path, "squad1", **changes)
    assert (config["model_type"], config["architectures"]) == ("seqarena-bert", [])
    assert config["opened_by"].startswith(f"seqarena alone: {reason}")
    assert not (tmp_path / "attention.json").exists()


@pytest.mark.parametrize("task", ["squad1", "mnli"])
def test_a_finished_run_leaves_its_chosen_weights_as_a_checkpoint(task: str, tmp_path: Path) -> None:
    run = RUNS[task]
    result = measure(replace(run, model=replace(TINY, norm=PostNorm(), attention=ATTENTIONS["hnas"])), tmp_path)
    assert result.status == "finished"
    folder = tmp_path / FINETUNED
    chosen, left = load_file(next((tmp_path / "checkpoint").glob("chosen-*"))), load_file(folder / "model.safetensors")
    heads = {"squad1": ("spans.both.weight", "qa_outputs.weight"), "mnli": ("classes.weight", "classifier.weight")}
    for mine, public in (heads[task], ("bert.embeddings.word.weight", "bert.embeddings.word_embeddings.weight")):
        assert torch.equal(chosen[mine], left[public])
    stored = load_file(folder / "attention.safetensors")
    assert torch.equal(
        stored["bert.encoder.layer.0.attention.self.attention_kernel.kernel.u.raw"],
        chosen["bert.encoder.layers.0.attention.kernel.u.raw"],
    )
    body, report = load_bert(str(folder))
    assert body.bert.config.attention == ATTENTIONS["hnas"]
    assert set(report.unused) == {heads[task][1], heads[task][1].replace("weight", "bias")}
    assert load_tokenizer(folder).numbers == load_tokenizer(tmp_path / "checkpoint" / "vocabulary").numbers
