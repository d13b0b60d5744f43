"""Pythia: a question, read by an LSTM, picks boxes; both are multiplied and sorted into answers (Jiang et al. 2018).

As the code of 2018 has it (v0.1 of facebookresearch/pythia): two glimpses of the LSTM's outputs, boxes weighed by the
product of both, two branches to the answers. Behind ``Fused`` views, whose boxes it reads as one detector's.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from common.errors import WrongUseError
from common.shapes import Asking, Centres, Joined, JoinedReal, Logits, Places, Regions, RegionsReal, Tokens
from common.transformer import ModelConfig
from vqa.data import Data
from vqa.fusion import Fused, Fusion


@dataclass(frozen=True, kw_only=True)
class Model(ModelConfig):
    """Fusion and Pythia; the attention variant is the fusion's."""

    fusion: Fusion = field(default_factory=Fusion)
    """How the views become one."""
    place_frequencies: int = 0
    """Sines and cosines of a box's place, each way, put beside its numbers; 0: none, and no place, as Pythia."""
    place_scale: float = 2.0
    """What the numbers of a place are multiplied by."""
    word_dim: int = 300
    """Width of a word's embedding."""
    question_dim: int = 1024
    """Width of the LSTM."""
    question_attention_dim: int = 512
    """Width inside the question's attention to itself."""
    glimpses: int = 2
    """How often it looks at itself."""
    joint_dim: int = 5000
    """Width in which boxes and question are multiplied."""
    answer_dim: int = 300
    """Width of the first branch to the answers; the second's is that of the product."""
    fc7: int = 0
    """Width of a layer that boxes pass first, as a detector's last one; 0: none. It is drawn, and trained at the full
    rate: Pythia's starts as the detector's and has a tenth."""

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

    def width(self, data: Data) -> int:
        """Returns the numbers of a box that fusion reads."""
        place = 2 + 4 * self.place_frequencies if self.place_frequencies else 0
        return (self.fc7 or data.views[2]) + place

    def check_data(self, data: Data) -> None:
        """Raises a ``WrongUseError`` that names the field that does not work."""
        for name in ("word_dim", "question_dim", "question_attention_dim", "glimpses", "joint_dim", "answer_dim"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"model.{name}: expected at least 1, found {getattr(self, name)}")
        if self.place_frequencies < 0 or self.fc7 < 0:
            raise WrongUseError("expected model.place_frequencies and model.fc7 of at least 0")
        self.fusion.check(self.attention, self.width(data))


def _normed(inside: int, outside: int) -> nn.Module:
    """Returns a linear layer whose matrix has one trained length."""
    layer: nn.Module = weight_norm(nn.Linear(inside, outside), dim=None)  # type: ignore[arg-type]
    return layer


class QuestionReader(nn.Module):
    """Words to a vector: an LSTM, and glimpses of its outputs."""

    def __init__(self, config: Model, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.word_dim)
        self.reader = nn.LSTM(config.word_dim, config.question_dim, batch_first=True)
        self.weigh = nn.Sequential(
            nn.Linear(config.question_dim, config.question_attention_dim), nn.ReLU(),
            nn.Linear(config.question_attention_dim, config.glimpses),
        )  # fmt: skip

    def forward(self, words: Tokens) -> Asking:
        """Returns the glimpses side by side; padding is read like a word, as theirs."""
        outputs, _ = self.reader(self.embedding(words))
        shares = self.weigh(outputs).softmax(dim=1)  # B T glimpses
        asking: Tensor = torch.einsum("btg,btw->bgw", shares, outputs).flatten(1)
        return asking


class Answerer(nn.Module):
    """Maps questions and the views of their pictures to the logits of each answer."""

    def __init__(self, config: Model, data: Data) -> None:
        super().__init__()
        self.config = config
        views, _, numbers = data.views
        self.fc7 = nn.Sequential(nn.Linear(numbers, config.fc7), nn.ReLU()) if config.fc7 else nn.Identity()
        self.fused = Fused(config.fusion, config.attention, views, config.width(data))
        self.question = QuestionReader(config, data.vocabulary)
        asked, joint = config.question_dim * config.glimpses, config.joint_dim
        self.box_in, self.question_in = _normed(self.fused.width, joint), _normed(asked, joint)
        self.box_score = _normed(joint, 1)
        self.picture_out, self.question_out = _normed(self.fused.width, joint), _normed(asked, joint)
        answers = len(data.answers)
        self.branches = nn.ModuleList(
            nn.Sequential(_normed(joint, width), nn.ReLU(), nn.Linear(width, answers))
            for width in (config.answer_dim, joint)
        )

    def forward(self, words: Tokens, picture: Places, features: Regions, centres: Centres, real: RegionsReal) -> Logits:
        """Returns a row of logits a question; ``picture`` says which pictures' they are."""
        boxes, seen = self.fused(self.described(features, centres), real)
        asking = self.question(words)
        looked = self.looked(asking, picture, boxes, seen)
        joint = self.picture_out(looked).relu() * self.question_out(asking).relu()
        first, second = (branch(joint) for branch in self.branches)
        logits: Tensor = first + second
        return logits

    def described(self, features: Tensor, centres: Centres) -> Regions:
        """Returns boxes as they are compared: their numbers and, where asked for, their places."""
        features = self.fc7(features)
        if not self.config.place_frequencies:
            return features
        rates = math.pi * 2.0 ** torch.arange(self.config.place_frequencies, device=centres.device)
        turned = (centres[..., None] * rates).flatten(-2)
        place = torch.cat([centres - 0.5, turned.sin(), turned.cos()], dim=-1) * self.config.place_scale
        return torch.cat([features, place], dim=-1)

    def looked(self, asking: Asking, picture: Places, boxes: Joined, seen: JoinedReal) -> Tensor:
        """Returns for each question the mean of its picture's boxes, weighed by what it asks."""
        inside = self.box_in(boxes).relu()[picture]  # projected once a picture, not once a question
        scores = self.box_score(inside * self.question_in(asking).relu()[:, None])[..., 0]
        shares = scores.masked_fill(~seen[picture], -torch.inf).softmax(dim=1)
        return torch.einsum("bq,bqw->bw", shares, boxes[picture])
