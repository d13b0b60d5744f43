"""Compares the speed of beam search with ``generate`` of the transformers library, using the same weights."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from seqarena.common.data.batches import Indices, in_order
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import to_public
from seqarena.common.model.bert.families import BERT
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.runs.trained import read_trained
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.training.runtime import device_name, make_accelerator
from seqarena.summarization.data import Split
from seqarena.summarization.decoding import Decoding, search
from seqarena.summarization.evaluator import banned_tokens
from seqarena.summarization.model import Summarizer
from seqarena.summarization.run import Run
from seqarena.summarization.tasks import TASKS
from seqarena.summarization.trainer import prepare

CROSS = {
    "cross.query": "crossattention.self.query",
    "cross.key": "crossattention.self.key",
    "cross.value": "crossattention.self.value",
    "cross.output": "crossattention.output.dense",
    "residual.cross_norm": "crossattention.output.LayerNorm",
}
"""Names of the tensors of cross-attention in the library."""
Tokens = list[tuple[int, ...]]


def as_transformers(model: Summarizer) -> Any:
    """Returns the library's encoder-decoder with the same weights.

    Raises:
        WrongUseError: the library is not installed, or lacks the variant or norm (it has softmax and post-norm only).
    """
    try:
        import transformers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise WrongUseError("this needs a package: pip install transformers") from error
    config = model.config
    plain = to_public(config)
    softmax = to_public(replace(config, attention=config.decoder_attention))
    crossed = to_public(replace(config, attention=config.cross_attention))
    if any(each["model_type"] != "bert" for each in (plain, softmax, crossed)):
        raise WrongUseError("the transformers library supports softmax attention and post-norm only")
    encoder = transformers.BertModel(transformers.BertConfig(**plain), add_pooling_layer=False)
    settings = {**plain, "num_hidden_layers": config.decoder_depth, "is_decoder": True, "add_cross_attention": True}
    decoder = transformers.BertLMHeadModel(transformers.BertConfig(**settings))
    made = transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("bert."):
            tensors[f"encoder.{BERT.public_name(name).removeprefix('bert.')}"] = tensor
        elif name.startswith("masked."):
            tensors[f"decoder.{BERT.public_name(name)}"] = tensor
        else:
            tensors[f"decoder.{_of_decoder(name)}"] = tensor
    word = tensors["encoder.embeddings.word_embeddings.weight"]
    tensors["decoder.bert.embeddings.word_embeddings.weight"] = word
    tensors["decoder.cls.predictions.decoder.weight"] = word
    tensors["decoder.cls.predictions.decoder.bias"] = tensors["decoder.cls.predictions.bias"]
    found = made.load_state_dict(tensors, strict=False)
    missing = [name for name in found.missing_keys if not name.endswith("position_ids")]
    assert not missing, missing
    assert not found.unexpected_keys, found.unexpected_keys
    made.train(False)
    return made


def _of_decoder(name: str) -> str:
    """Returns the library's name of a decoder tensor."""
    if name.startswith("target."):
        return BERT.public_name(f"bert.embeddings.{name.removeprefix('target.')}")
    for ours, theirs in CROSS.items():
        if f".{ours}." in name:
            return f"bert.encoder.layer.{name.removeprefix('decoder.layers.')}".replace(ours, theirs)
    return BERT.public_name(f"bert.encoder.{name.removeprefix('decoder.')}")


def generate(theirs: Any, batch: Any, how: Decoding, special: tuple[int, int, int], banned: Sequence[int]) -> Tokens:
    """Returns the library's headlines for a batch, without start and end tokens, with the settings of ``how``."""
    if how.normalization == "gnmt":
        raise WrongUseError("the transformers library has no gnmt normalization; set --decoding.normalization power")
    start, end, pad = special
    stop: dict[str, bool | str] = {"bound": "never", "current": False, "full": True}
    with torch.no_grad():
        found = theirs.generate(
            input_ids=batch.source, attention_mask=batch.source_real.long(), num_beams=how.beam, do_sample=False,
            max_new_tokens=how.max_length, min_new_tokens=how.min_length or None,
            no_repeat_ngram_size=how.no_repeat or None, early_stopping=stop[how.stop],
            length_penalty=how.alpha if how.normalization == "power" else 0.0, suppress_tokens=list(banned) or None,
            decoder_start_token_id=start, bos_token_id=start, eos_token_id=end, pad_token_id=pad,
        )  # fmt: skip
    return [_until(row[1:], end) for row in found.tolist()]


def _until(tokens: list[int], end: int) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end)] if end in tokens else tokens)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of both implementations for all texts, medians over rounds, and the number of equal headlines."""

    stop: str
    ours: float
    theirs: float
    same: int
    texts: int

    @property
    def ratio(self) -> float:
        """Throughput of ours relative to theirs."""
        return self.theirs / self.ours


def measure(model: Summarizer, split: Split, how: Decoding, banned: Sequence[int], count: int, rounds: int) -> Speed:
    """Times both on the first ``count`` texts, in batches sorted by length, alternating."""
    theirs = as_transformers(model)
    start, end, _ = split.encoded.special
    lengths = split.encoded.source_lengths[:count]
    batches = [(part, split.encoded.batch(part)) for part in in_order(lengths, how.batch_size)]

    def ours(batch: Any) -> Tokens:
        found = search(model, batch.source, batch.source_real, how, start=start, end=end, banned=banned)
        return [some[0].tokens for some in found]

    def other(batch: Any) -> Tokens:
        return generate(theirs, batch, how, split.encoded.special, banned)

    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    outputs: dict[str, dict[int, tuple[int, ...]]] = {}
    for _ in range(rounds + 1):  # the first warms up
        for name, call in (("ours", ours), ("theirs", other)):
            clock = time.perf_counter()
            outputs[name] = _all(call, batches)
            seconds[name].append(time.perf_counter() - clock)
    return Speed(
        stop=how.stop, ours=statistics.median(seconds["ours"][1:]), theirs=statistics.median(seconds["theirs"][1:]),
        same=sum(outputs["ours"][text] == outputs["theirs"][text] for text in outputs["ours"]), texts=len(lengths),
    )  # fmt: skip


def _all(call: Callable[[Any], Tokens], batches: Sequence[tuple[Indices, Any]]) -> dict[int, tuple[int, ...]]:
    return {text: tokens for part, batch in batches for text, tokens in zip(part.tolist(), call(batch), strict=True)}


def load_run(folder: Path, data: Path) -> tuple[Run, Summarizer, Split, list[int]]:
    """Returns a finished run with its model, its test pairs and its banned tokens.

    Raises:
        WrongUseError: no such run, or not finished.
    """
    found = read_trained(folder, Run, "summarization", tuple(TASKS))
    run = found.run
    tokenizer, splits = prepare(run, data)
    model = Summarizer(run.model)
    found.load(model)
    banned = banned_tokens(tokenizer, run.model.vocabulary, splits.test.encoded.special)
    return run, model.eval(), splits.test, banned


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark headlines``."""
    made = Parser(prog="seqarena benchmark headlines", description=__doc__)
    made.add_argument("--run", type=Path, required=True, help="directory of a finished run with softmax and post-norm")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    made.add_argument("--count", type=int, default=200, help="number of test texts (default: 200)")
    made.add_argument("--beam", type=int, default=5, help="hypotheses per text (default: 5)")
    made.add_argument("--batch-size", type=int, default=50, help="texts per batch (default: 50)")
    made.add_argument("--rounds", type=int, default=3, help="timed rounds (default: 3)")
    add_output_options(made, json_help="print the measurements as one JSON object")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark headlines`` and returns its exit code."""
    options = parser().parse_args(arguments)
    for name in ("count", "beam", "batch_size", "rounds"):
        at_least_one(options, name)
    its, model, split, banned = load_run(options.run, options.data_folder)
    found = []
    for stop in ("current", "bound", "full"):
        how = replace(
            its.decoding, beam=options.beam, batch_size=options.batch_size, stop=stop, normalization="power", n_best=1
        )
        print(f"stop {stop} ...", file=sys.stderr)
        found.append(measure(model, split, how, banned, options.count, options.rounds))
    if options.json:
        print(json.dumps([{**asdict(each), "ratio": each.ratio} for each in found]))
        return 0
    rows = [
        [each.stop, f"{each.texts / each.ours:.1f}", f"{each.texts / each.theirs:.1f}", f"{each.ratio:.2f}",
         f"{each.same} of {each.texts}"]
        for each in found
    ]  # fmt: skip
    device = device_name(make_accelerator("float32").device)
    layers = (
        f"{its.model.layers} + {its.model.decoder_depth} layers of {its.model.dim}, {its.model.vocabulary:,} tokens"
    )
    notes = [
        f"{layers}; beam {options.beam}, L^{its.decoding.alpha}, at most {its.decoding.max_length} tokens, batches of "
        f"{options.batch_size} sorted by length; medians of {options.rounds} alternating rounds",
        f"{device}, float32",
    ]
    headings = ["stop", "ours, texts/s", "transformers, texts/s", "ratio", "same headlines"]
    title = f"beam search against generate: {options.run}"
    print_table(options, parser().prog, arguments, title, headings, rows, notes, device)
    return 0
