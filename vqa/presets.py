"""The runs that have a name: typed values, each with its source, the score expected and its cost."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from common.optim import Optim, Schedule
from common.run import Preset
from common.training import Train
from vqa.data.scenes import Scenes
from vqa.fusion import Fusion
from vqa.model import Model
from vqa.run import Run

MINI = Model(
    fusion=Fusion(alike=2.0), place_frequencies=3, word_dim=32, question_dim=64, question_attention_dim=64,
    joint_dim=64, answer_dim=64,
)  # fmt: skip
"""Pythia with widths of 64; queries and keys begin alike, else no variant learns to bind places in a few minutes."""
RECIPE = Optim(name="adamax", lr=0.01, clip=0.25, bounded_lr_multiplier=1.0, schedule=Schedule(warmup=500))
"""Pythia's optimiser, rate and clipping; the warm-up is shorter, and the rate does not fall. u of hnas moves at the
same rate: Adamax takes steps as long as its rate, so that at a hundred times 0.01 it would jump from end to end."""


def toy(preset: str, data: Scenes, steps: int, expected: str, cost: str) -> Preset[Run]:
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
    )  # fmt: skip


TOY = Scenes()
HARD = replace(
    TOY, objects=8, colours=12, boxes=24, recall=0.6, kinds=("material", "shape", "there", "side", "count")
)  # fmt: skip
SCENES = (
    toy("quick", replace(TOY, held_out=1_200), 3_000,
        "per cent: softmax 78.3, dnas 82.6, hnas 81.7; three seeds", "a minute on one core"),
    toy("toy", TOY, 6_000,
        "per cent: softmax 80.0, dnas 85.4, hnas 84.5; three seeds", "two minutes on one core"),
    toy("toy-hard", HARD, 8_000,
        "per cent: softmax 60.5, dnas 61.3, one seed; too few steps to learn to bind", "four minutes on one core"),
    toy("toy-aligned", replace(TOY, aligned=True), 6_000,
        "per cent: softmax 83.1, dnas 83.2, side by side (kind channels) 83.5; one seed", "two minutes on one core"),
)  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Preset[Run]]] = MappingProxyType(
    {"scenes": MappingProxyType({preset.run.preset: preset for preset in SCENES})}
)
"""Task -> name of the preset -> preset."""
