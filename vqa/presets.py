"""The presets of every task: typed runs, each with its source, expected score and cost."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from seqarena.common.runs.run import Preset
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim, Schedule, Stepped
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.data.vqa2 import Vqa2
from seqarena.vqa.fusion import Fusion
from seqarena.vqa.model import Model
from seqarena.vqa.run import Run

MINI = Model(
    fusion=Fusion(alike=2.0), place_frequencies=3, word_dim=32, question_dim=64, question_attention_dim=64,
    joint_dim=64, answer_dim=64,
)  # fmt: skip
"""Pythia with widths of 64. Queries and keys have equal initial projections, without which no variant learns to match
positions within a few minutes."""
RECIPE = Optim(name="adamax", lr=0.01, clip=0.25, bounded_lr_multiplier=1.0, schedule=Schedule(warmup=500))
"""Pythia's optimiser, learning rate and clipping, with a shorter warm-up and no decay. u of hnas has the same rate:
steps of Adamax are as large as its rate, so at a hundred times 0.01 u would jump between its bounds."""


def toy(preset: str, data: Scenes, steps: int, expected: str, cost: str, chance: float | None = None) -> Preset[Run]:
    """Returns a preset of the generated task."""
    return Preset(
        run=Run(
            task="scenes", preset=preset, data=data, model=MINI, optim=RECIPE,
            train=Train(steps=steps, batch_size=128, eval_every=steps // 10),
        ),
        source="ours, after P2's experiment on VQA v2",
        expected=expected,
        cost=cost,
        comparable=False,
        chance=chance,
    )  # fmt: skip


TOY = Scenes()
HARD = replace(
    TOY, objects=8, colours=12, boxes=24, recall=0.6, kinds=("material", "shape", "there", "side", "count")
)  # fmt: skip
SCENES = (
    toy("quick", replace(TOY, held_out=1_200), 3_000,
        "per cent: softmax 78.5, dnas 83.8, hnas 82.3; three seeds", "a minute on one core"),
    toy("toy", TOY, 6_000,
        "per cent: softmax 80.0, dnas 85.4, hnas 84.5; three seeds", "two minutes on one core"),
    toy("toy-hard", HARD, 24_000,
        "per cent: softmax 72.5, dnas 80.0; three seeds", "seven to ten minutes on one core", chance=0.085),
    toy("toy-aligned", replace(TOY, aligned=True), 6_000,
        "per cent: softmax 83.1, dnas 83.2, side by side (kind channels) 83.5; one seed", "two minutes on one core"),
)  # fmt: skip
BUTD = Model(
    backbone="butd", fusion=Fusion(), joint_dim=1_024, answer_dim=2_048, attention_dropout=0.2, answer_dropout=0.5
)  # fmt: skip
VQA2 = (
    Preset(
        run=Run(
            task="vqa2", preset="quick", data=Vqa2(boxes=8, width=18, answer_count=None), model=MINI, optim=RECIPE,
            train=Train(steps=2_500, batch_size=128, eval_every=500),
        ),
        source="ours: the generated scenes, written in VQA v2's formats and read from these files",
        expected="per cent: softmax 77.6, dnas 82.6, hnas 82.7; three seeds",
        cost="a minute on one core, plus half a minute to write and read the files",
        comparable=False,
        data_name="generated scenes",
        data="generated scenes in the official formats (vqa/data/written.py)",
        chance=0.12,
    ),
    Preset(
        run=Run(
            task="vqa2", preset="pythia-3x100", data=Vqa2(), model=Model(fusion=Fusion()),
            optim=replace(RECIPE, schedule=Stepped(warmup=1_000, milestones=(15_000, 18_000, 20_000, 21_000))),
            train=Train(steps=22_000, batch_size=512, eval_every=1_000),
        ),
        source="P2 5.1: fusion of three detectors' 100 boxes, then Pythia (its recipe: facebookresearch/mmf, v0.3)",
        departures="any three detectors (P2's are not public); training on train2014 only and test on val2014 (theirs: "
        "test-dev); we do not know on what P2 trained, which detector is primary, nor P2's heads, residual sum, "
        "LayerNorm, fc7 and initial u",
        expected="P2, test-dev, per cent: primary 68.3, boxes in a row 68.8, softmax 69.1, dnas 69.7; Pythia "
        "v0.3, trained on train2014 alone, 66.7",
        cost="11.3 million questions, 26 a second on 2 CPU cores; 151 GB of features on disk; on a GPU not measured",
        comparable=False,
        chosen_by="data.path",
    ),
    Preset(
        run=Run(
            task="vqa2", preset="butd-small", data=Vqa2(boxes=36), model=BUTD,
            optim=replace(RECIPE, lr=0.002, schedule=Schedule()),
            train=Train(steps=24_700, batch_size=512, eval_every=823),
        ),
        source="hengyuan-hu/bottom-up-attention-vqa: one detector's 36 boxes, 30 epochs; the fusion of three is ours",
        departures="the GRU's output at the last word is used; u's learning rate multiplier is 1",
        expected="63.6 on val2014 with its 36 boxes only (--model.fusion.kind primary)",
        cost="theirs: 40 to 50 minutes on one GPU for one detector; not measured here",
        comparable=False,
    ),
)  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Preset[Run]]] = MappingProxyType(
    {
        task: MappingProxyType({preset.run.preset: preset for preset in presets})
        for task, presets in (("scenes", SCENES), ("vqa2", VQA2))
    }
)
"""Task -> preset name -> preset."""
