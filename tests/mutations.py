"""Faults put into ``common/attention`` one at a time, to see whether some test fails: ``make mutations``.

Each is a slip that a person makes: a dropped mask, a line of time one off, a sum over the wrong axis, a lost cast.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TESTS = ("tests/common/attention", "tests/common/model/test_norms.py")
"""The tests that have to notice a fault."""
SECONDS = 900.0
"""After which a run counts as failed: a fault may loop for ever."""


class Mutation(NamedTuple):
    """One fault."""

    file: str
    """In ``common/attention``."""
    before: str
    """Occurs once in it."""
    after: str


MUTATIONS = (
    # What is visible to whom
    Mutation("visibility.py", "allowed.tril(diagonal=self.memory)", "allowed.tril(diagonal=self.memory + 1)"),
    Mutation("visibility.py", "allowed.tril(diagonal=self.memory)", "allowed.tril(diagonal=self.memory - 1)"),
    Mutation("visibility.py", "allowed = allowed & self.key_real[:, None, None, :]", "pass"),
    Mutation("visibility.py", "allowed = allowed & self.query_real[:, None, :, None]", "pass"),
    Mutation("visibility.py", "own = self.segments[:, keys - queries :]", "own = self.segments[:, :queries]"),
    Mutation("visibility.py", 'self._cleared(query, self.query_real, layout)', "query"),
    Mutation("visibility.py", "return ClearPadding.apply(grad, real, ctx.layout), None, None", "return grad, None, None"),
    Mutation("visibility.py", "each() is tensor and version == tensor._version + real._version", "each() is tensor"),
    Mutation("visibility.py", "each() is tensor and version == tensor._version + real._version", "True"),
    Mutation("visibility.py", "counts = seen[:, self.memory :]", "counts = seen[:, : queries]"),
    Mutation("visibility.py", "counts if self.query_real is None else counts * self.query_real", "counts"),
    Mutation("visibility.py", "stop = torch.searchsorted(ordered, ordered, right=True)", "pass"),
    # The formulas
    Mutation("reference.py", "(query.to(wide) * query.shape[-1] ** -0.5) @ key.to(wide)", "(query * query.shape[-1] ** -0.5) @ key"),
    Mutation("reference.py", "query.shape[-1] ** -0.5", "key.shape[-2] ** -0.5"),
    Mutation("base.py", "return self.dropout if self.training else 0.0", "return self.dropout"),
    Mutation("base.py", "return visibility.clear_output(forms[implementation](query, key, value, visibility, bias))", "return forms[implementation](query, key, value, visibility, bias)"),
    Mutation("base.py", "return visibility.clear_output(output).to(dtype)", "return output.to(dtype)"),
    Mutation("base.py", 'if implementation != "reference" and needs_formula():', "if False:"),
    Mutation("base.py", '"reference" if self.rule is None or needs_formula() else', '"reference" if self.rule is None else'),
    Mutation("visibility.py", "forward_ad._current_level >= 0 or ", ""),
    Mutation("base.py", "F.dropout(weights, self.active_dropout)", "weights"),
    Mutation("reference.py", "visible & ~(scores <= HIDDEN)", "visible"),
    Mutation("reference.py", "for axis in (-2, -1):", "for axis in (-1, -2):"),
    Mutation("reference.py", "hidden.logcumsumexp(dim=-2)", "hidden.logcumsumexp(dim=-1)"),
    Mutation("reference.py", "hidden.logcumsumexp(dim=-2)", "hidden.logsumexp(dim=-2, keepdim=True).expand_as(hidden)"),
    Mutation("reference.py", "before[..., earlier - known : earlier]", "before[..., :known]"),
    Mutation("base.py", "None if new_state is None else new_state.detach()", "new_state"),
    Mutation("chunked.py", "memory=visibility.memory + rows.start", "memory=visibility.memory"),
    Mutation("chunked.py", "output, state = checkpoint(", "output, _ = checkpoint("),
    Mutation("chunked.py", "segments[:, :seen]", "segments"),
    Mutation("reference.py", "phi(scores.masked_fill(~visible, 0.0)) ** power * visible", "phi(scores.masked_fill(~visible, 0.0)) ** power"),
    Mutation("reference.py", "visible.sum(dim=-1, keepdim=True).clamp(min=1)", "scores.new_tensor(scores.shape[-1])"),
    Mutation("conditions.py", "visibility.memory or visibility.window is not None", "visibility.window is not None"),
    Mutation("softmax.py", "return output if empty_rows is None else output.masked_fill(empty_rows, 0.0)", "return output"),
    Mutation("softmax.py", "found[..., :width].masked_fill(empty_rows, 0.0)", "found[..., :width]"),
    Mutation("softmax.py", "dropout_p=dropout, is_causal=causal", "dropout_p=dropout, is_causal=False"),
    Mutation("softmax.py", "*visibility.clear(query, key, value), mask, empty_rows", "query, key, value, mask, empty_rows"),
    Mutation("doubly_normalized.py", 'visibility.memory if visibility.order == "causal" else scores.shape[-1]', "scores.shape[-1]"),
    Mutation("conditions.py", "if dropout or rounds > 1:", "if dropout:"),
    Mutation("hybrid.py", "u * doubly + (1 - u) * reference.softmax", "(1 - u) * doubly + u * reference.softmax"),
    Mutation("hybrid.py", "grad.sub_(grad_doubly)", "grad"),
    Mutation("hybrid.py", " and not self.u().any()", ""),
    Mutation("hybrid.py", "is_inference = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or self.active_dropout)", "is_inference = True"),
    Mutation("hybrid.py", "(heads, 1, 1) if config.per_head else (1, 1, 1)", "(1, 1, 1)"),
    Mutation("activations.py", "factor=float(self.power)", "factor=1.0"),
    Mutation("activations.py", "counts.clamp(min=1).pow(self.length_exponent)", "counts.clamp(min=1)"),
    # Mechanisms of other papers
    Mutation("rivals/sigmoid.py", "- counts.log()", ""),
    Mutation("rivals/sink.py", "[..., :-1], None", "[..., 1:], None"),
    Mutation("rivals/sinkhorn.py", "dim=-2 if number % 2 else -1", "dim=-1 if number % 2 else -2"),
    Mutation("rivals/entmax.py", "excess if self.alpha == 2 else excess.square()", "excess"),
    Mutation("rivals/entmax.py", "(ordered > found)", "(ordered >= found)"),
    Mutation("rivals/cosine.py", "query.shape[-1] ** 0.5", "query.shape[-1] ** 0.0"),
    Mutation("rivals/linear.py", "key = key * visibility.key_real[:, None, :, None]", "pass"),
    Mutation("rivals/linear.py", "F.elu(key * scale) + 1", "F.elu(key) + 1"),
    Mutation("rivals/performer.py", " * upper.diagonal().sign()", ""),
    Mutation("rivals/performer.py", "of_query = of_query + largest", "of_query = of_query"),
    Mutation("rivals/cosformer.py", "torch.maximum(places[0][:, -1:], places[1][:, -1:])", "(2 * places[1][:, -1:])"),
    Mutation("rivals/nystromformer.py", "position * landmarks", "(position + 1) * landmarks"),
    Mutation("rivals/nystromformer.py", "from_means = _softmax(query_means @ key.mT, key_real)", "from_means = _softmax(query_means @ key.mT, None)"),
    Mutation("rivals/convolution.py", "0 if visibility.order == \"causal\" else self.width // 2", "self.width // 2"),
    Mutation("rivals/linformer.py", "(each * visibility.key_real[:, None, :, None] for each in (key, value))", "(key, value)"),
    Mutation("rivals/differential.py", "_halves(query, 2**0.5)", "_halves(query, 1.0)"),
    Mutation("rivals/differential.py", "-0.3 * shape.number", "-0.3 * (shape.number + 1)"),
    Mutation("rivals/state_space.py", "F.pad(filters[1].flip(-1), (length, 0))", "F.pad(filters[1], (length, 0))"),
    Mutation("positions.py", "even * sines + odd * cosines", "even * sines - odd * cosines"),
    Mutation("positions.py", ".abs()", ""),
    Mutation("mixer.py", "missing = [each for each in CALL_OPTIONS if each in used and each not in self.config.supports]", "missing = []"),
    # The blockwise engine
    Mutation("tiles.py", "(visibility.memory + tile.rows.start + 1)", "(visibility.memory + tile.rows.start + 2)"),
    Mutation("tiles.py", "newest > seen[:, None]", "newest >= seen[:, None]"),
    Mutation("tiles.py", "keys = min(keys, self.visibility.memory + rows.stop)", "keys = min(keys, rows.stop)"),
    Mutation("tiles.py", "visibility.segments[:, shift + tile.rows.start : shift + tile.rows.stop]", "visibility.segments[:, tile.rows.start : tile.rows.stop]"),
    Mutation("tiles.py", "tensor.repeat_interleave(self.heads, dim=0)", "tensor.repeat(self.heads, *[1] * (tensor.dim() - 1))"),
    Mutation("tiles.py", "self._per_head(scale / (1 - self.dropout))", "self._per_head(scale)"),
    Mutation("tiles.py", "scale = (counts > 0).to(self.query.dtype)", "scale = torch.ones_like(counts, dtype=self.query.dtype)"),
    Mutation("tiles.py", "grad = grad.sum(dim=axis, keepdim=True)", "grad = grad.mean(dim=axis, keepdim=True)"),
    Mutation("tiles.py", "self._clear_padding(scores, tile)  #", "#"),
    Mutation("tiles.py", "scores.clamp_(min=HIDDEN)", "pass"),
    Mutation("tiles.py", "self.row_scale[tile.heads, tile.rows] *= scores.amax(dim=2, keepdim=True) > HIDDEN", "pass"),
    Mutation("tiles.py", "bits = torch.from_numpy(hash64(seed, which,", "bits = torch.from_numpy(hash64(seed, 0,"),
    Mutation("tiles.py", "return round((dropout - 0.5)", "return round((0.5 - dropout)"),
    Mutation("operators.py", "seed = torch.randint(2**62, ()) if dropout else", "seed ="),
    Mutation("operators.py", "found = list(call.visibility.clear(found[0], found[1], found[2]))", "found = list(found)"),
    Mutation("operators.py", "by_head = gradients.mixing_weight.view(call.batch, -1, 1, 1).sum(dim=0)", "by_head = gradients.mixing_weight.view(call.batch, -1, 1, 1)[0]"),
    Mutation("blockwise.py", "some = apply_dropout(weights, mask,", "some = apply_dropout(weights, None,"),
    Mutation("blockwise.py", "grad = grad * (call.row_scale[tile.heads, tile.rows] != 0)", "pass"),
    Mutation("blockwise.py", "apply_dropout(grad_weights, mask)", "grad_weights"),
    Mutation("blockwise.py", "grad -= grad_scores.sum(dim=1, keepdim=True)", "grad -= grad_scores.sum(dim=1, keepdim=True) * 0.999"),
    Mutation("blockwise.py", "columns_backward(self.call, heads, column_lse, grad, self.scores)", "pass"),
    Mutation("column_logsumexp.py", "aligned[..., earlier - known : earlier]", "aligned[..., :known]"),
    Mutation("blockwise.py", "later[:, :, tile.keys] = prefix_backward(block, gradient.doubly, later[:, :, tile.keys])", "later[:, :, tile.keys] = prefix_backward(block, gradient.doubly, 0 * later[:, :, tile.keys])"),
    Mutation("blockwise.py", "state = state.clone()", "pass"),
    Mutation("column_logsumexp.py", "add_block(state, _row_normalized(scores, found[-1])[0] if found else scores, call.masked)", "add_block(state, scores, call.masked)"),
    Mutation("column_logsumexp.py", "scores.new_ones(rows, rows).tril_()", "scores.new_ones(rows, rows).tril_(1)"),
    Mutation("column_logsumexp.py", "spread = top - torch.maximum(first, state)", "spread = 0 * top"),
    Mutation("column_logsumexp.py", "(~(spread <= RANGE))", "(spread > RANGE)"),
    Mutation("column_logsumexp.py", "sums[:, -1:] += later", "pass"),
    Mutation("column_logsumexp.py", "addcmul_(factors[:, row], sums[:, row + 1])", "add_(sums[:, row + 1])"),
    Mutation("column_logsumexp.py", "(state - lses[:, :1]).clamp_(max=0.0).exp_() * sums[:, :1]", "(state - lses[:, -1:]).clamp_(max=0.0).exp_() * sums[:, :1]"),
    Mutation("column_logsumexp.py", "grad.new_ones(rows, rows).triu_().expand", "grad.new_ones(rows, rows).triu_(1).expand"),
    Mutation("column_logsumexp.py", "torch.maximum(state, scores.amax(dim=1, keepdim=True))", "state"),
    # The fused passes and the features
    Mutation("fused.py", "through *= query_real[some, None, :, None]  #", "pass  #"),
    Mutation("fused.py", "grad_key[some].addcmul_(grad_lse, mean_query[some], value=scale)", "pass"),
    Mutation("fused.py", "column_lse = column_lse.masked_fill(~real[:, None], math.inf)", "pass"),
    Mutation("fused.py", "attn_mask=_padding_bias(query_real, query.dtype))", "attn_mask=None)"),
    Mutation("fused.py", "RANGE = 30.0", "RANGE = 3000.0"),
    Mutation("fused.py", "torch.sub(grad, grad_doubly, out=grad_second[..., :width])", "grad_second[..., :width] = grad"),
    Mutation("features.py", "return torch.tril(query @ key.transpose(1, 2))", "return query @ key.transpose(1, 2)"),
    Mutation("features.py", "torch.tril(g[:, rows] @ v_own.transpose(1, 2))", "g[:, rows] @ v_own.transpose(1, 2)"),
    Mutation("features.py", "CANCELLATION = 2.0**10", "CANCELLATION = 2.0**30"),
    Mutation("features.py", "grad_scores.mul_(scores ** (power - 1)).mul_(power)", "grad_scores.mul_(scores ** (power - 1))"),
    Mutation("module.py", "self.project_key_value(context)", "self.project_key_value(hidden)"),
    Mutation("module.py", "variant.build(heads, dropout)", "variant.build(heads)"),
)  # fmt: skip


def copy_tree(tree: Path) -> None:
    """Copies the sources and tests, without hidden files and the output of runs in the top folder."""
    ignored = ("runs", "data", "figures", "build", "results")

    def skipped(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name.startswith(".") or (Path(folder) == ROOT and name in ignored)}

    shutil.copytree(ROOT, tree, symlinks=True, ignore=skipped)


def mutate(mutation: Mutation, tree: Path) -> None:
    """Puts the fault into a copy of the tree."""
    path = tree / "common" / "attention" / mutation.file
    text = path.read_text()
    if text.count(mutation.before) != 1:
        raise ValueError(f"{mutation.file}: expected {mutation.before!r} once, found {text.count(mutation.before)}")
    path.write_text(text.replace(mutation.before, mutation.after))


def killer(mutation: Mutation) -> str | None:
    """Returns the first test that fails with the fault in, or None if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        mutate(mutation, tree)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not extras and not unhooked",
                   *TESTS]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ran = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "no end"
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"{mutation}: pytest itself failed\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if ran.returncode else None


def judged(mutations: list[Mutation], workers: int) -> Iterator[tuple[Mutation, str | None, float]]:
    """Yields each fault with what noticed it and the seconds that took."""

    def judge(mutation: Mutation) -> tuple[Mutation, str | None, float]:
        started = time.monotonic()
        return mutation, killer(mutation), time.monotonic() - started

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(judge, mutations)


def main() -> int:
    """Prints each fault and the test that noticed it; returns 1 if one stayed unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--file", help="only the faults of one file")
    options = parser.parse_args()
    chosen = [each for each in MUTATIONS if options.file in (None, each.file)]
    missed = 0
    for mutation, test, seconds in judged(chosen, options.workers):
        missed += test is None
        print(f"{'MISSED' if test is None else 'noticed':<8}{mutation.file}: {mutation.before} -> {mutation.after}"
              f"\n        {test or 'by no test'} ({seconds:.0f} s)", flush=True)  # fmt: skip
    print(f"{len(chosen) - missed} of {len(chosen)} faults noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
