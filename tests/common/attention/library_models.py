"""Tiny random models of the transformers library, with an attention of ours or of theirs."""

from typing import Any

import torch

from seqarena.common.training.runtime import seed_torch

TINY = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32,
        "max_position_embeddings": 40, "initializer_range": 0.5}  # fmt: skip
LOCAL = {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}  # fmt: skip
BIDIRECTIONAL = ("softmax", "dnas", "hnas", "x1", "x3", "relu", "exp")


def made(kind: str, name: str, **changes: Any) -> Any:
    """Returns a tiny random model of the library with an attention, in float64 and evaluation."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach, register  # noqa: PLC0415

    register()
    settings = {**TINY, **(LOCAL if kind == "ModernBert" else {}), **changes}
    config = getattr(transformers, f"{kind}Config")(**settings, attn_implementation=name)
    seed_torch(0)
    model = getattr(transformers, f"{kind}Model")(config).double().eval()
    return attach(model).double() if name == "hnas" else model


def tokens(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(1))


def hidden(model: Any, ids: torch.Tensor, **named: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids, **named).last_hidden_state
    return found


def lengths(*counts: int, total: int = 9) -> torch.Tensor:
    return (torch.arange(total) < torch.tensor(counts)[:, None]).long()
