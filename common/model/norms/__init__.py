"""Block normalisations: one file each, and the table of their names."""

from collections.abc import Mapping
from types import MappingProxyType

from seqarena.common.errors import look_up
from seqarena.common.model.norms.admin import Admin
from seqarena.common.model.norms.b2t import BottomToTop
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.model.norms.deepnorm import DeepNorm
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.norms.peri import PeriNorm
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.model.norms.rezero import ReZero
from seqarena.common.runs.external import is_reference, load_external, require_class
from seqarena.common.runs.named import name_in

__all__ = ["NORMS", "NormConfig", "find_norm", "norm_name"]

NORMS: Mapping[str, NormConfig] = MappingProxyType(
    {
        "post": PostNorm(),
        "pre": PreNorm(),
        "deescalated": Deescalated(),
        "rezero": ReZero(),
        "admin": Admin(),
        "b2t": BottomToTop(),
        "deepnorm": DeepNorm(),
        "peri": PeriNorm(),
    }
)


def find_norm(name: str) -> NormConfig:
    """Returns the norm of that name, or of a class outside this project: ``my_norm.py:MyNorm``.

    Raises:
        WrongUseError: no such norm. The message suggests the nearest name.
    """
    if is_reference(name):
        return load_external(name, NormConfig, "norm")  # type: ignore[type-abstract]
    require_class(name, "norm")
    return look_up(NORMS, name, "norm")


def norm_name(config: NormConfig) -> str:
    """Returns the norm's name in the table, with the fields that differ: ``deescalated[tau=0.5]``."""
    return name_in(NORMS, config)
