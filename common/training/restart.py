"""The files of a run's ``checkpoint``: two checkpoints, and the weights that they name."""

from pathlib import Path

from seqarena.common.errors import BadDataError

LAST, BEFORE = "last.pt", "before.pt"
"""The newest checkpoint, and the one before it."""


def chosen_name(step: int) -> str:
    """Returns the file name of the weights of a step before their checksum is added to it."""
    return f"chosen-{step:08d}.safetensors"


def chosen_weights(folder: Path, step: int) -> Path:
    """Returns the file of the weights of a step, in a run's ``checkpoint``.

    Raises:
        BadDataError: there is none.
    """
    found = sorted(folder.glob(f"chosen-{step:08d}-*.safetensors"))
    if len(found) != 1:
        raise BadDataError(
            f"{folder / chosen_name(step)}: the chosen weights are {'there twice' if found else 'missing'}"
        )
    return found[0]


def forget_restart(folder: Path, chosen_step: int) -> None:
    """Deletes what only a restart needs; the chosen weights stay."""
    for name in (LAST, BEFORE):
        (folder / name).unlink(missing_ok=True)
    forget_others(folder, chosen_step)


def forget_others(folder: Path, *steps: int) -> None:
    """Deletes chosen weights but those of these steps, and what a kill left half written."""
    kept = tuple(f"chosen-{step:08d}" for step in steps)
    for weights in folder.glob("chosen-*.safetensors"):
        if not weights.name.startswith(kept):
            weights.unlink()
    for unfinished in folder.glob(".*.unfinished"):
        unfinished.unlink()
