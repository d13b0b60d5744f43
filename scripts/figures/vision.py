"""A small vision transformer on small grey pictures, one token per patch, for P1's trained figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from seqarena.common.attention import attention_name
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.data.batches import Ragged
from seqarena.common.model.diagnostics import diagnose
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.model.positions import AbsolutePositions
from seqarena.common.model.transformer import Encoder, EncoderConfig
from seqarena.common.training.log import with_progress
from seqarena.common.training.optim import Schedule, rate
from seqarena.common.training.runtime import seed_torch
from seqarena.lra.data.digits import Digits
from seqarena.lra.data.image import Image
from seqarena.scripts.figures.drawing import FigureOptions
from seqarena.scripts.figures.trainings import end_of

VERSION = 2
"""Raised whenever a trial would give another result, so that older cached results are not used."""
SIDE, CLASSES = 32, 10
TESTED, DIAGNOSED, DRAWN = 1_000, 16, 128
"""Number of test pictures that are scored, of those used for diagnostics, and of those whose weights are averaged in
the drawings of heads (P1, Figures 6 and 7)."""
PEAK, WARMUP, BATCH = 1e-3, 0.1, 32
"""Peak learning rate, fraction of the steps that are warm-up, batch size."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Grey pictures (count 32 32) of bytes from 0 to 255, and their classes."""

    train: Tensor
    train_classes: Tensor
    test: Tensor
    test_classes: Tensor
    checksum: str


def load(settings: FigureOptions) -> Pictures:
    """Returns CIFAR-10 in grey if its files are given, else drawn digits."""
    data = Digits(size=SIDE) if settings.cifar is None else Image(path=settings.cifar)
    splits, checksum = data.load(settings.data)
    (train, train_classes), (test, test_classes) = (_tensors(splits[name]) for name in ("train", "test"))
    return Pictures(
        train=train, train_classes=train_classes, checksum=checksum,
        test=test[:TESTED], test_classes=test_classes[:TESTED],
    )  # fmt: skip


def _tensors(split: Ragged) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(split.tokens.reshape(-1, SIDE, SIDE).copy())
    return pixels, torch.from_numpy(split.labels.astype("int64"))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Everything that a training depends on."""

    attention: AttentionConfig = field(default_factory=Softmax)
    """Attention variant."""
    patch: tuple[int, int] = (4, 4)
    """Rows and columns of a patch; the length is 1,024 pixels divided by their product."""
    seed: int
    steps: int
    layers: int
    dim: int
    looks: int
    """Number of evaluations."""
    data: str
    """Checksum of the pictures."""

    @property
    def length(self) -> int:
        """Number of patches in a picture."""
        return SIDE * SIDE // math.prod(self.patch)


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """Record of one training, which ends early if the loss is not finite."""

    losses: Sequence[float]
    """Loss of each step, in nats."""
    looked: Sequence[int]
    """Steps after which the model was evaluated."""
    accuracy: Sequence[float]
    """Accuracy on the test pictures, per evaluation."""
    norm: Sequence[Sequence[float]]
    """Frobenius norm of each layer's attention, per evaluation; means over heads and pictures."""
    jacobian: Sequence[Sequence[float]]
    """Frobenius norm of its derivative by the scores."""
    heads: Sequence[Sequence[Sequence[float]]]
    """Final weights of the first head of the first and last layer, means over 128 test pictures."""

    @property
    def end(self) -> float:
        """The mean loss of the last tenth of the steps; infinite if the loss was not finite."""
        return end_of(self.losses)


@dataclass(frozen=True, kw_only=True)
class PatchEncoderConfig(EncoderConfig):
    """An encoder of patches."""

    patches: int
    """Number of patches of a picture."""

    @property
    def longest(self) -> int:
        """Number of patches."""
        return self.patches


class VisionTransformer(nn.Module):
    """Pre-norm vision transformer with learned positions and mean pooling."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.patch = trial.patch
        self.embedding = nn.Linear(math.prod(trial.patch), trial.dim)
        self.positions = AbsolutePositions("learned", length=trial.length, dim=trial.dim, std=0.02)
        self.encoder = Encoder(
            PatchEncoderConfig(
                patches=trial.length, layers=trial.layers, dim=trial.dim, heads=4, ffn_dim=2 * trial.dim,
                attention=trial.attention, norm=PreNorm(), dropout=0.0, attention_dropout=0.0,
            )
        )  # fmt: skip
        self.head = nn.Linear(trial.dim, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        """Returns the logits of each class; B 10."""
        rows, columns = self.patch
        cut = pictures.view(-1, SIDE // rows, rows, SIDE // columns, columns)
        patches = cut.transpose(2, 3).reshape(len(pictures), -1, rows * columns)  # B N pixels
        tokens = self.positions(self.embedding(patches.float() / 127.5 - 1))
        logits: Tensor = self.head(self.encoder(tokens, Visibility()).mean(dim=1))
        return logits


def train(trial: Trial, pictures: Pictures) -> TrainingRecord:
    """Trains one model with AdamW; the same seed uses the same pictures under every variant."""
    seed_torch(trial.seed, 0)
    model = VisionTransformer(trial)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.05)
    schedule = Schedule(shape="cosine", warmup=round(WARMUP * trial.steps))
    order = torch.Generator().manual_seed(trial.seed)
    losses: list[float] = []
    looks: dict[int, tuple[float, list[float], list[float]]] = {}
    due = {round(trial.steps * (number + 1) / trial.looks) for number in range(trial.looks)} | {1}
    label = f"{attention_name(trial.attention)}, {trial.length} patches, seed {trial.seed}"
    for step in with_progress(range(trial.steps), label, trial.steps):
        rows = torch.randint(len(pictures.train), (BATCH,), generator=order)
        loss = nn.functional.cross_entropy(model(pictures.train[rows]), pictures.train_classes[rows])
        losses.append(loss.item())
        if not loss.isfinite():
            break
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = PEAK * rate(schedule, step, trial.steps)
        optimizer.step()
        if step + 1 in due:
            looks[step + 1] = _evaluate(model, pictures)
    accuracy, norm, jacobian = zip(*looks.values(), strict=True) if looks else ((), (), ())
    return TrainingRecord(
        losses=losses, looked=list(looks), accuracy=accuracy, norm=norm, jacobian=jacobian,
        heads=_heads(model, pictures.test[:DRAWN]),
    )  # fmt: skip


@torch.no_grad()
def _evaluate(model: VisionTransformer, pictures: Pictures) -> tuple[float, list[float], list[float]]:
    """Returns the accuracy, and each layer's norms of attention and of its derivative."""
    guessed = torch.cat([model(some).argmax(dim=1) for some in torch.split(pictures.test, 200)])
    inside = diagnose(model, lambda: model(pictures.test[:DIAGNOSED]))
    accuracy = float((guessed == pictures.test_classes).double().mean())
    norm, jacobian = (
        [math.nan if each is None else each for each in inside[name]]
        for name in ("attention_norm", "attention_jacobian_norm")
    )
    return accuracy, norm, jacobian


@torch.no_grad()
def _heads(model: VisionTransformer, pictures: Tensor) -> list[list[list[float]]]:
    """Returns the first head's weights in the first and last layer, means over pictures."""
    weights: list[Tensor] = []

    def record(kernel: Kernel, arguments: tuple[Any, ...], _: Tensor) -> None:
        weights.append(kernel.weights(arguments[0], arguments[1], Visibility())[:, 0].mean(dim=0))

    kernels = [part for part in model.modules() if isinstance(part, Kernel)]
    handles = [kernel.register_forward_hook(record) for kernel in (kernels[0], kernels[-1])]
    model(pictures)
    for handle in handles:
        handle.remove()
    return [each.tolist() for each in weights]
