"""The presets of every task: typed runs, each with its source, expected score and cost."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.runs.run import Preset
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import LINEAR_DEPARTURE, Optim, Schedule
from seqarena.qa.data import Data
from seqarena.qa.data.mnli import Mnli
from seqarena.qa.data.squad import Squad
from seqarena.qa.model import Model
from seqarena.qa.run import Run

BASE = Model(init="google-bert/bert-base-uncased", vocabulary=30_522, layers=12, dim=768, heads=12, ffn_dim=3_072)
"""BERT-base. Another checkpoint replaces the sizes."""
CASED = replace(BASE, init="google-bert/bert-base-cased", vocabulary=28_996)
SMALL = Model(
    vocabulary=112, max_length=40, layers=2, dim=128, heads=2, ffn_dim=128, norm=PreNorm(), dropout=0.0,
    attention_dropout=0.0, initial_std=0.1,
)  # fmt: skip
SQUAD = {"squad1": Squad(hub="rajpurkar/squad"), "squad2": Squad(hub="rajpurkar/squad_v2", version="2.0")}
TRAINED = {"squad1": 87_599, "squad2": 130_319, "mnli": 392_702}
"""Number of official training examples. A hundredth of them is used for validation here."""
THEIRS = "validation on a hundredth of the training examples (theirs: all are trained on), "
PADDING = "no answers in padding, "
CORRECTED = "Adam with bias correction (theirs: without; --optim.name bert_adam)"
GOOGLE = f"{CORRECTED}, {LINEAR_DEPARTURE}"
COST = "hours on one GPU; not measured here"


def _optim(steps: int, lr: float, **changes: Any) -> Optim:
    """Returns the optimiser of BERT's finetuning: warm-up over a tenth of the steps, then linear decay."""
    settings = {
        "lr": lr, "eps": 1e-6, "weight_decay": 0.01, "clip": 1.0, "bounded_lr_multiplier": 100.0,
        "schedule": Schedule(shape="linear", warmup=steps // 10),
    }  # fmt: skip
    return Optim(**{**settings, **changes})


def _finetuning(
    name: str, task: str, data: Data, *, lr: float, batch: int, source: str, expected: str, departs: str,
    epochs: int | None = None, steps: int | None = None, model: Model = BASE, optim: Mapping[str, Any] | None = None,
    chosen_by: str | None = None,
) -> Preset[Run]:  # fmt: skip
    """Returns a preset of ``steps`` steps, or of ``epochs`` epochs."""
    count = steps or TRAINED[task] * (epochs or 1) // batch
    return Preset(
        run=Run(
            task=task, preset=name, data=data, model=model, optim=_optim(count, lr, **(optim or {})),
            train=Train(steps=count, batch_size=batch, length_pool=50, eval_every=max(count // 4, 1), select="last"),
        ),
        source=source, departures=departs, expected=expected, cost=COST, comparable=True, chosen_by=chosen_by,
    )  # fmt: skip


def _squad(task: str) -> list[Preset[Run]]:
    data, two = SQUAD[task], task == "squad2"
    return [
        _finetuning(
            "bert", task, data, lr=3e-5, batch=12, epochs=2, chosen_by="model.init",
            source="Devlin et al. 2019 (google-research/bert, run_squad.py and README): 384 tokens, steps of 128",
            expected="75 to 78 F1 from bert-base-uncased" if two else "88.4 F1, 81.3 EM from bert-base-uncased",
            departs=f"{THEIRS}{PADDING}{GOOGLE}, answers are substrings of the text (theirs: joined word pieces)",
        ),
        _finetuning(
            "albert", task, replace(data, length=512 if two else 384), batch=48, lr=3e-5 if two else 5e-5,
            steps=8_144 if two else 3_649, model=replace(BASE, head="conditioned" if two else "span"),
            source="Lan et al. 2020 (google-research/albert, run_squad, appendix): what P2's table most likely used",
            expected=f"P2, from its own checkpoint: softmax {80.3 if two else 90.5}, hnas {80.5 if two else 90.9} F1",
            departs=f"{THEIRS}{PADDING}{GOOGLE}; 5 starts with 5 ends each; P2's checkpoint is not available",
        ),
        _finetuning(
            "spanbert", task, replace(data, length=512), lr=2e-5, batch=32, epochs=4, optim={"eps": 1e-8},
            source="Joshi et al. 2020 (facebookresearch/SpanBERT, README): 512 tokens",
            expected="76.5 F1 from bert-base, at the best threshold" if two else "no figure of bert-base known",
            departs=f"{THEIRS}{PADDING}{CORRECTED}; the last checkpoint, threshold 0 (theirs: the best on dev)",
        ),
    ]  # fmt: skip


def _quick(task: str, data: Data, steps: int, lr: float, expected: str, **changes: Any) -> Preset[Run]:
    model = replace(SMALL, **changes)
    return Preset(
        run=Run(
            task=task, preset="quick", data=data, model=model,
            optim=_optim(steps, lr, betas=(0.9, 0.98), bounded_lr_multiplier=10.0),
            train=Train(steps=steps, batch_size=64, length_pool=8, eval_every=max(steps // 3, 1)),
        ),
        source="ours: a small BERT, pre-norm, from nothing, on generated text",
        expected=expected,
        cost="half a minute to six minutes on one CPU core with softmax, by task",
        comparable=False,
        data_name="generated sentences" if isinstance(data, Mnli) else "a generated world",
        data=(
            "pairs of generated sentences with proved labels (qa/data/entailment.py)" if isinstance(data, Mnli)
            else "a generated small world (qa/data/world.py)"
        ),
    )  # fmt: skip


WORLD = Squad(length=40, question_length=12, window_step=20, held_out=0.05)
QUICK = {
    "squad1": _quick(
        "squad1", WORLD, 2_500, 1e-3, "99 to 100 F1; first sentence 17, nearest question 25, right kind of answer 51"
    ),
    "squad2": _quick(
        "squad2", replace(WORLD, version="2.0"), 2_500, 1e-3,
        "64 to 100 F1, by the seed; no answer 33, right kind of answer 34, nearest question 24",
    ),
    "mnli": _quick(
        "mnli", Mnli(length=24, held_out=0.05), 1_500, 2e-3,
        "softmax 93 % (3 seeds, sd 3); nearest training pair 57, words of both sentences 44, chance 33",
        layers=3, dim=96, heads=4, ffn_dim=192,
    ),
}  # fmt: skip
GLUE = Mnli(hub="nyu-mll/glue:mnli")
INFERENCE = [
    _finetuning(
        "bert", "mnli", GLUE, lr=2e-5, batch=32, epochs=3, chosen_by="model.init",
        source="Devlin et al. 2019 (google-research/bert, run_classifier.py): 128 tokens",
        expected="84.4 % matched from bert-base-uncased", departs=f"{THEIRS}{GOOGLE}",
    ),
    _finetuning(
        "run-glue", "mnli", GLUE, lr=2e-5, batch=32, epochs=3, model=CASED,
        optim={"eps": 1e-8, "weight_decay": 0.0, "schedule": Schedule(shape="linear")},
        source="transformers, examples/pytorch/text-classification/run_glue.py",
        departs=f"{THEIRS}pairs that are too long are cut as in Google's code (theirs: by longest_first)",
        expected="83.9 % matched, 84.1 % mismatched from bert-base-cased",
    ),
    _finetuning(
        "albert", "mnli", replace(GLUE, length=512), lr=3e-5, batch=128, steps=10_000,
        optim={"schedule": Schedule(shape="linear", warmup=1_000)},
        source="Lan et al. 2020 (google-research/albert, run_glue.sh): what P2's table most likely used",
        expected="P2: softmax 84.3, hnas 84.7 % from its own checkpoint", departs=f"{THEIRS}{GOOGLE}",
    ),
]  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Preset[Run]]] = MappingProxyType(
    {
        task: MappingProxyType({each.run.preset: each for each in (QUICK[task], *presets)})
        for task, presets in (("squad1", _squad("squad1")), ("squad2", _squad("squad2")), ("mnli", INFERENCE))
    }
)
"""Task -> preset name -> preset."""
