"""The README and the documents say what is true: commands parse, targets exist, the tree is the tree."""

import importlib
import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import seqarena.lra.benchmark
import seqarena.pretraining.wikitext.benchmark
import seqarena.qa.benchmark
import seqarena.summarization.benchmark
import seqarena.vqa.benchmark
from seqarena.common.attention import ATTENTIONS, attend, find_attention
from seqarena.common.attention.base import IMPLEMENTATIONS, AttentionConfig
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.visibility import Visibility
from seqarena.common.data.nearest import TESTED
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS
from seqarena.common.model.transformer import Encoder
from seqarena.common.runs import sources
from seqarena.common.runs.cli import build_run, choose, package_parser, run_package
from seqarena.common.runs.fields import set_fields, split
from seqarena.common.runs.package import Package
from seqarena.common.runs.trained import changed_run
from seqarena.pretraining.wikitext import perplexity
from seqarena.pretraining.wikitext.presets import PRESETS as WIKITEXT
from seqarena.qa import official
from seqarena.scripts import curves, figures, leaderboard, prepare, price, report, selftest, sweep, variants
from seqarena.scripts.benchmark import attention, gpu, kernels, layers, step, step_profile, tiles
from seqarena.scripts.benchmark import show as show_benchmark
from seqarena.scripts.benchmark.selection import chosen
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.seqarena import COMMANDS
from seqarena.scripts.verify import CHECKS, verify
from seqarena.scripts.verify import parser as verify_parser
from seqarena.scripts.verify.subject import Subject
from seqarena.summarization import score
from seqarena.vqa import convert, show, submit
from seqarena.vqa import score as vqa_score
from tests.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [block for path in DOCUMENTS for kind, block in FENCED.findall(path.read_text()) if not kind]
PYTHON = [block for path in DOCUMENTS for kind, block in FENCED.findall(path.read_text()) if kind == "python"]
SCRIPTS = [re.sub(r'"\$(\w+)"', lambda word: word[1].lower(), path.read_text()).replace('"$@"', "").replace("\\\n", " ")
           .replace("--preset preset", "--preset p1-vit-small")  # in a loop over presets
           for path in sorted((ROOT / "scripts" / "reproduce").glob("*.sh"))
           if path.name != "small.sh"]  # fmt: skip  # tests/scripts/test_small.py runs that one
PROSE = [FENCED.sub("", path.read_text()) for path in DOCUMENTS]
INLINE = [" ".join(each.split()) for text in PROSE for each in re.findall(r"`((?:seqarena|make) [^`]+)`", text)]
LINES = [line.split("#")[0].strip() for block in [*BLOCKS, *SCRIPTS] for line in block.splitlines()] + INLINE
PLAIN = [re.sub(r"^[A-Z_]+=\S+ ", "", line) for line in LINES]  # without a variable set in front
WHOLE = [line for line in PLAIN if not re.search(r"\b[A-Z]{4,}\b|--help", line)]  # no words to be filled in
BEGINNINGS = ("seqarena ", "make ", "torchrun ", "accelerate ", "python -m ", "pip install ", "scripts/reproduce/")
COMMAND_LINES = sorted({line for line in WHOLE if line.startswith(BEGINNINGS)})


def rescored(arguments: list[str]) -> object:
    _, fields = perplexity.parser().parse_known_args(arguments)
    return changed_run(WIKITEXT["wikitext2"]["quick"].run, fields, perplexity.FREE, "test")


def target(words: list[str]) -> bool:
    return re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None


def installed(words: list[str]) -> bool:
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"seqarena\[(\w+)\]", " ".join(words))
    return all(re.search(rf"^{each} = \[", project, re.MULTILINE) for each in extras)


def script(words: list[str]) -> bool:
    return (ROOT / words[0]).exists() and bool(sweep.parser().parse_known_args(["lra", "listops", *words[1:]]))


OTHERS = {"make": target, "pip": installed}
"""Commands that are not seqarena's; scripts hand their arguments to sweeps."""
PARSERS = {
    ("benchmark", "attention"): attention.parse,
    ("benchmark", "layers"): layers.parse,
    ("benchmark", "kernels"): kernels.parser().parse_args,
    ("benchmark", "gpu"): gpu.parser().parse_args,
    ("benchmark", "tiles"): tiles.parser().parse_args,
    ("benchmark", "squad"): seqarena.qa.benchmark.parser().parse_args,
    ("benchmark", "headlines"): seqarena.summarization.benchmark.parser().parse_args,
    ("benchmark", "transformer-xl"): seqarena.pretraining.wikitext.benchmark.chosen_run,
    ("benchmark", "lra-code"): seqarena.lra.benchmark.parse,
    ("qa", "evaluate"): official.parser().parse_args,
    ("summarization", "score"): score.parser().parse_args,
    ("pretraining", "perplexity"): rescored,
    ("vqa", "evaluate"): vqa_score.evaluate_parser().parse_args,
    ("vqa", "answers"): vqa_score.answers_parser().parse_args,
    ("benchmark", "views"): seqarena.vqa.benchmark.parser().parse_args,
    ("benchmark", "show"): show_benchmark.parser().parse_args,
    ("vqa", "show"): show.parser().parse_args,
    ("vqa", "submit"): submit.parser().parse_args,
    ("vqa", "features"): convert.parser().parse_args,
}


READERS = {"curves": curves, "leaderboard": leaderboard, "report": report, "selftest": selftest, "variants": variants}
"""Commands that read runs and have no fields of a run."""


def test_there_are_commands() -> None:
    assert len(COMMAND_LINES) >= 7


@pytest.fixture(scope="module")
def own_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file ``my_attention.py`` of docs/adding.md, beside ``my_mixer.py``."""
    path = tmp_path_factory.mktemp("own") / "my_attention.py"
    block = next(block for block in PYTHON if "class Sigmoid" in block)
    linear = next(block for block in PYTHON if "class Linear" in block)
    path.write_text(f"{block}\n\nMyAttention = Sigmoid\n\n{linear}")
    mixer = path.with_name("my_mixer.py")
    mixer.write_text(next(block for block in PYTHON if "class GatedAverage" in block))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sources, "STARTED", float("inf"))  # files that change under a process are refused
        yield path


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_parses(line: str, own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_file.parent if own_file.name in line or "my_mixer.py" in line else ROOT)
    words = shlex.split(line)
    if words[0] in OTHERS or words[0].endswith(".sh"):
        assert OTHERS.get(words[0], script)(words)
        return
    rest = words[words.index("seqarena") + 1 :]
    if rest[0] == "sweep":
        assert sweep.plan(rest[1:])[0]
    elif rest[0] == "verify":
        assert all(map(find_attention, verify_parser().parse_args(rest[1:]).attention))
    elif rest[0] == "quickstart":
        assert rest[1:] == []
    elif rest[0] in READERS:
        assert READERS[rest[0]].parser().parse_args(rest[1:])
    elif tuple(rest[:2]) in PARSERS:
        assert rest[2:] == [] or PARSERS[rest[0], rest[1]](rest[2:])
    elif rest[0] in ("benchmark", "price"):
        parser = price.parser() if rest[0] == "price" else {"step": step, "profile": step_profile}[rest[1]].parser()
        words = rest[1:] if rest[0] == "price" else rest[2:]
        if words:
            options, fields = parser.parse_known_args(words)
            assert chosen(options, None, fields, "test")
            assert all(map(find_attention, getattr(options, "attention", None) or []))
    elif rest[0] == "figures":
        assert figures.select(figures.parser().parse_args(rest[1:]).names)
    elif rest[0] == "prepare" and tuple(rest[1:3]) in PARSERS:
        assert rest[3:] == [] or PARSERS[rest[1], rest[2]](rest[3:])
    elif rest[0] == "prepare":
        assert prepare.select_run(rest[1:])
    else:
        check_run(find_package(rest[0]), rest[1:])


def check_run(package: Package, words: list[str]) -> None:
    options, fields = package_parser("seqarena").parse_known_args(words)
    names = options.attention, options.norm, options.seed
    if "--model.init" not in fields:
        assert build_run(package, options.task, options.preset, *names, fields, "seqarena")
        return
    # A checkpoint that is not here completes the run.
    run = set_fields(choose(package, options.task, options.preset or "quick", *names), fields, "seqarena")
    run.check_values()
    assert not run.without_effect.keys() & {split([each])[0] for each in fields if each.startswith("--")}


def listed(folder: Path) -> set[str]:
    """The files and folders in a folder, as the tree names them."""
    names = {path.name + ("/" if path.is_dir() else "") for path in folder.iterdir()}
    return {name for name in names if name.endswith(("/", ".py"))} - {"__init__.py", "__pycache__/"}


def test_the_tree_is_the_tree() -> None:
    """Every shelf of ``common``, and every file on it; the files of ``attention`` are named in its words."""
    tree = next(block for block in BLOCKS if block.startswith("seqarena/"))
    assert set(re.findall(r"^  (\w+(?:\.py|/))", tree, re.MULTILINE)) == listed(ROOT / "common")
    shelves = re.findall(r"^  (\w+)/.*\n((?:    \w.*\n)+)", tree, re.MULTILINE)
    assert {name for name, _ in shelves} == {"model", "data", "training", "runs"}
    for shelf, lines in shelves:
        assert set(re.findall(r"^    (\w+(?:\.py|/))", lines, re.MULTILINE)) == listed(ROOT / "common" / shelf)
    tops = set(re.findall(r"^(\w+)/", tree, re.MULTILINE))
    assert tops == {"seqarena", "common", "scripts", "tests", *PACKAGES}
    links = {path.name for path in (ROOT / "seqarena").iterdir() if path.is_symlink()}
    assert links == {"common", "scripts", *PACKAGES}


def test_every_name_is_in_the_guide_and_no_other_in_the_readme() -> None:
    readme, guide = ((ROOT / name).read_text() for name in ("README.md", "docs/guide.md"))
    packages = [*map(find_package, PACKAGES)]
    tasks = {f"{package.name} {task}" for package in packages for task in package.tasks}
    presets = {preset for package in packages for task in package.tasks for preset in package.presets[task]}
    for name in {*ATTENTIONS, *NORMS, *tasks, *presets}:
        assert f"`{name}`" in guide, name
    for package in packages:
        for task, named in package.presets.items():
            data = named["quick"].data_name or "the same"
            assert re.search(rf"^\| `{package.name} {task}` \| .* \| {data} \| `quick`", guide, re.MULTILINE), task
    assert all(re.search(rf"(seqarena|make) {name}\b", readme) for name in COMMANDS)
    for title, known in (("Variants", {*ATTENTIONS, "lnas"}), ("Tasks", tasks)):
        rows = re.findall(r"^\| (`.*?) \|", readme.split(f"## {title}\n")[1].split("\n## ")[0], re.MULTILINE)
        named = set(re.findall(r"`(.+?)`", " ".join(rows)))
        assert named <= known
        assert len(named) > len(known) / 2


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert "://" in target or (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_library_example_runs() -> None:
    query, key, value = (torch.randn(2, 2, 3, 4) for _ in range(3))
    real = torch.ones(2, 3, dtype=torch.bool)
    names = {"attend": attend, "Hybrid": Hybrid, "query": query, "key": key, "value": value, "real": real,
             "hidden": torch.randn(2, 3, 64)}  # fmt: skip
    block = next(block for block in PYTHON if "attend(" in block)
    exec(block, names)
    assert isinstance(names["output"], torch.Tensor)
    assert names["output"].shape == (2, 2, 3, 4)
    assert names["layer"](torch.randn(2, 3, 64)).shape == (2, 3, 64)


def test_the_variant_example_is_a_variant(own_file: Path) -> None:
    """Sigmoid attention of docs/adding.md, as written: named by its file, its formula, and verified."""
    config = find_attention(f"{own_file}:Sigmoid")
    query, key = (torch.randn(2, 2, 3, 4, dtype=torch.float64) for _ in range(2))
    weights = config.build(heads=2).weights(query, key, Visibility(order="causal"))
    torch.testing.assert_close(weights[:, :, 0, 0], torch.sigmoid((query * key)[:, :, 0].sum(-1) / 2))
    second = (query[:, :, 1] * key[:, :, 0]).sum(-1) / 2 - math.log(2)
    torch.testing.assert_close(weights[:, :, 1, 0], torch.sigmoid(second), rtol=1e-12, atol=0)
    assert failed(config) == []


def failed(config: AttentionConfig) -> list[str]:
    """Returns the failed checks of a variant, without those that need functions of unchecked shapes, or a clock."""
    checks = [name for name in CHECKS if name not in ("compilation", "speed")]
    return [each.check for each in verify(Subject(name="example", config=config), checks) if each.status == "failed"]


def test_the_linear_example_is_linear_attention(own_file: Path) -> None:
    """Linear attention of docs/adding.md: its formula on the full matrix, verified, and refused where it must be."""
    config = find_attention(f"{own_file}:Linear")
    query, key, value = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    similarity = (F.elu(query) + 1) @ (F.elu(key) + 1).mT
    for order, products in (("none", similarity), ("causal", similarity.tril())):
        expected = products / products.sum(dim=-1, keepdim=True) @ value
        found = config.build(heads=2)(query, key, value, Visibility(order=order))  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected)
    assert failed(config) == []
    with pytest.raises(WrongUseError, match="does not support bias, memory, which a Transformer-XL needs"):
        choose(find_package("pretraining"), "wikitext2", "quick", f"{own_file}:Linear", None, 0).model.check()
    choose(find_package("lra"), "listops", "quick", f"{own_file}:Linear", None, 0).check()


def test_the_mixer_example_is_a_token_mixer(own_file: Path) -> None:
    """The token mixer of docs/adding.md, as written: a gated mean of the last tokens, and refused elsewhere."""
    path = own_file.with_name("my_mixer.py")
    run = choose(find_package("lra"), "listops", "quick", f"{path}:GatedAverage", None, 0)
    run.check()
    assert failed(run.model.attention) == []
    encoder = Encoder(replace(run.model, layers=1, dim=8, heads=2, ffn_dim=8, dropout=0.0)).eval()
    mixer, hidden = encoder.layers[0].attention, torch.randn(2, 10, 8)
    values = mixer.value(hidden)
    means = torch.stack([values[:, max(0, t - 7) : t + 1].sum(dim=1) / 8 for t in range(10)], dim=1)
    torch.testing.assert_close(mixer(hidden, Visibility()), mixer.output(mixer.gate(hidden).sigmoid() * means))
    with pytest.raises(WrongUseError, match="does not support bias, memory"):
        choose(find_package("pretraining"), "wikitext2", "quick", f"{path}:GatedAverage", None, 0).model.check()
    model = replace(run.model, attention=find_attention("softmax"), norm=NORMS["deepnorm"])
    with pytest.raises(WrongUseError, match="does not define residual_matrices"):
        Encoder(replace(model, attention=run.model.attention))


def test_the_norm_example_is_a_norm(tmp_path: Path) -> None:
    """The norm of docs/adding.md, as written: in an encoder it is pre-norm with RMSNorm."""
    path = tmp_path / "norm_example.py"
    path.write_text(next(block for block in PYTHON if "class MyNorm" in block))
    run = choose(find_package("lra"), "listops", "quick", None, f"{path}:MyNorm", 0)
    run.check()
    assert run.model.norm_label == "norm_example:MyNorm"
    encoder = Encoder(replace(run.model, layers=1, dim=8, heads=2, ffn_dim=8, dropout=0.0)).eval()
    hidden, visibility, layer = torch.randn(2, 5, 8), Visibility(), encoder.layers[0]
    normed = F.rms_norm(hidden, (8,), eps=run.model.norm_eps)
    middle = hidden + layer.attention(normed, visibility)
    expected = middle + layer.feed_forward(F.rms_norm(middle, (8,), eps=run.model.norm_eps))
    torch.testing.assert_close(encoder(hidden, visibility), F.rms_norm(expected, (8,), eps=run.model.norm_eps))


def test_the_document_tells_the_number_of_checks() -> None:
    assert f"`seqarena verify` runs {len(CHECKS)} checks" in (ROOT / "docs" / "adding.md").read_text()


def test_the_notebook_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/notebook.md, with a tiny data set."""
    monkeypatch.chdir(tmp_path)
    block = next(block for block in PYTHON if "import build, measure, rows" in block)
    size = {"data.train": 300, "data.validation": 20, "data.test": 30, "data.max-depth": 2, "data.longer-than": 3,
            "data.shorter-than": 12, "model.dim": 8, "model.layers": 1, "train.steps": 3}  # fmt: skip
    assert block.count('{"train.steps": 20}') == 1
    names: dict = {}
    exec(block.replace('{"train.steps": 20}', repr(size)), names)
    assert {row["name"]: row["seeds"] for row in names["table"]} == {
        "softmax, 1 layer": [0, 1, 2], "hnas[u=0.3], 1 layer": [0, 1, 2],
    }  # fmt: skip
    assert names["result"].score == names["measure"](names["run"]).score
    assert all(isinstance(row["mean"], float) for row in names["table"])


def test_the_task_example_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of docs/adding.md, as written: registered, trained for some steps, its result read."""
    block = next(block for block in PYTHON if "class Rows" in block)
    (tmp_path / "rows_of_digits.py").write_text(block)
    monkeypatch.setattr(sources, "STARTED", float("inf"))  # files that change under a process are refused
    monkeypatch.syspath_prepend(tmp_path)
    names = vars(importlib.import_module("rows_of_digits"))
    package = find_package("lra")
    tasks = package.tasks | {"sorted": names["SORTED"]}
    package = replace(package, tasks=tasks, presets=package.presets | {"sorted": {"quick": names["QUICK"]}})
    folders = ["--runs", str(tmp_path), "--data-folder", str(tmp_path / "data")]
    small = "--train.steps 200 --train.eval-every 100 --train.batch-size 32 --model.layers 1".split()
    assert run_package(package, ["sorted", "--attention", "dnas", *small, *folders, "--json"], "seqarena lra") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["floors"]["majority class"] == 0.5 < result["floors"]["first two digits"] < 0.65
    assert result["score"] > 0.8
    assert len(result["example_scores"]) == 500


def test_every_test_that_a_document_names_is_there() -> None:
    named = {match for path in DOCUMENTS for match in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text())}
    assert len(named) > 30
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), (file, test)


def test_every_place_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`(\w+/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 30
    for file, name in named:
        assert not name or re.search(rf"(def|class) {name}\b", (ROOT / file).read_text()), (file, name)
        assert (ROOT / file).exists(), file
    forms = [name for name in re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) if name in IMPLEMENTATIONS]
    assert list(dict.fromkeys(forms)) == list(IMPLEMENTATIONS)


def test_every_error_that_the_document_explains_is_raised() -> None:
    """The words in its first column stand in the sources, as they are told."""
    joined = re.compile(r'"\s*\n\s*f?"')  # a message over several lines
    sources = "\n".join(
        joined.sub("", path.read_text())
        for top in ("common", "scripts", *PACKAGES)
        for path in (ROOT / top).rglob("*.py")
    )
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(rows) > 15
    for words in re.findall(r"`([^`]+)`", " ".join(rows)):
        assert words in sources, words


@pytest.mark.parametrize(
    "name", ["docs/guide", "docs/results", "docs/lra", "docs/qa", "docs/summarization", "docs/vqa"]
)
def test_the_number_of_examples_of_the_nearest_floor_is_told(name: str) -> None:
    words = " ".join((ROOT / f"{name}.md").read_text().split())
    assert f"the first {TESTED:,} test examples" in words or f"the first {TESTED:,} of them" in words


def test_every_document_is_in_the_list() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_the_number_of_planted_faults() -> None:
    assert f"puts {len(MUTATIONS)} faults" in (ROOT / "docs" / "reliability.md").read_text()
