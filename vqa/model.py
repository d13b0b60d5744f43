"""Fusion of views, question-guided attention over regions, then a classifier over answers.

pythia follows the code of 2018 (v0.1 of facebookresearch/pythia, Jiang et al. 2018): two attention-weighted sums of an
LSTM's outputs, boxes weighted by the product of box and question, two classifier branches. butd is its smaller
predecessor (hengyuan-hu/bottom-up-attention-vqa): a GRU's last output, one branch, dropout.
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
    """Config of the fusion and the answering model. The attention variant is that of the fusion."""

    fusion: Fusion = field(default_factory=Fusion)
    """Fusion of the views."""
    backbone: Literal["pythia", "butd"] = "pythia"
    """Model that predicts the answer from the fused boxes."""
    place_frequencies: int = 0
    """Number of frequencies whose sines and cosines encode a box's position, per axis. They are concatenated with the
    coordinates and the features. 0: no position, as in Pythia."""
    place_scale: float = 2.0
    """Factor of the encoding of a box's position."""
    word_dim: int = 300
    """Width of the word embeddings."""
    question_dim: int = 1024
    """Width of the LSTM or GRU."""
    question_attention_dim: int = 512
    """Hidden width of the question's self-attention (pythia)."""
    glimpses: int = 2
    """Number of attention-weighted sums of the question's words (pythia)."""
    joint_dim: int = 5000
    """Width of the product of boxes and question."""
    answer_dim: int = 300
    """Hidden width of the classifier (butd), or of its first branch (pythia; the second has joint_dim)."""
    attention_dropout: float = 0.0
    """Dropout probability on the product that scores a box."""
    answer_dropout: float = 0.0
    """Dropout probability inside the classifier."""
    fc7: int = 0
    """Width of an initial layer per view, which corresponds to the detector's last layer. 0: no layer."""
    fc7_lr_multiplier: float = 0.1
    """Factor of the learning rate for that layer if it is initialised from the detector (data.fc7). Random layers use
    the full rate."""

    @property
    def norm_label(self) -> str:
        """Label of the normalisation: none, because the model has no blocks."""
        return "none"

    @property
    def depth_label(self) -> int:
        """Number of attention layers."""
        return 1

    def width(self, numbers: int) -> int:
        """Returns the width of the fusion's input per box, for ``numbers`` features per box in the data."""
        place = 2 + 4 * self.place_frequencies if self.place_frequencies else 0
        return (self.fc7 or numbers) + place

    def check_data(self, data: Data) -> None:
        """Raises a ``WrongUseError`` that names the invalid field."""
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
        pythia_only = (self.glimpses, self.question_attention_dim)
        if self.backbone == "butd" and pythia_only != (Model.glimpses, Model.question_attention_dim):
            raise WrongUseError("model.glimpses and model.question_attention_dim apply only to pythia; omit for butd")
        self.fusion.check(self.attention, self.width(data.views[2]))


def _weight_normed_linear(inside: int, outside: int) -> nn.Module:
    """Returns a linear layer with weight normalisation, with one trained norm for the whole matrix."""
    layer: nn.Module = weight_norm(nn.Linear(inside, outside), dim=None)  # type: ignore[arg-type]
    return layer


def _load_layer(own: nn.Module, given: Layer, view: int) -> None:
    layer = next(own.children())
    assert isinstance(layer, nn.Linear)
    if given.weight.shape != layer.weight.shape:
        raise WrongUseError(
            f"data.fc7, view {view}: expected weights of shape {tuple(layer.weight.shape)} (model.fc7, data.width), "
            f"found {given.weight.shape}"
        )
    layer.weight.copy_(torch.from_numpy(given.weight))
    layer.bias.copy_(torch.from_numpy(given.bias))


class Glimpses(nn.Module):
    """Encodes a question by attention-weighted sums of an LSTM's outputs (pythia)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.width = config.question_dim * config.glimpses
        self.reader = nn.LSTM(config.word_dim, config.question_dim, batch_first=True)
        self.weigh = nn.Sequential(
            nn.Linear(config.question_dim, config.question_attention_dim), nn.ReLU(),
            nn.Linear(config.question_attention_dim, config.glimpses),
        )  # fmt: skip

    def forward(self, words: Tokens, embedded: Spelled) -> Asking:
        """Returns the concatenated sums. Padding is treated as a word, as in Pythia's code."""
        outputs, _ = self.reader(embedded)
        weights = self.weigh(outputs).softmax(dim=1)  # B T glimpses
        encoded: Tensor = torch.einsum("btg,btw->bgw", weights, outputs).flatten(1)
        return encoded


class LastWord(nn.Module):
    """Encodes a question by a GRU's output at the last word (butd; the published code also reads padding, in front)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.width = config.question_dim
        self.reader = nn.GRU(config.word_dim, config.question_dim, batch_first=True)

    def forward(self, words: Tokens, embedded: Spelled) -> Asking:
        """Returns the output at the last known word."""
        outputs, _ = self.reader(embedded)
        last = ((words != 0) * torch.arange(words.shape[1], device=words.device)).argmax(dim=1)
        encoded: Tensor = outputs[torch.arange(len(words), device=words.device), last]
        return encoded


def _branches(config: Model, answers: int) -> nn.ModuleList:
    """Returns the classifier's branches, whose outputs are summed to the logits."""
    joint, drop = config.joint_dim, nn.Dropout(config.answer_dropout)
    if config.backbone == "butd":
        inside = config.answer_dim
        return nn.ModuleList(
            [
                nn.Sequential(
                    _weight_normed_linear(joint, inside), nn.ReLU(), drop, _weight_normed_linear(inside, answers)
                )
            ]
        )
    return nn.ModuleList(
        nn.Sequential(_weight_normed_linear(joint, width), nn.ReLU(), drop, nn.Linear(width, answers))
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
        self.box_in, self.question_in = (
            _weight_normed_linear(self.fused.width, joint),
            _weight_normed_linear(asked, joint),
        )
        self.dropout = nn.Dropout(config.attention_dropout)
        self.box_score = _weight_normed_linear(joint, 1)
        self.picture_out, self.question_out = (
            _weight_normed_linear(self.fused.width, joint),
            _weight_normed_linear(asked, joint),
        )
        self.branches = _branches(config, len(loaded.answers))
        self._load_pretrained(loaded)

    @torch.no_grad()
    def _load_pretrained(self, loaded: VqaData) -> None:
        """Copies the data's word vectors and detector layers into the model."""
        if loaded.vectors is not None:
            width = loaded.vectors.shape[1]
            if width != self.config.word_dim:
                raise WrongUseError(
                    f"model.word_dim: expected {width}, the width of data.glove, found {self.config.word_dim}"
                )
            self.embedding.weight.copy_(torch.from_numpy(loaded.vectors))
        if loaded.fc7 and len(self.fc7) != len(loaded.fc7):
            raise WrongUseError(f"data.fc7 has {len(loaded.fc7)} layers: set --model.fc7 to their width")
        for view, (own, given) in enumerate(zip(self.fc7, loaded.fc7, strict=bool(loaded.fc7))):
            _load_layer(own, given, view)

    def forward(self, words: Tokens, picture: Places, features: Regions, centres: Centres, real: RegionsReal) -> Logits:
        """Returns the logits of each question. ``picture`` is the row of each question's picture in ``features``."""
        boxes, seen = self.fused(self.box_inputs(features, centres), real)
        encoded = self.question(words, self.embedding(words))
        attended = self.attend(encoded, picture, boxes, seen)
        joint = self.picture_out(attended).relu() * self.question_out(encoded).relu()
        return torch.stack([branch(joint) for branch in self.branches]).sum(dim=0)

    def box_inputs(self, features: Tensor, centres: Centres) -> Regions:
        """Returns the fusion's input: features and, if configured, encoded positions of each box."""
        if self.config.fc7:
            features = torch.stack([layer(seen) for layer, seen in zip(self.fc7, features.unbind(1), strict=True)], 1)
        if not self.config.place_frequencies:
            return features
        rates = math.pi * 2.0 ** torch.arange(self.config.place_frequencies, device=centres.device)
        angles = (centres[..., None] * rates).flatten(-2)
        place = torch.cat([centres - 0.5, angles.sin(), angles.cos()], dim=-1) * self.config.place_scale
        return torch.cat([features, place], dim=-1)

    def attend(self, encoded: Asking, picture: Places, boxes: Joined, seen: JoinedReal) -> Tensor:
        """Returns for each question the sum of its picture's boxes, weighted by question-guided attention."""
        inside = by_question(self.box_in(boxes).relu(), picture)  # projected once per picture, not per question
        scores = self.box_score(self.dropout(inside * self.question_in(encoded).relu()[:, None]))[..., 0]
        weights = scores.masked_fill(~seen[picture], -torch.inf).softmax(dim=1)
        return torch.einsum("bq,bqw->bw", weights, by_question(boxes, picture))


def by_question(boxes: Joined, picture: Places) -> Tensor:
    """Returns ``boxes[picture]``, the boxes of each question's picture, with a gradient that is the same in every run.

    The gradient of indexing adds the rows of one picture in an order that depends on how several threads of a CPU take
    turns. That of an embedding does not.
    """
    return torch.nn.functional.embedding(picture, boxes.flatten(1)).view(-1, *boxes.shape[1:])
