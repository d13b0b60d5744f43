"""A small model of each kind, and pairs by Gigaword's conventions that nobody wrote."""

from pathlib import Path

import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.model.norms import NORMS
from seqarena.summarization.model import Model, Summarizer

PAIRS = (
    ("the government of austria said monday it would close ## schools in <unk> .", "austria to close ## schools"),
    ("UNK", "fire in vienna -lrb- picture -rrb- by <unk> <unk>"),
    ("shares in oslo closed #.# percent higher on tuesday , dealers said .", "oslo shares close up #.# percent"),
    ("a bus crashed near dakar on friday , killing ### people .", "### killed in dakar bus crash"),
)


def model(
    vocabulary: int = 12, own: str = "softmax", cross: str = "softmax", norm: str = "pre", seed: int = 0
) -> Summarizer:
    """A model whose scores differ enough for beams to differ."""
    torch.manual_seed(seed)
    config = Model(
        vocabulary=vocabulary, max_length=24, layers=2, dim=16, heads=2, ffn_dim=16, norm=NORMS[norm],
        decoder_attention=ATTENTIONS[own], cross_attention=ATTENTIONS[cross], initial_std=0.5,
        dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    return Summarizer(config).double().eval()


def texts(count: int, vocabulary: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths, and which tokens are real."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 8, (count,), generator=generator)
    real = torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.randint(1, vocabulary, real.shape, generator=generator) * real, real


def write_sumdata(folder: Path, pairs: tuple[tuple[str, str], ...] = PAIRS) -> Path:
    """A folder as sent-summary's archive has it."""
    for source, target in (
        ("train/train.article.txt", "train/train.title.txt"),
        ("train/valid.article.filter.txt", "train/valid.title.filter.txt"),
        ("Giga/input.txt", "Giga/task1_ref0.txt"),
    ):
        for name, side in ((source, 0), (target, 1)):
            path = folder / "sumdata" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return folder
