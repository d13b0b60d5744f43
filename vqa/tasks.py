"""What is measured: the record of each task about pictures."""

from types import MappingProxyType

from common.tasks import Task

SCENES = Task(
    package="vqa",
    name="scenes",
    title="a question about a generated scene that three detectors each saw in part",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    beside=("material_missed", "material_seen"),
    chance=0.12,  # one of the twelve answers of quick and toy, and the one that the other people give
    splits="scenes of one generator, drawn apart; a question of each kind about every scene",
    source="generated (common/counter.py seeds every draw)",
    revision="generator 1",
    licence="generated data: none needed",
    checksums=MappingProxyType(
        {
            "quick": "29a11666ee2c78a741869b87eead83fbe93ab5704941c9570d22ccb5091e0578",
            "toy": "fd96750986486e62445be8da24c3a1f32148c424e634d8a0b2999f25242baddc",
            "toy-hard": "0992e93c4e3555a0ad55a6d41d67f4f76c27b3ac036d6af04ad21cefaa46da5a",
            "toy-aligned": "5aa3aed350f0de59f3ed083ea3bb589cae892d0c76ccd45079452f615143fd32",
        }
    ),
)

TASKS = MappingProxyType({task.name: task for task in (SCENES,)})
