"""The presets of every task: typed runs, each with its source, expected score and cost."""

from collections.abc import Mapping
from types import MappingProxyType

from seqarena.common.runs.run import Preset
from seqarena.lra.presets.hour import HOUR
from seqarena.lra.presets.lra_jax import LRA_JAX
from seqarena.lra.presets.quick import QUICK
from seqarena.lra.presets.xiong2021 import XIONG2021
from seqarena.lra.run import Run
from seqarena.lra.tasks import SEQUENCE_TASKS

PRESETS: Mapping[str, Mapping[str, Preset[Run]]] = MappingProxyType(
    {
        task: MappingProxyType(
            {preset.run.preset: preset for preset in (*QUICK, *XIONG2021, *LRA_JAX, *HOUR) if preset.run.task == task}
        )
        for task in SEQUENCE_TASKS
    }
)
"""Task -> preset name -> preset."""
