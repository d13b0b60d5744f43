import math

import pytest
import torch
from torch import nn

from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.errors import WrongUseError
from seqarena.common.training.optim import (
    OPTIMIZERS,
    Optim,
    ScaledLayer,
    Schedule,
    Stepped,
    build_optimizer,
    first_beta,
    fit_schedule,
    rate,
    set_rate,
)


@pytest.mark.parametrize("cycle", [True, False])
def test_one_cycle_is_pytorchs(cycle: bool) -> None:
    """Xiong et al. use torch's OneCycleLR with linear annealing and its defaults."""
    steps, warmup = 50, 10
    parameter = nn.Parameter(torch.zeros(1))
    oracle = torch.optim.AdamW([parameter], lr=1e-4, betas=(0.9, 0.999))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        oracle, max_lr=1e-4, total_steps=steps, pct_start=warmup / steps, anneal_strategy="linear", cycle_momentum=cycle
    )
    schedule = Schedule(shape="one_cycle", warmup=warmup, cycle_betas=cycle)
    for step in range(steps):
        assert 1e-4 * rate(schedule, step, steps) == pytest.approx(oracle.param_groups[0]["lr"], rel=1e-9)
        assert first_beta(schedule, 0.9, step, steps) == pytest.approx(oracle.param_groups[0]["betas"][0], rel=1e-9)
        oracle.step()
        if step + 1 < steps:
            scheduler.step()


def test_the_other_shapes() -> None:
    assert [rate(Schedule(), step, 4) for step in range(4)] == [1, 1, 1, 1]
    warm = Schedule(shape="linear", warmup=2)
    assert [rate(warm, step, 6) for step in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rate(Schedule(shape="cosine"), 5, 10) == pytest.approx(0.5)
    jax = Schedule(shape="rsqrt", warmup=1000)
    for step in (0, 10, 999, 1000, 4999):  # base * min(1, t / warmup) / sqrt(max(t, warmup)), t from 1
        t = step + 1
        expected = min(1, t / 1000) / math.sqrt(max(t, 1000)) * math.sqrt(1000)
        assert rate(jax, step, 5000) == pytest.approx(expected)


def test_stepped_is_pythias() -> None:
    """Warm-up from 0.2 over 1,000 steps; a tenth from 15,000, 18,000, 20,000 and 21,000 on."""
    pythia = Stepped(warmup=1_000, milestones=(15_000, 18_000, 20_000, 21_000))
    expected = {0: 0.2, 500: 0.6, 1_000: 1, 14_999: 1, 15_000: 0.1, 18_000: 0.01, 20_500: 1e-3, 21_999: 1e-4}
    assert {step: rate(pythia, step, 22_000) for step in expected} == pytest.approx(expected)
    pythia.check(22_000)
    assert rate(Stepped(milestones=(3,)), 0, 9) == 1.0
    for wrong in ({"milestones": (5, 5)}, {"milestones": (9, 7)}, {"milestones": (1,), "warmup": 2}, {"factor": 1.0},
                  {"shape": "linear"}, {"warmup_from": 1.5}, {"warmup_from": 0.0}, {"milestones": ()},
                  {"milestones": (20,)}):  # fmt: skip
        with pytest.raises(WrongUseError, match=r"expected|with optim\.schedule\.milestones"):
            Stepped(**{"milestones": (5,), **wrong}).check(20)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "bert_adam"])
def test_groups_decay_matrices_only_and_hurry_bounded_numbers(name: str) -> None:
    model = nn.ModuleDict({"linear": nn.Linear(2, 2), "norm": nn.LayerNorm(2), "kernel": Hybrid().build(heads=2),
                           "trained": ScaledLayer(nn.Linear(2, 2), multiplier=0.1)})  # fmt: skip
    optim = Optim(name=name, lr=1e-3, weight_decay=0.1, bounded_lr_multiplier=7.0)  # type: ignore[arg-type]
    optimizer = build_optimizer(optim, model)
    set_rate(optimizer, optim, 0, 10)
    found = {
        key: (group["weight_decay"], group["lr"])
        for group in optimizer.param_groups
        for key, parameter in model.named_parameters()
        if any(parameter is each for each in group["params"])
    }
    assert found["linear.weight"] == (0.1, 1e-3)
    assert found["linear.bias"] == found["norm.weight"] == (0.0, 1e-3)
    assert found["kernel.u.raw"] == (0.0, pytest.approx(7e-3))
    assert found["trained.0.weight"] == (0.1, pytest.approx(1e-4))
    assert found["trained.0.bias"] == (0.0, pytest.approx(1e-4))


@pytest.mark.parametrize(
    ("name", "weight_decay", "sizes"), [("adamw", 0.0, [2, 1]), ("adamw", 0.1, [1, 1, 1]), ("lamb", 0.0, [1, 1, 1])]
)
def test_without_weight_decay_matrices_and_biases_are_one_group(
    name: str, weight_decay: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, each group has kernels of its own. LAMB, an extra, scales the updates of matrices only."""
    monkeypatch.setattr("seqarena.common.training.optim._lamb", lambda settings, _: torch.optim.SGD(settings, lr=1.0))
    model = nn.ModuleDict({"linear": nn.Linear(2, 2), "kernel": Hybrid().build(heads=2)})
    optim = Optim(name=name, lr=1e-3, weight_decay=weight_decay)  # type: ignore[arg-type]
    groups = build_optimizer(optim, model).param_groups
    assert [len(group["params"]) for group in groups] == sizes
    assert groups[0]["weight_decay"] == weight_decay


def test_impossible_settings_are_refused() -> None:
    for schedule in (Schedule(warmup=10), Schedule(warmup=-1), Schedule(shape="one_cycle", warmup=1)):
        with pytest.raises(WrongUseError, match=r"optim\.schedule"):
            schedule.check(10)
    for optim in (Optim(lr=0.0), Optim(lr=1.0, clip=0.0), Optim(lr=1.0, betas=(0.9, 1.0))):
        with pytest.raises(WrongUseError, match=r"optim\."):
            optim.check()


@pytest.mark.parametrize("multiplier", [1.0, 50.0])
def test_bert_adam_is_googles(multiplier: float) -> None:
    """Steps of optimization.py: m / (sqrt(v) + eps) without correction, the decay beside it, both times the rate."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"linear": nn.Linear(3, 2).double(), "kernel": Hybrid(u=0.5).build(heads=1).double()})
    schedule = Schedule(shape="linear", warmup=2)
    optim = Optim(name="bert_adam", lr=0.02, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, schedule=schedule,
                  bounded_lr_multiplier=multiplier)  # fmt: skip
    optimizer = build_optimizer(optim, model)
    kinds = {"linear.weight": (0.1, 1.0), "linear.bias": (0.0, 1.0), "kernel.u.raw": (0.0, multiplier)}
    mine = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    first, second = ({name: torch.zeros_like(value) for name, value in mine.items()} for _ in range(2))
    for step in range(8):
        set_rate(optimizer, optim, step, 8)
        for name, parameter in model.named_parameters():
            grad = torch.randn_like(parameter)
            parameter.grad = grad
            decay, faster = kinds[name]
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.99 * second[name] + 0.01 * grad**2
            update = first[name] / (second[name].sqrt() + 1e-6) + decay * mine[name]
            mine[name] = mine[name] - 0.02 * faster * rate(schedule, step, 8) * update
        optimizer.step()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), mine[name], rtol=1e-9, atol=1e-12)


def test_bert_adam_undoes_the_correction_of_a_cycled_beta() -> None:
    schedule = Schedule(shape="one_cycle", warmup=3, cycle_betas=True)
    optim = Optim(name="bert_adam", lr=0.02, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.0, schedule=schedule)
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = build_optimizer(optim, model)
    weight, first, second = model.weight.item(), 0.0, 0.0
    for step in range(6):
        set_rate(optimizer, optim, step, 6)
        beta = first_beta(schedule, 0.9, step, 6)
        first, second = beta * first + (1 - beta), 0.99 * second + 0.01
        weight -= 0.02 * rate(schedule, step, 6) * first / (math.sqrt(second) + 1e-6)
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        assert model.weight.item() == pytest.approx(weight, rel=1e-9)


@pytest.mark.parametrize("name", ["adamw", "bert_adam", "adam"])
def test_adam_in_one_kernel_is_adam(name: str) -> None:
    """Against the definition (Kingma and Ba 2015; Loshchilov and Hutter 2019) in float64."""
    optim = Optim(name=name, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]
    model = nn.Linear(3, 2)
    made = build_optimizer(optim, model)
    assert made.defaults["fused"]
    weights = model.weight.detach().double()
    first = second = torch.zeros_like(weights)
    for step in range(5):
        gradient = torch.randn(2, 3)
        model.weight.grad, model.bias.grad = gradient.clone(), torch.zeros(2)
        set_rate(made, optim, step, 5)
        made.step()
        gradient = gradient.double() + (0.1 * weights if name == "adam" else 0.0)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrections = (1.0, 1.0) if name == "bert_adam" else (1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1))
        moved = (first / corrections[0]) / ((second / corrections[1]).sqrt() + optim.eps)
        weights = weights - 0.01 * (moved + (0.0 if name == "adam" else 0.1 * weights))
        torch.testing.assert_close(model.weight.double(), weights, rtol=1e-5, atol=1e-6)


def test_a_schedule_that_does_not_fit_keeps_its_share() -> None:
    linear = Schedule(shape="linear", warmup=100)
    assert fit_schedule(linear, 1_000, 101) == linear
    assert fit_schedule(linear, 1_000, 20) == Schedule(shape="linear", warmup=2)
    assert fit_schedule(linear, 1_000, 0) == linear
    assert fit_schedule(Stepped(warmup=100, milestones=(500, 900)), 1_000, 20) == Stepped(warmup=2, milestones=(10, 18))
