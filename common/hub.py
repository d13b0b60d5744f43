"""Data sets of the hub, by their id or from a local folder in the hub's layout."""

from typing import Any

from common.errors import BadDataError


def hub_rows(
    source: str, revision: str | None, split: str, hint: str, *, config: str | None = None, streamed: bool = False
) -> Any:
    """Returns the rows of a split; ``streamed``: one after the other, as they arrive, nothing kept.

    Raises:
        BadDataError: it cannot be had; ``hint`` says where else to find the data.
    """
    import datasets  # noqa: PLC0415  # takes a second, and most tasks never need it

    try:
        return datasets.load_dataset(source, config, revision=revision, split=split, streaming=streamed)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise BadDataError(f"{source}, split {split}, cannot be read ({reason}); {hint}") from error
