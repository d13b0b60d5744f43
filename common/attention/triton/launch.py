"""How large the tiles of a kernel are, and how it is started."""

import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
import triton
from torch import Tensor

from seqarena.common.errors import WrongUseError
from seqarena.common.files import read_strict_json
from seqarena.common.training.runtime import TILES, device_name

Role = Literal["forward", "columns", "keys", "keys_and_masses", "queries"]
"""Task of a kernel: the output, sums of columns, gradients of keys and values (and of masses), or of queries."""
ROLES: tuple[Role, ...] = get_args(Role)
BY_ROWS = ("forward", "queries")
"""Roles whose programs have blocks of rows; the others have blocks of keys."""


class Tiles(NamedTuple):
    """How large the tiles of a kernel are, and how it is launched."""

    own: int
    """Rows of a program, or keys: see ``BY_ROWS``."""
    others: int
    """Keys, or rows, that it takes in a turn."""
    warps: int
    stages: int

    def sizes(self, role: Role) -> dict[str, int]:
        """Returns ROWS and KEYS of a kernel."""
        rows, keys = self[:2] if role in BY_ROWS else self[1::-1]
        return {"ROWS": rows, "KEYS": keys}


ROOMY = 227 * 1024
"""Bytes of shared memory of a block on the cards of data centres since Hopper; the others since 2020 have 99 KiB."""
WIDTHS = (64, 128)
TABLE: dict[tuple[int, bool], dict[Role, tuple[Tiles, Tiles]]] = {
    (2, True): {
        "forward": (Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3)),
        "columns": (Tiles(128, 64, 4, 3), Tiles(128, 64, 4, 3)),
        "keys": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3)),
        "keys_and_masses": (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 3)),
        "queries": (Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3)),
    },
    (2, False): {
        "forward": (Tiles(128, 64, 4, 2), Tiles(128, 32, 4, 2)),
        "columns": (Tiles(128, 64, 4, 2), Tiles(128, 32, 4, 2)),
        "keys": (Tiles(64, 32, 4, 2), Tiles(64, 64, 8, 2)),
        "keys_and_masses": (Tiles(64, 32, 4, 2), Tiles(64, 64, 8, 2)),
        "queries": (Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2)),
    },
    (4, True): dict.fromkeys(ROLES, (Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2))),
    (4, False): dict.fromkeys(ROLES, (Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2)))
    | {"forward": (Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2))},
}
"""Bytes of a number, and whether the card is roomy -> role -> tiles of heads up to each of ``WIDTHS``. Chosen by what
the compiler makes of the kernels (``seqarena benchmark kernels``): they fit, put few numbers outside their registers,
and have few instructions beside the products. How fast they are was not measured: no GPU was at hand."""
KNOWN = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (1, 2, 4, 8, 16), range(1, 9))
"""Choices for each number of a tiling."""
TRIED: dict[str, Tiles] = {}
"""Tiles that come before all others, by name: those that ``seqarena benchmark tiles`` measures."""


def room(width: int) -> int:
    """Returns the next power of two, 16 at least: what a tile holds of a head."""
    return max(16, 1 << (width - 1).bit_length())


def tiles_of(role: Role, element_size: int, width: int, *, roomy: bool) -> Tiles:
    """Returns the tiles of the table for numbers of ``element_size`` bytes and heads whose wider have ``width``."""
    return TABLE[element_size, roomy][role][width > WIDTHS[0]]


def name_of(kernel: Any, dtype: torch.dtype, width: int) -> str:
    """Returns under which name a file has the tiles of a kernel."""
    return f"{kernel.fn.__name__} {str(dtype).removeprefix('torch.')} {room(width)}"


@functools.cache
def read_tiles(path: Path, card: str) -> dict[str, Tiles]:
    """Returns the tiles that a file has for a card, by name; it may have those of several cards.

    Raises:
        WrongUseError: no such file, or another kind of file.
    """
    try:
        found = {name: Tiles(*numbers) for name, numbers in read_strict_json(path).get(card, {}).items()}
        for name, tiles in found.items():
            if not all(type(each) is int and each in known for each, known in zip(tiles, KNOWN, strict=True)):
                raise ValueError(f"{name}: no tiles are {list(tiles)}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WrongUseError(
            f"{TILES}={path}: expected a file of `seqarena benchmark tiles` ({error}); without {TILES} the table's are "
            "used"
        ) from error
    if not found:
        warnings.warn(f"{TILES}={path} has no tiles of {card}: those of the table are used", stacklevel=2)
    return found


@functools.cache
def is_roomy(device: torch.device) -> bool:
    """Returns whether a block has the shared memory of Hopper."""
    if device.type != "cuda":
        return False
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)) >= ROOMY


def chosen(kernel: Any, role: Role, query: Tensor, width: int) -> Tiles:
    """Returns the tiles of a kernel for tensors like ``query`` whose wider heads have ``width`` numbers."""
    name, file = name_of(kernel, query.dtype, width), os.environ.get(TILES)
    if name in TRIED:
        return TRIED[name]
    found = read_tiles(Path(file), device_name(query.device)).get(name) if file else None
    return found or tiles_of(role, query.element_size(), width, roomy=is_roomy(query.device))


def run(kernel: Any, role: Role, query: Tensor, value: Tensor, tensors: Sequence[Tensor], **settings: Any) -> None:
    """Runs a kernel, one program for each block of its rows or keys of each head.

    Args:
        kernel: Takes ``tensors``, and of lengths, widths, sizes of tiles and ``settings`` those it has names for.
        role: What it does.
        query: B H N D; its type and the widths decide about tiles.
        value: B H M E.
        tensors: In the kernel's order.
        settings: By the kernel's names.
    """
    (batch, heads, rows, width), (keys, value_width) = query.shape, value.shape[2:]
    settings |= {"heads": heads, "rows": rows, "keys": keys, "width": width, "value_width": value_width}
    settings |= {"scale": width**-0.5, "WIDTH": room(width), "VALUE_WIDTH": room(value_width)}
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        tiles = chosen(kernel, role, query, max(width, value_width))
        blocks = triton.cdiv(rows if role in BY_ROWS else keys, tiles.own)
        settings |= tiles.sizes(role)
        kernel[(blocks * batch * heads,)](
            *tensors, **{name: each for name, each in settings.items() if name in kernel.arg_names},
            num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
        )  # fmt: skip
