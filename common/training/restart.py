"""Files of a run's ``checkpoint`` folder: two checkpoints, and the weights that they refer to."""

from pathlib import Path

from seqarena.common.errors import BadDataError

LAST, BEFORE = "last.pt", "before.pt"
"""The newest checkpoint, and the one before it."""


def chosen_name(step: int) -> str:
    """Returns the file name of a step's chosen weights, without their checksum."""
    return f"chosen-{step:08d}.safetensors"


def chosen_weights(folder: Path, step: int) -> Path:
    """Returns the file of a step's chosen weights, in a run's ``checkpoint`` folder.

    Raises:
        BadDataError: no such file, or two.
    """
    found = sorted(folder.glob(f"chosen-{step:08d}-*.safetensors"))
    if len(found) != 1:
        raise BadDataError(
            f"{folder / chosen_name(step)}: the chosen weights are {'duplicated' if found else 'missing'}"
        )
    return found[0]


def delete_restart_state(folder: Path, chosen_step: int) -> None:
    """Deletes the files that only a restart needs. The chosen weights stay."""
    for name in (LAST, BEFORE):
        (folder / name).unlink(missing_ok=True)
    delete_other_weights(folder, chosen_step)


def delete_other_weights(folder: Path, *steps: int) -> None:
    """Deletes the chosen weights of all steps but these, and files that a kill left incomplete."""
    prefixes = tuple(f"chosen-{step:08d}" for step in steps)
    for weights in folder.glob("chosen-*.safetensors"):
        if not weights.name.startswith(prefixes):
            weights.unlink()
    for unfinished in folder.glob(".*.unfinished"):
        unfinished.unlink()
