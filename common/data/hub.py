"""Data sets of the hub, by id or from a local folder in the hub's layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarena.common.data.prepared import origin
from seqarena.common.errors import BadDataError


def hub_rows(
    source: str, revision: str | None, split: str, hint: str, *, config: str | None = None, streamed: bool = False
) -> Any:
    """Returns the rows of a split. ``streamed``: one after the other as they arrive, without storing them.

    Raises:
        BadDataError: not available; ``hint`` names another source of the data.
    """
    import datasets  # noqa: PLC0415  # takes a second, and most tasks never need it

    cache = None
    if Path(source).exists():  # the library's own cache does not notice changed files that a README.md names
        cache = str(Path(datasets.config.HF_DATASETS_CACHE) / "seqarena" / origin(Path(source)))
    try:
        return datasets.load_dataset(
            source, config, revision=revision, split=split, streaming=streamed, cache_dir=cache
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise BadDataError(f"{source}, split {split}, cannot be read ({reason}); {hint}") from error


def hub_label(names: str) -> str:
    """Returns a name for the text of data sets ID or ID:CONFIG, joined with commas, as a part of a folder's name.

    Different names have different labels: no id of the hub contains ``--`` or ``=``. For a local folder in the hub's
    layout, the label depends on the present state of its files.
    """
    labels = []
    for name in names.split(","):
        source, _, config = name.partition(":")
        found = origin(Path(source)) if Path(source).exists() else source.replace("/", "--")
        labels.append(f"{found}={config}" if config else found)
    return "+".join(labels)


def hub_folder(source: str, names: Sequence[str], revision: str | None = None) -> Path:
    """Returns the local folder of that name, or one with the files ``names`` downloaded from the hub.

    Raises:
        BadDataError: neither a folder nor available from the hub.
    """
    if Path(source).exists():
        return Path(source)
    import huggingface_hub  # noqa: PLC0415  # only for what is not here

    try:
        return Path(huggingface_hub.snapshot_download(source, revision=revision, allow_patterns=list(names)))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise BadDataError(
            f"{source}: no such folder, and not available from the hub ({reason}); "
            "name a local folder in the hub's layout"
        ) from error
