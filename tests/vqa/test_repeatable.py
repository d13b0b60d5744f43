"""No gradient of a training step depends on how the threads of a CPU take turns."""

from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seqarena.common.training.runtime import make_accelerator
from seqarena.vqa.model import by_question
from seqarena.vqa.trainer import assemble, loss
from tests.vqa.test_model import run_of


class Repeated(TorchDispatchMode):
    """Counts additions to rows of which one is named several times: threads of a CPU add to it in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.index_put.default and args[3:] == (True,):
            places = args[1][0]
            self.count += len(places.unique()) < len(places)
        return operator(*args, **(kwargs or {}))


def test_no_threads_race_for_the_gradient_of_a_picture(tmp_path: Path) -> None:
    assembly = assemble(run_of(), tmp_path, make_accelerator("float32"))
    batch: Any = assembly.batches[0].to(torch.device("cpu"))
    assert len(batch.picture.unique()) < len(batch.picture)
    with Repeated() as seen:
        loss(assembly.model, batch).backward()
    assert seen.count == 0
    boxes = torch.randn(3, 2, 4, requires_grad=True)
    with Repeated() as seen:
        boxes[torch.tensor([1, 1, 0])].sum().backward()
    assert seen.count == 1  # it would be noticed


def test_the_boxes_of_each_question_and_their_gradient_are_those_of_indexing() -> None:
    boxes, picture = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True), torch.tensor([2, 0, 2, 2])
    found, weight = by_question(boxes, picture), torch.randn(4, 2, 4, dtype=torch.float64)
    assert torch.equal(found, boxes[picture])
    (gradient,) = torch.autograd.grad(found, boxes, weight)
    torch.testing.assert_close(gradient, torch.autograd.grad(boxes[picture], boxes, weight)[0])
    assert not gradient[1].any()
