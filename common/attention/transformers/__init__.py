"""The variants as attention implementations of the transformers library: ``register()``, then ``attn_implementation``.

A model of that library asks for its attention by the name in its config. ``register`` gives it ours, and masks to go
with them: without these the library passes none, and padding is silently read.
"""

from seqarena.common.errors import WrongUseError

try:
    import transformers as _  # noqa: F401
except ImportError as error:
    raise WrongUseError("this needs an extra: pip install 'seqarena[transformers]'") from error

from seqarena.common.attention.transformers.attached import attach, clamp, load, optimizer_of, save
from seqarena.common.attention.transformers.interface import register

__all__ = ["attach", "clamp", "load", "optimizer_of", "register", "save"]
