"""The variants as attention implementations of the transformers library: ``register()``, then ``attn_implementation``.

Models of that library look up their attention function by the name in their config. ``register`` adds the variants and
their mask functions. For a name without a mask function the library passes no mask, and padding would be attended to.
"""

from seqarena.common.errors import WrongUseError

try:
    import transformers as _  # noqa: F401
except ImportError as error:
    raise WrongUseError("the transformers library is not installed: pip install 'seqarena[transformers]'") from error

from seqarena.common.attention.transformers.attached import attach, clamp, detach, load, optimizer_of, save
from seqarena.common.attention.transformers.interface import register

__all__ = ["attach", "clamp", "detach", "load", "optimizer_of", "register", "save"]
