"""Interface of a task package: its tasks, their presets, and the parts that it provides for a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from seqarena.common.data.batches import Batches
from seqarena.common.errors import BadDataError
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.roles import Role, role_at
from seqarena.common.runs.run import BaseRun, Preset
from seqarena.common.runs.sources import Sources, sources_of
from seqarena.common.runs.tasks import Task
from seqarena.common.training.processes import Accelerator
from seqarena.common.training.runtime import main_first, make_accelerator, seed_torch
from seqarena.common.training.step import Loss, Stepper

OUTPUTS = "outputs"
"""Folder of a run's directory with the model's outputs: predictions, headlines."""
VOCABULARY = Path("checkpoint", "vocabulary")
"""Folder of a finished run's directory with its vocabulary, to tokenise new texts."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of a model on one split."""

    metrics: Mapping[str, float]
    """Metrics, the task's main one first."""
    examples: list[float]
    """The main metric of each example, in the order of the data."""
    write_outputs: Callable[[Path], None] | None = None
    """Writes the model's answers into a folder; those of the test set into ``OUTPUTS`` in the run's directory."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """All parts that a task provides for a run once its data are loaded."""

    model: nn.Module
    loss: Loss
    batches: Batches
    validate: Callable[[nn.Module], Evaluation]
    test: Callable[[nn.Module], Evaluation]
    floors: Callable[[], Mapping[str, float]]
    data_checksum: str
    text_checksum: str | None = None
    """The checksum to compare with the task's record, if ``data_checksum`` also covers the vocabulary; none:
    ``data_checksum``."""
    write_checkpoint: Callable[[nn.Module, Path], None] | None = None
    """Writes the trained model or its vocabulary, in a form that other programs read, below ``checkpoint`` in the run's
    directory."""


Assemble = Callable[[Any, Path, Accelerator], Assembly]
"""Maps a run, the folder of prepared data and the accelerator to an ``Assembly``."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A task package."""

    name: str
    title: str
    tasks: Mapping[str, Task]
    presets: Mapping[str, Mapping[str, Preset[BaseRun]]]
    assemblies: Mapping[type[BaseRun], Assemble]
    """Class of a run -> the function that assembles its parts. A run's sources are those of its own function."""
    commands: Mapping[str, Callable[[Sequence[str]], int]] = field(default_factory=lambda: MappingProxyType({}))
    """Further commands: first word, in the position of a task -> function of the remaining arguments."""
    preparations: tuple[str, ...] = ()
    """Names of those ``commands`` that make data, for ``seqarena prepare``."""

    def task(self, run: BaseRun) -> Task:
        """Returns the task of a run."""
        return self.tasks[run.task]

    def assemble_of(self, run: BaseRun) -> Assemble:
        """Returns the function that assembles the parts of a run."""
        return self.assemblies[type(run)]

    def preset(self, run: BaseRun) -> Preset[BaseRun]:
        """Returns the preset that a run starts from."""
        return self.presets[run.task][run.preset]

    def sources(self, run: BaseRun) -> Sources:
        """Returns the sources of a run, with the task's rule for choosing a checkpoint as one of them."""
        task = self.task(run)
        chosen_by = f"{'highest' if task.higher_is_better else 'lowest'} {task.metric}"
        return {**sources_of(self.assemble_of(run), run), f"{self.name}/tasks.py: checkpoint of the": chosen_by}

    def assembly(self, run: BaseRun, folder: Path, accelerator: Accelerator) -> Assembly:
        """Returns the parts that the package provides for a run. Data are read or made, and stored below ``folder``.

        Raises:
            BadDataError: damaged data; or data of an unchanged preset whose checksum is not that of the task's
                record.
        """
        assembly = main_first(accelerator, lambda: self.assemble_of(run)(run, folder, accelerator))
        changed = changed_fields(self.preset(run).run, run)
        expected = self.task(run).checksums.get(run.preset)
        # A checkpoint brings its vocabulary, which ``data_checksum`` covers.
        other_tokens = assembly.text_checksum is None and any(role_at(run, path) is Role.WEIGHTS for path in changed)
        own_data = not other_tokens and not any(path.split(".")[0] == "data" for path in changed)
        found = assembly.text_checksum or assembly.data_checksum
        if own_data and expected not in (None, found):
            raise BadDataError(
                f"{run.task}: the data's sha256 is {found}, but preset {run.preset} expects {expected}; "
                f"delete its folder below {folder}/{self.name} and run again; if that does not help, please report it"
            )
        return assembly


def build(package: Package, run: BaseRun, folder: Path) -> tuple[Assembly, Stepper]:
    """Returns the run's assembly, and the stepper that trains it, for a measurement outside of a session."""
    accelerator = make_accelerator(run.train.precision)
    seed_torch(run.seed, 0)
    assembly = package.assembly(run, folder, accelerator)
    return assembly, run.train.stepper(assembly.model, assembly.loss, run.optim, run.seed, accelerator)
