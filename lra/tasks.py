"""What is measured: the record of each task of Long Range Arena."""

from types import MappingProxyType

from common.tasks import Published, Task

TAY = "Tay et al. 2021 (Long Range Arena), Table 1, JAX, 1 run"
XIONG = "Xiong et al. 2021 (Nystromformer), PyTorch, 1 run"
SKYFORMER = "Chen et al. 2021 (Skyformer), 3 runs"
MEGA = "Ma et al. 2023 (Mega), replication, 5 runs"
SARATCHANDRAN = "Saratchandran et al. (polynomial activations, P1), Table 4"

LISTOPS = Task(
    package="lra",
    name="listops",
    title="the value, 0 to 9, of a nested expression of MIN, MAX, MED and SM over digits",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.1,
    splits="distinct expressions of one generator, shuffled by the data's seed; 96,000 / 2,000 / 2,000",
    source="generated (common/counter.py seeds every draw), or basic_{train,val,test}.tsv of the official release",
    revision="generator 1",
    licence="generated data: none needed; the official generator is Apache-2.0",
    checksums=MappingProxyType(
        {
            "quick": "264cf2fd86eab98b10ed75f1672ee42fee690b444911fe45476957b2a77c0978",
            "xiong2021": "52024eb4b2761f9a6bb75abf80c5135e47f3bf29be7e9391c875811381cb4d9d",
            "lra-jax": "52024eb4b2761f9a6bb75abf80c5135e47f3bf29be7e9391c875811381cb4d9d",
        }
    ),
    published=(
        Published(name="softmax", value=0.3637, source=TAY),
        Published(name="softmax", value=0.3710, source=XIONG),
        Published(name="softmax", value=0.3837, source=SKYFORMER),
        Published(name="softmax", value=0.3711, source=MEGA),
        Published(name="softmax", value=0.371, source=SARATCHANDRAN),
        Published(name="x3-14", value=0.375, source=SARATCHANDRAN),
        Published(name="x1-14", value=0.343, source=SARATCHANDRAN),
    ),
)

TASKS = MappingProxyType({task.name: task for task in (LISTOPS,)})
