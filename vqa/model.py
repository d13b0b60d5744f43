"""Question-guided attention over regions, then a classifier over answers; ``ViewFusion`` joins views into one first.

pythia: as the code of 2018 has it (v0.1 of facebookresearch/pythia, Jiang et al. 2018): two glimpses of an LSTM's
outputs, boxes weighed by the product of both, two branches to the answers. butd: the smaller one that it grew from
(hengyuan-hu/bottom-up-attention-vqa): a GRU's last output, one branch, dropout.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from seqarena.common.errors import WrongUseError
from seqarena.common.model.transformer import ModelConfig
from seqarena.common.shapes import (
    Asking,
    Centres,
    Joined,
    JoinedReal,
    Logits,
    Places,
    Regions,
    RegionsReal,
    Spelled,
    Tokens,
)
from seqarena.common.training.optim import ScaledLayer
from seqarena.vqa.data import Data, Layer, VqaData
from seqarena.vqa.fusion import Fusion, ViewFusion


@dataclass(frozen=True, kw_only=True)
class Model(ModelConfig):
    """Fusion and what answers; the attention variant is the fusion's."""

    fusion: Fusion = field(default_factory=Fusion)
    """How the views become one."""
    backbone: Literal["pythia", "butd"] = "pythia"
    """The head that predicts the answer."""
    place_frequencies: int = 0
    """Sines and cosines of a box's place, each way, put beside its numbers; 0: none, and no place, as Pythia."""
    place_scale: float = 2.0
    """Factor of a box's coordinates."""
    word_dim: int = 300
    """Width of a word's embedding."""
    question_dim: int = 1024
    """Width of the LSTM or GRU."""
    question_attention_dim: int = 512
    """Width inside the question's attention to itself (pythia)."""
    glimpses: int = 2
    """How often it looks at itself (pythia)."""
    joint_dim: int = 5000
    """Width in which boxes and question are multiplied."""
    answer_dim: int = 300
    """Width of the first branch to the answers (pythia; the second's is that of the product), or of the only one."""
    attention_dropout: float = 0.0
    """Probability of dropping an entry of the product that weighs a box."""
    answer_dropout: float = 0.0
    """Probability of dropping an entry inside the branches to the answers."""
    fc7: int = 0
    """Width of a layer that each view's boxes pass first, as their detector's last one; 0: none."""
    fc7_lr_multiplier: float = 0.1
    """Multiplies lr for that layer where it comes from the detector (data.fc7); a drawn one learns at the full rate."""

    @property
    def longest(self) -> int:
        """Questions are cut when they are read."""
        return 14

    @property
    def norm_label(self) -> str:
        """There are no blocks to normalise."""
        return "none"

    @property
    def depth_label(self) -> int:
        """One attention."""
        return 1

    def width(self, numbers: int) -> int:
        """Returns the numbers of a box that fusion reads, of those that a detector gives."""
        place = 2 + 4 * self.place_frequencies if self.place_frequencies else 0
        return (self.fc7 or numbers) + place

    def check_data(self, data: Data) -> None:
        """Raises a ``WrongUseError`` that names the field that does not work."""
        for name in ("word_dim", "question_dim", "question_attention_dim", "glimpses", "joint_dim", "answer_dim"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"model.{name}: expected at least 1, found {getattr(self, name)}")
        if self.place_frequencies < 0 or self.fc7 < 0:
            raise WrongUseError("expected model.place_frequencies and model.fc7 of at least 0")
        if not (0 <= self.attention_dropout < 1 and 0 <= self.answer_dropout < 1) or not self.fc7_lr_multiplier > 0:
            raise WrongUseError(
                "expected model.attention_dropout and model.answer_dropout from 0 to below 1, and "
                "model.fc7_lr_multiplier above 0"
            )
        asking = (self.glimpses, self.question_attention_dim)
        if self.backbone == "butd" and asking != (Model.glimpses, Model.question_attention_dim):
            raise WrongUseError("model.glimpses and model.question_attention_dim are pythia's; butd has none to set")
        self.fusion.check(self.attention, self.width(data.views[2]))


def _normed(inside: int, outside: int) -> nn.Module:
    """Returns a linear layer whose matrix has one trained length."""
    layer: nn.Module = weight_norm(nn.Linear(inside, outside), dim=None)  # type: ignore[arg-type]
    return layer


def _take(own: nn.Module, given: Layer, view: int) -> None:
    layer = next(own.children())
    assert isinstance(layer, nn.Linear)
    if given.weight.shape != layer.weight.shape:
        raise WrongUseError(
            f"data.fc7, view {view}: weights of {given.weight.shape}; model.fc7 and data.width say "
            f"{tuple(layer.weight.shape)}"
        )
    layer.weight.copy_(torch.from_numpy(given.weight))
    layer.bias.copy_(torch.from_numpy(given.bias))


class Glimpses(nn.Module):
    """Words to a vector: an LSTM, and glimpses of its outputs (pythia)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.width = config.question_dim * config.glimpses
        self.reader = nn.LSTM(config.word_dim, config.question_dim, batch_first=True)
        self.weigh = nn.Sequential(
            nn.Linear(config.question_dim, config.question_attention_dim), nn.ReLU(),
            nn.Linear(config.question_attention_dim, config.glimpses),
        )  # fmt: skip

    def forward(self, words: Tokens, embedded: Spelled) -> Asking:
        """Returns the glimpses side by side; padding is read like a word, as theirs."""
        outputs, _ = self.reader(embedded)
        shares = self.weigh(outputs).softmax(dim=1)  # B T glimpses
        asking: Tensor = torch.einsum("btg,btw->bgw", shares, outputs).flatten(1)
        return asking


class LastWord(nn.Module):
    """Words to a vector: what a GRU has read at the last one (butd; theirs pads in front and reads that too)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.width = config.question_dim
        self.reader = nn.GRU(config.word_dim, config.question_dim, batch_first=True)

    def forward(self, words: Tokens, embedded: Spelled) -> Asking:
        """Returns the output at the last known word."""
        outputs, _ = self.reader(embedded)
        last = ((words != 0) * torch.arange(words.shape[1], device=words.device)).argmax(dim=1)
        asking: Tensor = outputs[torch.arange(len(words), device=words.device), last]
        return asking


def _branches(config: Model, answers: int) -> nn.ModuleList:
    """Returns what is added up to the answers' logits."""
    joint, drop = config.joint_dim, nn.Dropout(config.answer_dropout)
    if config.backbone == "butd":
        inside = config.answer_dim
        return nn.ModuleList([nn.Sequential(_normed(joint, inside), nn.ReLU(), drop, _normed(inside, answers))])
    return nn.ModuleList(
        nn.Sequential(_normed(joint, width), nn.ReLU(), drop, nn.Linear(width, answers))
        for width in (config.answer_dim, joint)
    )


class Answerer(nn.Module):
    """Maps questions and the views of their pictures to the logits of each answer."""

    def __init__(self, config: Model, loaded: VqaData) -> None:
        super().__init__()
        self.config = config
        views, _, numbers = loaded.sizes
        self.fc7 = nn.ModuleList(
            ScaledLayer(
                nn.Linear(numbers, config.fc7), nn.ReLU(), multiplier=config.fc7_lr_multiplier if loaded.fc7 else 1.0
            )
            for _ in range(views if config.fc7 else 0)
        )
        self.fused = ViewFusion(config.fusion, config.attention, views, config.width(numbers))
        self.embedding = nn.Embedding(len(loaded.words), config.word_dim)
        self.question = Glimpses(config) if config.backbone == "pythia" else LastWord(config)
        asked, joint = self.question.width, config.joint_dim
        self.box_in, self.question_in = _normed(self.fused.width, joint), _normed(asked, joint)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.box_score = _normed(joint, 1)
        self.picture_out, self.question_out = _normed(self.fused.width, joint), _normed(asked, joint)
        self.branches = _branches(config, len(loaded.answers))
        self._begin(loaded)

    @torch.no_grad()
    def _begin(self, loaded: VqaData) -> None:
        """Takes the words' vectors and the detectors' layers that the data bring."""
        if loaded.vectors is not None:
            width = loaded.vectors.shape[1]
            if width != self.config.word_dim:
                raise WrongUseError(f"data.glove has {width} numbers a word, model.word_dim is {self.config.word_dim}")
            self.embedding.weight.copy_(torch.from_numpy(loaded.vectors))
        if loaded.fc7 and len(self.fc7) != len(loaded.fc7):
            raise WrongUseError(f"data.fc7 has {len(loaded.fc7)} layers: set --model.fc7 to their width")
        for view, (own, given) in enumerate(zip(self.fc7, loaded.fc7, strict=bool(loaded.fc7))):
            _take(own, given, view)

    def forward(self, words: Tokens, picture: Places, features: Regions, centres: Centres, real: RegionsReal) -> Logits:
        """Returns a row of logits a question; ``picture`` says which pictures' they are."""
        boxes, seen = self.fused(self.described(features, centres), real)
        asking = self.question(words, self.embedding(words))
        looked = self.looked(asking, picture, boxes, seen)
        joint = self.picture_out(looked).relu() * self.question_out(asking).relu()
        return torch.stack([branch(joint) for branch in self.branches]).sum(dim=0)

    def described(self, features: Tensor, centres: Centres) -> Regions:
        """Returns boxes as they are compared: their numbers and, where asked for, their places."""
        if self.config.fc7:
            features = torch.stack([layer(seen) for layer, seen in zip(self.fc7, features.unbind(1), strict=True)], 1)
        if not self.config.place_frequencies:
            return features
        rates = math.pi * 2.0 ** torch.arange(self.config.place_frequencies, device=centres.device)
        turned = (centres[..., None] * rates).flatten(-2)
        place = torch.cat([centres - 0.5, turned.sin(), turned.cos()], dim=-1) * self.config.place_scale
        return torch.cat([features, place], dim=-1)

    def looked(self, asking: Asking, picture: Places, boxes: Joined, seen: JoinedReal) -> Tensor:
        """Returns for each question the mean of its picture's boxes, weighed by what it asks."""
        inside = self.box_in(boxes).relu()[picture]  # projected once a picture, not once a question
        scores = self.box_score(self.dropout(inside * self.question_in(asking).relu()[:, None]))[..., 0]
        shares = scores.masked_fill(~seen[picture], -torch.inf).softmax(dim=1)
        return torch.einsum("bq,bqw->bw", shares, boxes[picture])
