"""Named runs: typed values, each with its source, expected score and cost."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.runs.run import Preset
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import LINEAR_DEPARTURE, Optim, Schedule
from seqarena.pretraining.cost import estimate
from seqarena.pretraining.data import MaskedText
from seqarena.pretraining.data.documents import BOOKS
from seqarena.pretraining.masking import Masking
from seqarena.pretraining.model import Model
from seqarena.pretraining.run import Run

BASE = Model(vocabulary=30_522, layers=12, dim=768, heads=12, ffn_dim=3_072)
"""BERT-base."""
WIKIPEDIA = "wikimedia/wikipedia:20231101.en"


def _preset(
    run: Run, source: str, expected: str, departures: str = "", cost: str | None = None, data: str | None = None,
    data_name: str = "", chosen_by: str | None = None,
) -> Preset[Run]:  # fmt: skip
    return Preset(
        run=run, source=source, departures=departures, expected=expected, cost=cost or estimate(run), comparable=False,
        data=data, data_name=data_name, chosen_by=chosen_by,
    )  # fmt: skip


QUICK = _preset(
    Run(
        task="mlm",
        preset="quick",
        data=MaskedText(length=64),
        model=Model(vocabulary=4_000, max_length=64, layers=2, dim=128, heads=4, ffn_dim=512, norm=PreNorm(),
                    dropout=0.0, attention_dropout=0.0, initial_std=0.1),
        optim=Optim(lr=4e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, clip=1.0, bounded_lr_multiplier=5.0,
                    schedule=Schedule(shape="linear", warmup=60)),
        train=Train(steps=1_200, batch_size=32, eval_every=400, length_pool=8),
    ),
    "ours: a small pre-norm BERT on the bundled King James Bible, n-gram masking",
    "softmax 19 %, dnas, hnas 20 % (3 seeds, sd 2 to 3); most frequent token 7 %, after its neighbour 17 %",
    cost="three minutes on one CPU core with softmax",
    data_name="the King James Bible",
    data="the King James Bible, bundled, in the public domain (common/data/corpus); chapters 90 / 5 / 5 %",
)  # fmt: skip
BERT_BASE = _preset(
    Run(
        task="mlm",
        preset="bert-base",
        data=MaskedText(
            hub=WIKIPEDIA, tokenizer="google-bert/bert-base-uncased", building="next", length=128, last_length=512,
            masking=Masking(law="single", unit="piece", source="everything"),
        ),
        model=BASE,
        optim=Optim(name="bert_adam", lr=1e-4, eps=1e-6, weight_decay=0.01, clip=1.0,
                    schedule=Schedule(shape="linear", warmup=10_000)),
        train=Train(steps=1_000_000, batch_size=256, micro_batch_size=64, eval_every=10_000, select="last",
                    length_pool=8),
    ),
    "Devlin et al. 2019 (google-research/bert, create_pretraining_data.py and optimization.py)",
    "SQuAD 1.1 88.5 F1 after finetuning (published)",
    "Wikipedia only (published: with BookCorpus, as albert-style has here); masks redrawn in every epoch "
    f"(published: ten masked copies of the data); {LINEAR_DEPARTURE}",
)  # fmt: skip
ALBERT_STYLE = _preset(
    Run(
        task="mlm",
        preset="albert-style",
        data=MaskedText(hub=f"{WIKIPEDIA},{BOOKS[0]}", kind="sentencepiece", building="order", length=512),
        model=replace(BASE, vocabulary=30_000),
        optim=Optim(name="lamb", lr=0.00176, eps=1e-6, weight_decay=0.01, clip=1.0, bounded_lr_multiplier=5.0,
                    schedule=Schedule(shape="linear", warmup=3_125)),
        train=Train(steps=125_000, batch_size=4_096, micro_batch_size=64, eval_every=5_000, select="last",
                    length_pool=8),
    ),
    "inferred: the setting P2's table most likely used, the pipeline of ALBERT's paper (google-research/albert, "
    "README) for BERT-base",
    "softmax 90.5 F1 on SQuAD 1.1 and 84.3 on MNLI after finetuning, in P2; hnas 0.4 more",
    "documents of 16 rows of BookCorpus, which does not say where a book ends; without three flaws of the published "
    "code (spans that cross [SEP], at most 20 targets at length 512, special tokens among the random ones); a "
    f"vocabulary that keeps accents; {LINEAR_DEPARTURE}",
)  # fmt: skip
CRAMMING = _preset(
    Run(
        task="mlm",
        preset="cramming",
        data=MaskedText(
            hub=WIKIPEDIA, kind="wordpiece", vocabulary=32_768, building="blocks", length=128,
            masking=Masking(law="single", unit="piece", share=0.25),
        ),
        model=replace(BASE, vocabulary=32_768, layers=16, norm=PreNorm(), dropout=0.0, attention_dropout=0.0,
                      projection_bias=False),
        optim=Optim(lr=1e-3, betas=(0.9, 0.98), eps=1e-12, weight_decay=0.01, clip=0.5, bounded_lr_multiplier=5.0,
                    schedule=Schedule(shape="one_cycle", warmup=6_750)),
        train=Train(steps=9_000, batch_size=8_192, micro_batch_size=256, eval_every=500, select="last",
                    length_pool=1),
    ),
    "Geiping and Goldstein 2023 (JonasGeiping/cramming): one GPU, one day",
    "MNLI 84 after finetuning (published)",
    "Wikipedia (published: a subset of the Pile), GELU (GEGLU), learned positions (scaled sinusoids), biases in the "
    "feed-forward (none), learning rate starting at 4 % of its peak (25 %), a fixed number of steps without batch ramp "
    "(by wall-clock time)",
)  # fmt: skip
FURTHER = _preset(
    Run(
        task="mlm",
        preset="further",
        data=MaskedText(
            building="next", length=128, masking=Masking(law="single", unit="piece", source="everything")
        ),
        model=replace(BASE, init="google-bert/bert-base-uncased"),
        optim=Optim(name="bert_adam", lr=2e-5, eps=1e-6, weight_decay=0.01, clip=1.0, bounded_lr_multiplier=100.0,
                    schedule=Schedule(shape="linear", warmup=1_000)),
        train=Train(steps=10_000, batch_size=32, eval_every=1_000, select="last", length_pool=8),
    ),
    "Devlin et al. 2019 (google-research/bert, README, pre-training tips): additional steps from a checkpoint",
    "no published figure: it depends on the text",
    "10,000 steps with warm-up over a tenth (their demonstration: 20 steps, warm-up over 10; they recommend 10,000 or "
    "more); masks redrawn in every epoch (theirs: five masked copies of the data); "
    f"{LINEAR_DEPARTURE}",
    data_name="text of your own",
    data="text of your own (--data.path, --data.hub); without one the bundled King James Bible",
    chosen_by="model.init",
)  # fmt: skip

PRESETS: Mapping[str, Mapping[str, Preset[Run]]] = MappingProxyType(
    {"mlm": MappingProxyType({each.run.preset: each for each in (QUICK, FURTHER, BERT_BASE, ALBERT_STYLE, CRAMMING)})}
)
"""Task -> name of the preset -> preset."""
