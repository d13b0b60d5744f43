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
    chance=0.12,  # one of twelve answers, and the one that the other people give
    splits="scenes of one generator, drawn apart; a question of each kind about every scene",
    source="generated (common/counter.py seeds every draw)",
    revision="generator 1",
    licence="generated data: none needed",
    checksums=MappingProxyType(
        {
            "quick": "51230db382aeb78eee86e173fc9e1dde32c650ff41cf9ded4b5464bd88a9196f",
            "toy": "e645da5f92b26c13eed56bf69a7e7582be64790de6f2c19e7b0ed6dd00779cf7",
            "toy-hard": "c485c06fd8c60b81a422b38263475887adeef578ab2de4672a6134fd6d52ab93",
            "toy-aligned": "1b50563421ae1d8644753d8cf77f56fe61b838c58c675b1004c335a8b99f0f68",
        }
    ),
)

TASKS = MappingProxyType({task.name: task for task in (SCENES,)})
