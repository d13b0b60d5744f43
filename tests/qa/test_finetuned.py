"""A finetuned model is a checkpoint: its files, and (extras) the library's classes with the same logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.data.tokenization import Tokenizer, load_tokenizer, train_tokenizer, word_tokenizer
from seqarena.common.model.bert.checkpoint import load as load_bert
from seqarena.common.model.bert.families import FAMILIES
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.model.norms.pre import PreNorm
from seqarena.qa.data.mnli import Pair
from seqarena.qa.data.pairs import encode
from seqarena.qa.finetuned import FINETUNED, save_finetuned
from seqarena.qa.model import Model, PairClassifier, Reader
from tests.common.data.byte_level import write_byte_level
from tests.common.model.families import CONFIGS
from tests.qa.test_training import RUNS, TINY, measure

PAIRS = [("Who wrote it", "Ada wrote it"), ("Ada", "it, it, it was Byron who wrote"), ("Byron", "who")]
TEXTS = [text for pair in PAIRS for text in pair] * 20
CLASSES = {"squad1": "ForQuestionAnswering", "mnli": "ForSequenceClassification"}
BODIES = {"bert": "Bert", "albert": "Albert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
"""Family -> first part of the names of the library's classes."""


def vocabulary_of(family: str, folder: Path) -> Tokenizer:
    """Returns a vocabulary of the family's kind."""
    if family == "roberta":
        return load_tokenizer(write_byte_level(folder, TEXTS))
    if family == "albert":
        return train_tokenizer(TEXTS, "sentencepiece", 100)
    return word_tokenizer(["who", "wrote", "it", "ada", "byron", "was", ","])


def written(
    folder: Path, task: str, family: str = "bert", **changes: Any
) -> tuple[Reader | PairClassifier, dict[str, Any]]:
    """Returns a model in evaluation, and the config.json of the checkpoint that it was written to."""
    torch.manual_seed(0)
    tokenizer = vocabulary_of(family, folder / "vocabulary")
    sizes = vars(CONFIGS[family]) | {"vocabulary": len(tokenizer), "initial_std": 0.3}
    config = replace(Model(**sizes), **changes)
    model = Reader(config).eval() if task == "squad1" else PairClassifier(config, 3).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            parameter.add_(0.1 * torch.rand_like(parameter))
        if isinstance(config.attention, Hybrid):
            for name, parameter in model.named_parameters():
                if name.endswith("u.raw"):
                    parameter.clamp_(0.0, 1.0)
    save_finetuned(folder, model, FAMILIES[family], tokenizer)
    return model, json.loads((folder / "config.json").read_text())


def assert_same(model: Reader | PairClassifier, theirs: Any, folder: Path) -> None:
    """Compares tokens and logits on a padded batch of pairs: the library's own tokenizer and model, and ours."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    public = AutoTokenizer.from_pretrained(folder)
    given = public(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")
    encoded = encode(
        [Pair(premise=one, hypothesis=two, label=0) for one, two in PAIRS],
        load_tokenizer(folder),
        public.model_max_length,
    )
    batch = encoded.batch(np.arange(len(PAIRS)))
    assert torch.equal(batch.tokens, given["input_ids"])
    assert torch.equal(batch.real, given["attention_mask"].bool())
    assert not batch.real.all()
    if "token_type_ids" in given:
        assert torch.equal(batch.types, given["token_type_ids"])
    with torch.no_grad():
        found = theirs.eval()(**given)
        if isinstance(model, PairClassifier):
            differences = [model(batch.tokens, batch.types, batch.real) - found.logits]
        else:
            start, end, _ = model(batch.tokens, batch.types, batch.real, batch.real, torch.zeros(3, dtype=torch.long))
            differences = [(start - found.start_logits)[batch.real], (end - found.end_logits)[batch.real]]
    assert all(each.abs().max() <= 1e-5 for each in differences)


@pytest.mark.extras
@pytest.mark.parametrize(
    ("task", "family"),
    [("squad1", each) for each in BODIES] + [("mnli", each) for each in ("bert", "albert", "roberta")],
)
def test_the_library_opens_softmax_by_its_task(task: str, family: str, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    model, config = written(tmp_path, task, family)
    auto = getattr(transformers, f"AutoModel{CLASSES[task]}")
    theirs, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == f"{BODIES[family]}{CLASSES[task]}"
    assert not any(report.values())
    assert "opened_by" not in config
    if task == "mnli":
        assert theirs.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
        assert (theirs.config.num_labels, theirs.config.problem_type) == (3, "single_label_classification")
    assert_same(model, theirs, tmp_path)


@pytest.mark.extras
@pytest.mark.parametrize("attention", [ATTENTIONS["dnas"], ATTENTIONS["x3-14"], Hybrid(u=0.3), Hybrid(per_head=True)])
@pytest.mark.parametrize(
    ("task", "family"), [("squad1", "bert"), ("mnli", "bert"), ("squad1", "albert"), ("squad1", "distilbert")]
)
def test_the_plug_in_opens_other_variants(task: str, family: str, attention: Any, tmp_path: Path) -> None:
    """With their settings and their trained u; the library alone refuses them."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import load  # noqa: PLC0415

    model, config = written(tmp_path, task, family, attention=attention)
    name = f"{BODIES[family]}{CLASSES[task]}"
    assert config["opened_by"] == f"seqarena.common.attention.transformers.load(transformers.{name}, folder)"
    with pytest.raises(ValueError, match=f"seqarena-{family}"):
        getattr(transformers, f"AutoModel{CLASSES[task]}").from_pretrained(tmp_path)
    assert_same(model, load(getattr(transformers, name), tmp_path), tmp_path)


@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_a_classifier_that_the_library_has_otherwise_says_so(family: str, tmp_path: Path) -> None:
    _, config = written(tmp_path, "mnli", family)
    assert config["model_type"] == f"seqarena-{family}"
    assert f"the library's classifier for {family} is another one than seqarena's" in config["opened_by"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head": "conditioned"}, "the library has the conditioned head for XLNet only"),
        ({"norm": PreNorm()}, "the library's bert has post-norm, this one has the norm pre"),
        ({"projection_bias": False}, "the library's bert has no such attention projections"),
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
