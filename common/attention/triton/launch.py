"""Tile sizes of the kernels, and their launch."""

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

Role = Literal[
    "forward", "columns", "keys", "keys_and_masses", "queries", "forward_heavy", "keys_heavy", "queries_heavy",
    "prefix_rows", "prefix_keys",
]  # fmt: skip
"""Task of a kernel: output, column logsumexps, gradients of keys and values (and of logsumexps), or of queries. heavy:
of doubly-normalised attention with dropout, of hybrid attention, and of elementwise variants with a bias, which need
more registers. prefix: any kernel of prefix-normalised attention."""
HEAVY: dict[Role, Role] = {"forward": "forward_heavy", "keys": "keys_heavy", "queries": "queries_heavy"}
"""Role -> role with more registers."""
PREFIX_ROLES = ("prefix_rows", "prefix_keys")
"""Roles with tiles in ``PREFIX_TILES``; the others have theirs in ``TABLE``."""
ROLES = tuple(each for each in get_args(Role) if each not in PREFIX_ROLES)
BY_ROWS = ("forward", "queries", "forward_heavy", "queries_heavy", "prefix_rows")
"""Roles whose programs process a block of rows each; programs of other roles process a block of keys."""


class Tiles(NamedTuple):
    """Tile sizes and launch parameters of a kernel."""

    own: int
    """Number of rows, or of keys, of a program; see ``BY_ROWS``."""
    others: int
    """Number of keys, or of rows, that a program processes per iteration."""
    warps: int
    stages: int

    def sizes(self, role: Role) -> dict[str, int]:
        """Returns the kernel's arguments ROWS and KEYS."""
        rows, keys = self[:2] if role in BY_ROWS else self[1::-1]
        return {"ROWS": rows, "KEYS": keys}


LARGE_SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory per block on data-centre GPUs since Hopper; other GPUs since 2020 have 99 KiB."""
WIDTHS = (64, 128)
TABLE: dict[tuple[int, bool], dict[Role, tuple[Tiles, Tiles]]] = {
    (2, True): {
        "forward": (Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3)),
        "columns": (Tiles(128, 64, 4, 3), Tiles(128, 64, 4, 3)),
        "keys": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3)),
        "keys_and_masses": (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 3)),
        "queries": (Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3)),
        "forward_heavy": (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 2)),
        "keys_heavy": (Tiles(128, 32, 8, 2), Tiles(64, 32, 8, 2)),
        "queries_heavy": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3)),
    },
    (2, False): {
        "forward": (Tiles(128, 64, 4, 2), Tiles(128, 32, 4, 2)),
        "columns": (Tiles(128, 64, 4, 2), Tiles(128, 32, 4, 2)),
        "keys": (Tiles(64, 32, 4, 2), Tiles(64, 64, 8, 2)),
        "keys_and_masses": (Tiles(64, 32, 4, 2), Tiles(64, 64, 8, 2)),
        "queries": (Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2)),
        "forward_heavy": (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 2)),
        "keys_heavy": (Tiles(128, 32, 8, 2), Tiles(64, 32, 8, 2)),
        "queries_heavy": (Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2)),
    },
    (4, True): dict.fromkeys(ROLES, (Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2)))
    | {
        "forward_heavy": (Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)),
        "keys_heavy": (Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2)),
        "queries_heavy": (Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)),
    },
    (4, False): dict.fromkeys(ROLES, (Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2)))
    | {
        "forward": (Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)),
        "queries_heavy": (Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 1)),
    },
}
"""(Bytes per element, whether the GPU has large shared memory) -> role -> tiles of heads up to each of ``WIDTHS``.
Chosen from the compiled kernels (``seqarena benchmark kernels``): they fit into shared memory, spill few registers, and
have few instructions beside the products. Their speed was not measured, for want of a GPU."""
VALID_SIZES = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (1, 2, 4, 8, 16), range(1, 9))
"""Valid values of each field of ``Tiles``."""
PREFIX_TILES: dict[int, tuple[Tiles, Tiles]] = {
    2: (Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2)),
    4: (Tiles(32, 32, 4, 2), Tiles(16, 32, 4, 2)),
}
"""Bytes per element -> rows, keys, warps and stages of prefix-normalised attention, for heads up to each of ``WIDTHS``.
All its kernels have the same, because one reads what another stored for each block of rows. They fit into 99 KiB of
shared memory; larger ones spill hundreds of registers."""
OVERRIDES: dict[str, Tiles] = {}
"""Tiles by name that override all others; set while ``seqarena benchmark tiles`` measures them."""


def heavy_roles(heavy: bool) -> tuple[Role, Role, Role]:
    """Returns the roles of forward, keys and queries of doubly-normalised attention."""
    return (HEAVY["forward"], HEAVY["keys"], HEAVY["queries"]) if heavy else ("forward", "keys_and_masses", "queries")


def tile_width(width: int) -> int:
    """Returns the width of a tile: the next power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def tiles_of(role: Role, element_size: int, width: int, *, large_shared_memory: bool) -> Tiles:
    """Returns the tiles of the table, given bytes per element and the larger of both head widths."""
    if role in PREFIX_ROLES:
        narrow, wide = PREFIX_TILES[element_size]
        tiles = wide if width > WIDTHS[0] else narrow  # the width may be symbolic
        return tiles if role in BY_ROWS else tiles._replace(own=tiles.others, others=tiles.own)
    return TABLE[element_size, large_shared_memory][role][width > WIDTHS[0]]


def name_of(
    kernel: Any, role: Role, dtype: torch.dtype, width: int,
    *, causal: bool = False, drops: bool = False, mixed: bool = False,
) -> str:  # fmt: skip
    """Returns the name of a kernel's tiles in a file. Causal order, dropout and mixtures have tiles of their own."""
    name = f"{kernel.fn.__name__} {str(dtype).removeprefix('torch.')} {tile_width(width)}"
    kinds = {"heavy": role.endswith("_heavy"), "causal": causal, "dropout": drops, "mixed": mixed}
    return " ".join([name, *(kind for kind, applies in kinds.items() if applies)])


@functools.cache
def read_tiles(path: Path, card: str) -> dict[str, Tiles]:
    """Reads the tiles of a GPU model from a file, by name. The file may have tiles of several models.

    Raises:
        WrongUseError: no such file, or a file of another kind.
    """
    try:
        found = {name: Tiles(*numbers) for name, numbers in read_strict_json(path).get(card, {}).items()}
        for name, tiles in found.items():
            if not all(type(each) is int and each in known for each, known in zip(tiles, VALID_SIZES, strict=True)):
                raise ValueError(f"{name}: invalid tiles {list(tiles)}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WrongUseError(
            f"{TILES}={path}: expected a file written by `seqarena benchmark tiles` ({error}); unset {TILES} to use "
            "the default tiles"
        ) from error
    if not found:
        warnings.warn(f"{TILES}={path} has no tiles for {card}: using the default tiles", stacklevel=2)
    return found


@functools.cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Returns whether a block has as much shared memory as on Hopper."""
    if device.type != "cuda":
        return False
    return (
        int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))
        >= LARGE_SHARED_MEMORY
    )


def choose_tiles(
    kernel: Any, role: Role, query: Tensor, width: int,
    *, causal: bool = False, drops: bool = False, mixed: bool = False,
) -> Tiles:  # fmt: skip
    """Returns the tiles of a kernel for tensors like ``query``; ``width`` is the larger of both head widths.

    Neither ``OVERRIDES`` nor a file has tiles of prefix-normalised attention, whose kernels need the same.
    """
    if role in PREFIX_ROLES:
        return tiles_of(role, query.element_size(), width, large_shared_memory=False)
    name = name_of(kernel, role, query.dtype, width, causal=causal, drops=drops, mixed=mixed)
    file = os.environ.get(TILES)
    if name in OVERRIDES:
        return OVERRIDES[name]
    found = read_tiles(Path(file), device_name(query.device)).get(name) if file else None
    return found or tiles_of(
        role, query.element_size(), width, large_shared_memory=has_large_shared_memory(query.device)
    )


def run(kernel: Any, role: Role, query: Tensor, value: Tensor, tensors: Sequence[Tensor], **settings: Any) -> None:
    """Launches a kernel with one program per block of rows or keys of each head.

    Args:
        kernel: The kernel. Lengths, widths, tile sizes and ``settings`` are passed if it has arguments of these names.
        role: Task of the kernel.
        query: B H N D; its dtype and the widths determine the tiles.
        value: B H M E.
        tensors: Positional arguments of the kernel.
        settings: Further keyword arguments.
    """
    (batch, heads, rows, width), (keys, value_width) = query.shape, value.shape[2:]
    settings |= {"heads": heads, "rows": rows, "keys": keys, "width": width, "value_width": value_width}
    settings |= {"scale": width**-0.5, "WIDTH": tile_width(width), "VALUE_WIDTH": tile_width(value_width)}
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        kinds = {name: settings.get(name.upper(), False) for name in ("causal", "drops", "mixed")}
        tiles = choose_tiles(kernel, role, query, max(width, value_width), **kinds)
        blocks = triton.cdiv(rows if role in BY_ROWS else keys, tiles.own)
        settings |= tiles.sizes(role)
        kernel[(blocks * batch * heads,)](
            *tensors, **{name: each for name, each in settings.items() if name in kernel.arg_names},
            num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
        )  # fmt: skip
