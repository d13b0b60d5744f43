"""Which derivatives our operators cannot give: then attention is computed by its formula, in plain operations."""

import torch
from torch.autograd import forward_ad


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # guarded by the compiler itself
def needs_formula() -> bool:
    """Returns whether forward-mode differentiation or a transform of ``torch.func`` is under way.

    Operators of ``torch.library`` have a gradient for ``backward`` alone: forward-mode derivatives through them are 0
    without a word, and ``torch.func.grad`` and ``vmap`` fail or take one example at a time.
    """
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
