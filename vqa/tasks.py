"""The record of each visual question answering task."""

from types import MappingProxyType

from seqarena.common.runs.tasks import Published, Task

SCENES = Task(
    package="vqa",
    name="scenes",
    title="questions about generated scenes, each attribute of which is recognised by one of three detectors",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    secondary=("material_missed", "material_seen"),
    chance=0.12,  # of twelve answers, of which one is true and one is given by the remaining annotators
    splits="independently generated scenes, with one question of each kind per scene",
    source="generated (common/data/counter.py seeds every draw)",
    revision="generator 1",
    licence="generated data: none needed",
    checksums=MappingProxyType(
        {
            "quick": "8f7a162f470fd8ddf9b926ce64a9e10a755079fbac527df89b87912281033722",
            "toy": "6cb0b15ab8b67fa78afea771fa73e6df9f47e7318b7b7e0ae1b22001d11e5be4",
            "toy-hard": "acaeb87cfe5d4679da92fc259cb08805005464e8cee9c66086dbe9a0e8abf3a6",
            "toy-aligned": "91e31f78ab3a126cd62e4a40ec20164b03a514dc18f25b4246e862efcb608509",
        }
    ),
)

PAPER = "P2, Table 1, test-dev"
VQA2 = Task(
    package="vqa",
    name="vqa2",
    title="questions about pictures with regions of several detectors (VQA v2); official accuracy",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    secondary=("yes/no", "number", "other"),
    splits="test: val2014; validation: 5 % of train2014, by picture; P2 used test-dev, which has no public answers",
    source="visualqa.org's questions and annotations (--data.path), your own detectors' regions (--data.regions)",
    revision="VQA v2 of 26 April 2017, scored by the rules of March 2021",
    checksums=MappingProxyType({"quick": "6e2f5439fc3d05c8ef7e40b908fb9c191dd8ab5ee34a27c2a26eee6af1541670"}),
    licence="annotations CC BY 4.0, pictures COCO's; read from your copy, never shipped",
    published=(
        Published(name="softmax, primary", value=0.6833, source=PAPER),
        Published(name="softmax, boxes", value=0.6879, source=PAPER),
        Published(name="softmax", value=0.6914, source=PAPER),
        Published(name="dnas", value=0.6970, source=PAPER),
        Published(name="Pythia", value=0.6831, source="Pythia's authors, as P2's Table 1 has it, test-dev"),
    ),
)

TASKS = MappingProxyType({task.name: task for task in (SCENES, VQA2)})
