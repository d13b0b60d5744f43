"""Named runs: typed values, each with its source, expected score and cost."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.runs.run import Preset
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim, Schedule
from seqarena.summarization.data import Data
from seqarena.summarization.decoding import Decoding
from seqarena.summarization.model import Model
from seqarena.summarization.run import Run

BASE = Model(vocabulary=30_522, layers=12, dim=768, heads=12, ffn_dim=3_072)
"""Encoder and decoder of BERT-base size, randomly initialised; --model.encoder_init, .decoder_init set a checkpoint."""
GIGAWORD = Data(path="gigaword", tokenizer="google-bert/bert-base-uncased")
TRAINED = 3_803_957
COST = "hours on one GPU (1.2e17 operations per epoch); not measured here"
OPEN = (
    "not stated in P2, chosen here: steps, batch size, warm-up (none), label smoothing 0.1, beam 5 with gnmt 0.6 and "
    "at most 32 tokens, unknown words allowed, which decoder attentions are hnas (none), pretraining"
)


def _paper(
    name: str, *, steps: int, batch: int, optim: Mapping[str, Any], source: str, expected: str, departs: str = "",
    data: Data = GIGAWORD, decoding: Decoding | None = None, cost: str = COST, pool: int = 200,
    comparable: bool = True, chosen_by: str | None = None,
) -> Preset[Run]:  # fmt: skip
    settings = {"name": "adamw", "weight_decay": 0.0, "bounded_lr_multiplier": 100.0, **optim}
    return Preset(
        run=Run(
            task="gigaword", preset=name, data=data, model=BASE, decoding=decoding or Decoding(),
            optim=Optim(**settings),
            train=Train(steps=steps, batch_size=batch, length_pool=pool, eval_every=max(steps // 20, 1)),
        ),
        source=source, departures=departs, expected=expected, cost=cost, comparable=comparable, chosen_by=chosen_by,
    )  # fmt: skip


PAPERS = [
    _paper(
        "paper", steps=10 * TRAINED // 128, batch=128, optim={"name": "adam", "lr": 2e-5},
        source="P2: 12 + 12 layers of BERT-base, Adam at 2e-5, 128 and 64 tokens", departs=OPEN,
        expected="P2: softmax 38.2, hnas 38.5 ROUGE-1 from random initialisation; 38.9 and 39.1 from BERT",
    ),
    _paper(
        "rothe", steps=500_000, batch=128, data=replace(GIGAWORD, target_length=32),
        optim={"name": "adam", "lr": 2.5e-4, "schedule": Schedule(shape="rsqrt", warmup=40_000)},
        decoding=Decoding(beam=4),
        source="Rothe et al. 2020: 500,000 steps of 128, rate 0.05 / sqrt(step) after 40,000 steps of warm-up, beam 4",
        departs="rate, steps and beam are from memory, not checked against the paper; label smoothing 0.1",
        expected="18.7 ROUGE-2 from random initialisation, 19.7 from BERT",
    ),
    _paper(
        "tuned", steps=10 * TRAINED // 256, batch=256, chosen_by="data.path",
        optim={"lr": 1e-4, "weight_decay": 0.01, "betas": (0.9, 0.98), "clip": 1.0,
               "schedule": Schedule(shape="linear", warmup=10 * TRAINED // 2_560)},
        source="common to later recipes: smoothing and dropout 0.1, decay 0.01, 10 epochs, a tenth of warm-up",
        expected="models of this size: 37.5 to 39.2 ROUGE-1, 18.3 to 20.2 ROUGE-2",
    ),
    _paper(
        "low-resource", steps=20 * 10_000 // 64, batch=64, pool=100, comparable=False,
        data=replace(GIGAWORD, train_pairs=10_000),
        optim={"lr": 1e-4, "weight_decay": 0.01, "betas": (0.9, 0.98), "clip": 1.0,
               "schedule": Schedule(shape="linear", warmup=312)},
        source="10,000 training pairs, as in a table of UniLM and ERNIE-GEN; 20 epochs of batches of 64",
        expected="published: Transformer 11.0 ROUGE-1 from random initialisation; UniLM 34.2, ERNIE-GEN base 33.8",
        cost="minutes on one GPU; not measured here",
    ),
]  # fmt: skip
SMALL = Model(
    vocabulary=640, max_length=80, layers=2, dim=128, heads=4, ffn_dim=256, norm=PreNorm(), dropout=0.0,
    attention_dropout=0.0, initial_std=0.05,
)  # fmt: skip
QUICK = Preset(
    run=Run(
        task="wire", preset="quick", data=Data(source_length=80, target_length=24), model=SMALL,
        decoding=Decoding(max_length=24),
        optim=Optim(
            lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01, clip=1.0, bounded_lr_multiplier=10.0,
            schedule=Schedule(shape="linear", warmup=60),
        ),
        train=Train(steps=600, batch_size=64, length_pool=50, eval_every=200),
    ),
    source="ours: a small pre-norm encoder and decoder, randomly initialised, on generated pairs",
    expected="softmax 86 ROUGE-1 (3 seeds, sd 7); nearest training text 54, first 8 words 30, constant headline 26",
    cost="two minutes on one CPU core with softmax",
    comparable=False,
    data="generated news sentences and their headlines (summarization/data/wire.py)",
)  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Preset[Run]]] = MappingProxyType(
    {
        "gigaword": MappingProxyType(
            {
                each.run.preset: each
                for each in (
                    replace(QUICK, run=replace(QUICK.run, task="gigaword"), data_name="generated sentences"),
                    *PAPERS,
                )
            }
        ),
        "wire": MappingProxyType({"quick": QUICK}),
    }
)
"""Task -> name of the preset -> preset."""
