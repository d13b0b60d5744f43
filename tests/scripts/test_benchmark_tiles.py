"""``seqarena benchmark tiles`` and ``kernels`` through Triton's interpreter, where times alone mean nothing."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.attention import Visibility, find_attention
from seqarena.common.errors import WrongUseError, run_command
from seqarena.scripts.benchmark import run, tiles
from seqarena.scripts.seqarena import dispatch

pytestmark = [
    pytest.mark.extras,
    pytest.mark.interpreted,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET=1, as make test-extras has it"
    ),
]
SMALL = "tiles --head-dim 16 --length 40 --batch 1 --heads 1 --repeats 1 --precision float32 --order none".split()
PLAIN = [*SMALL, "--dropout", "0"]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    for name, sizes in {"OWN": (16, 32), "OTHERS": (16,), "WARPS": (4,), "STAGES": (2,)}.items():
        monkeypatch.setattr(tiles, name, sizes)
    launch.read_tiles.cache_clear()
    yield
    launch.read_tiles.cache_clear()


def times(monkeypatch: pytest.MonkeyPatch, of: Callable[[dict[str, Any]], float]) -> None:
    """Has runs take as long as ``of`` says of the tiles that are tried."""
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    monkeypatch.setattr(tiles, "time_run", lambda *_: of(launch.OVERRIDES))


def test_the_fastest_are_kept_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    monkeypatch.setenv("COLUMNS", "200")  # on a busy machine the times of the table are long
    times(monkeypatch, lambda tried: sum(each.own != 16 for each in tried.values()))
    file = tmp_path / "new" / "tiles.json"
    assert run([*PLAIN, "--out", str(file)]) == 0
    assert "elementwise_backward_keys float32 16" in capsys.readouterr().out
    (found,) = json.loads(file.read_text()).values()
    assert all(each == [16, 16, 4, 2] for each in found.values())
    assert len(found) == 7
    assert launch.OVERRIDES == {}
    used = []
    monkeypatch.setattr(launch.Tiles, "sizes", lambda own, role: used.append(own) or sizes(own, role))
    kernel, given = find_attention("x3").build(heads=1), torch.randn(3, 1, 1, 40, 16)
    before = kernel.compute("triton", *given, Visibility())
    monkeypatch.setenv(launch.TILES, str(file))
    after = kernel.compute("triton", *given, Visibility())
    assert used == [launch.Tiles(64, 32, 4, 2), launch.Tiles(16, 16, 4, 2)]
    torch.testing.assert_close(before, after)


def sizes(own: Any, role: str) -> dict[str, int]:
    """What ``Tiles.sizes`` gives of a forward pass."""
    assert role == "forward"
    return {"ROWS": own.own, "KEYS": own.others}


def test_tiles_that_fail_or_differ_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    right, wrong = tiles.numbers_of, [16]

    def of(call: Any, tensors: Any) -> Any:
        tried = [each.own for each in launch.OVERRIDES.values()]
        if tried[-1:] == [64]:
            raise RuntimeError("out of resources")
        return [each * (1.01 if tried[-1:] == wrong else 1.0) for each in right(call, tensors)]

    monkeypatch.setattr(tiles, "numbers_of", of)
    times(monkeypatch, lambda tried: list(tried.values())[-1].own)
    assert run([*PLAIN, "--attention", "x3", "--out", str(tmp_path / "tiles.json")]) == 0
    (found,) = json.loads((tmp_path / "tiles.json").read_text()).values()
    assert {each[0] for each in found.values()} == {32}


def test_files_add_up(tmp_path: Path) -> None:
    file = tmp_path / "tiles.json"
    file.write_text('{"another card": {"forward float32 16": [64, 64, 4, 2]}}')
    for variant in ("x3", "dnas"):
        assert run([*PLAIN, "--attention", variant, "--out", str(file)]) == 0
    found = json.loads(file.read_text())
    assert sorted(len(each) for each in found.values()) == [1, 7]


def test_causal_order_and_dropout_have_tiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is measured as it runs, and a run reads the tiles of its own order and dropout."""
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    file = tmp_path / "tiles.json"
    ranks = {"": 16, " causal": 32, " dropout": 16, " causal dropout": 32}
    times(monkeypatch, lambda tried: sum(each.own != 16 + 16 * ("causal" in name) for name, each in tried.items()))
    assert run([*SMALL, "--order", "none", "causal", "--attention", "x3", "--out", str(file)]) == 0
    (found,) = json.loads(file.read_text()).values()
    forward = "elementwise_forward float32 16"
    assert {name.removeprefix(forward): tiles[0] for name, tiles in found.items() if name.startswith(forward)} == ranks
    assert len(found) == 12
    assert run([*SMALL, "--attention", "dnas", "--dropout", "0.1", "--out", str(file)]) == 0
    (found,) = json.loads(file.read_text()).values()
    assert {name.split()[0] for name in found if name.endswith("heavy dropout")} == {
        "normalized_forward", "normalized_backward_keys", "normalized_backward_queries"
    }  # fmt: skip
    assert run([*SMALL, "--attention", "hnas", "--dropout", "0.1", "--out", str(file)]) == 0
    (found,) = json.loads(file.read_text()).values()
    assert sum(name.endswith("heavy dropout mixed") for name in found) == 3
    assert sum(name.endswith("heavy dropout") for name in found) == 3
    used = []
    monkeypatch.setattr(launch.Tiles, "sizes", lambda own, role: used.append(own.own) or sizes(own, role))
    monkeypatch.setenv(launch.TILES, str(file))
    given = torch.randn(3, 1, 1, 40, 16)
    for dropout in (0.0, 0.1):
        for order in ("none", "causal"):
            find_attention("x3").build(1, dropout).compute("triton", *given, Visibility(order=order))  # type: ignore[arg-type]
    assert used == [16, 32, 16, 32]


def test_without_a_gpu_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiles, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "new" / "tiles.json"
    assert run_command(dispatch, ["benchmark", *SMALL, "--out", str(out)]) == 2
    assert "tiles are measured on a GPU, but PyTorch finds none" in capsys.readouterr().err
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["tiles", "--attention", "softmax"], "--attention softmax: expected dnas, hnas or an elementwise variant"),
        (["tiles", "--head-dim", "0"], "--head-dim: expected 1 to 128, found 0"),
        (["tiles", "--precision", "float64"], "unknown precision 'float64'"),
        (["tiles", "--dropout", "1"], "--dropout: expected at least 0 and below 1, found 1.0"),
        (
            ["tiles", "--order", "causal", "--attention", "dnas"],
            "--order causal: the tiles of causal dnas and hnas are fixed",
        ),
        (["tiles", "--dropout", "0.1", "0.2"], "--dropout: expected at most one probability above 0"),
        (["tiles", "--length", "0"], "--length: expected at least 1, found 0"),
        (["tiles", "--out", "."], "--out .: expected a file of this command"),
        (["kernels", "--capability", "9"], "unknown capability '9'; nearest: 9.0"),
        (
            ["kernels", "--biased"],
            "--biased: dnas and hnas have kernels with a bias in causal order only; add --causal",
        ),
        (["kernels", "--attention", "recency"], "--attention recency: expected dnas, hnas or"),
        (["kernels"], "TRITON_INTERPRET=1 is set, but the interpreter does not compile"),
    ],
)
def test_what_cannot_be_meant_is_told(command: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, ["benchmark", *command]) == 2
    assert words in capsys.readouterr().err


NO_TILES = [[1, 2], [48, 64, 4, 2], [64, 64, 4, 0], [True, 64, 4, 2], [64, 64, 64, 2], [8, 16, 4, 2], [-64, 64, 4, 2],
            [64, 64, 4, 2.0]]  # fmt: skip


@pytest.mark.parametrize(
    "text", [None, "", "[1]", '{"%s": 3}', *(f'{{"%s": {{"x": {json.dumps(tiles)}}}}}' for tiles in NO_TILES)]
)
def test_a_file_that_is_none_is_told(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415
    from seqarena.common.training.runtime import device_name  # noqa: PLC0415

    file = tmp_path / "tiles.json"
    if text is not None:
        file.write_text(text.replace("%s", device_name(torch.device("cpu"))))
    monkeypatch.setenv(launch.TILES, str(file))
    with pytest.raises(WrongUseError, match=r"SEQARENA_TILES=.*expected a file written by `seqarena benchmark tiles`"):
        find_attention("x3").build(heads=1).compute("triton", *torch.randn(3, 1, 1, 40, 16), Visibility())


def test_a_file_of_other_cards_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    (tmp_path / "tiles.json").write_text('{"another card": {"normalized_forward float32 16": [64, 64, 4, 2]}}')
    monkeypatch.setenv(launch.TILES, str(tmp_path / "tiles.json"))
    with pytest.warns(UserWarning, match="has no tiles for"):
        assert (
            find_attention("x3").build(heads=1).compute("triton", *torch.randn(3, 1, 1, 40, 16), Visibility())
            is not None
        )


def test_a_search_that_is_stopped_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    def stopped(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiles, "time_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        run([*SMALL, "--attention", "x3", "--out", str(tmp_path / "tiles.json")])
    assert launch.OVERRIDES == {}
    assert not (tmp_path / "tiles.json").exists()
