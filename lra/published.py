"""Published accuracies of each task, in per cent: one row per model and source."""

from types import MappingProxyType
from typing import NamedTuple

from seqarena.common.runs.tasks import Published

TAY = "Tay et al. 2021 (Long Range Arena), Table 1, JAX, 1 run"
XIONG = "Xiong et al. 2021 (Nystromformer), PyTorch, 1 run"
CHEN = "Chen et al. 2021 (Skyformer), 3 runs"
MA = "Ma et al. 2023 (Mega), 5 runs"
VIA_MA = "as Ma et al. 2023 (Mega) print it"
SARATCHANDRAN = "Saratchandran et al. (polynomial activations, P1), Table 4"


class Row(NamedTuple):
    """Accuracies of one model in one source."""

    name: str
    source: str
    listops: float
    text: float
    retrieval: float
    image: float
    pathfinder: float
    pathx: float | None = None
    """None: not tried, or at chance level."""


ROWS = (
    Row("softmax", TAY, 36.37, 64.27, 57.46, 42.44, 71.40),
    Row("local attention", TAY, 15.82, 52.98, 53.39, 41.46, 66.63),
    Row("Sparse Transformer", TAY, 17.07, 63.58, 59.59, 44.24, 71.71),
    Row("Longformer", TAY, 35.63, 62.85, 56.89, 42.22, 69.71),
    Row("linformer", TAY, 35.70, 53.94, 52.27, 38.56, 76.34),
    Row("Reformer", TAY, 37.27, 56.10, 53.40, 38.07, 68.50),
    Row("Sparse Sinkhorn", TAY, 33.67, 61.20, 53.83, 41.23, 67.45),
    Row("Synthesizer", TAY, 36.99, 61.68, 54.67, 41.61, 69.45),
    Row("BigBird", TAY, 36.05, 64.02, 59.29, 40.83, 74.87),
    Row("linear", TAY, 16.13, 65.90, 53.09, 42.34, 75.30),
    Row("performer", TAY, 18.01, 65.40, 53.82, 42.77, 77.05),
    Row("softmax", XIONG, 37.10, 65.02, 79.35, 38.20, 74.16),
    Row("nystromformer", XIONG, 37.15, 65.52, 79.56, 41.58, 70.94),
    Row("Reformer", XIONG, 19.05, 64.88, 78.64, 43.29, 69.36),
    Row("linformer", XIONG, 37.25, 55.91, 79.37, 37.84, 67.60),
    Row("performer", XIONG, 18.80, 63.81, 78.62, 37.07, 69.87),
    Row("softmax", CHEN, 38.37, 61.95, 80.69, 40.57, 65.26),
    Row("Kernelized Attention", CHEN, 38.78, 60.22, 81.77, 41.29, 70.73),
    Row("Skyformer", CHEN, 38.69, 64.70, 82.06, 40.77, 70.73),
    Row("softmax", MA, 37.11, 65.21, 79.14, 42.94, 71.83),
    Row("Mega", MA, 63.14, 90.43, 91.25, 90.44, 96.01, 97.98),
    Row("Mega-chunk", MA, 58.76, 90.19, 90.97, 85.80, 94.41, 93.81),
    Row("Luna-256", VIA_MA, 37.98, 65.78, 79.56, 47.86, 78.55),
    Row("S4 v1", VIA_MA, 58.35, 76.02, 87.09, 87.26, 86.05, 88.10),
    Row("S4 v2", VIA_MA, 59.60, 86.82, 90.90, 88.65, 94.20, 96.35),
    Row("softmax", SARATCHANDRAN, 37.1, 63.8, 79.8, 39.9, 72.9),
    Row("x3-14", SARATCHANDRAN, 37.5, 63.3, 80.9, 37.2, 68.7),
    Row("x1-14", SARATCHANDRAN, 34.3, 62.9, 81.5, 39.0, 69.1),
)

PUBLISHED = MappingProxyType(
    {
        task: tuple(
            Published(name=row.name, value=value / 100, source=row.source)
            for row in ROWS
            if (value := getattr(row, task)) is not None
        )
        for task in ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    }
)
"""Task -> published figures, grouped by source."""
