"""Verifies that an attention variant keeps the contract of the suite, and shows the smallest example of each fault."""

import json
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal

from seqarena.common.attention import ATTENTIONS, attention_name, find_attention
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.errors import WrongUseError
from seqarena.common.parser import Parser
from seqarena.scripts.verify import behaviour, masks, numbers
from seqarena.scripts.verify.mixers import MIXER_CHECKS
from seqarena.scripts.verify.subject import FailedCheckError, NotApplicableError, Subject

Check = Callable[[Subject], str]
Status = Literal["passed", "failed", "not applicable"]
STATUSES = typing.get_args(Status)

CHECKS: MappingProxyType[str, Check] = MappingProxyType(
    {
        "config": behaviour.config,
        "sizes": behaviour.sizes,
        "repeated calls": behaviour.repeated_calls,
        "batches and heads": behaviour.batches,
        "padded keys": masks.padded_keys,
        "padded queries": masks.padded_queries,
        "empty rows": masks.empty_rows,
        "the future": masks.future,
        "other queries": masks.other_queries,
        "segments": masks.segments,
        "window": masks.window,
        "refusals": masks.refusals,
        "weights": numbers.weights,
        "step by step": behaviour.steps,
        "parameters": numbers.parameters,
        "bias": numbers.bias,
        "gradients": numbers.gradients,
        "half precision": numbers.half_precision,
        "dropout": numbers.dropout,
        "implementations": behaviour.implementations,
        "compilation": behaviour.compiled,
        "memory": behaviour.memory,
        "speed": behaviour.speed,
    }
)
"""Every check, in the order of the table. Each returns what it found, or raises."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Outcome of one check."""

    check: str
    status: Status
    detail: str


def verify(subject: Subject, checks: Sequence[str] = tuple(CHECKS)) -> list[Finding]:
    """Returns the outcome of each check of a variant. An error that the variant raises is a failed check."""
    found = []
    for name in checks:
        status: Status = "passed"
        try:
            detail = _check_of(subject, name)(subject)
        except FailedCheckError as error:
            status, detail = "failed", str(error)
        except NotApplicableError as error:
            status, detail = "not applicable", str(error)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or "without a message"
            status, detail = "failed", f"raised {type(error).__name__}: {reason}"
        found.append(Finding(check=name, status=status, detail=detail))
    return found


def _check_of(subject: Subject, name: str) -> Check:
    if not isinstance(subject.config, MixerConfig):
        return CHECKS[name]
    if name not in MIXER_CHECKS:
        raise NotApplicableError("not a check of token mixers")
    return MIXER_CHECKS[name]


def parser() -> Parser:
    """Returns the parser of ``seqarena verify``."""
    made = Parser(prog="seqarena verify", description=__doc__)
    made.add_argument("attention", nargs="*", help="variants: names, FILE.py:CLASS or PACKAGE.MODULE:CLASS")
    made.add_argument("--all", action="store_true", help="every variant of the table")
    made.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena verify`` and returns its exit code: 1 if a check failed."""
    options = parser().parse_args(arguments)
    if bool(options.attention) == options.all:
        raise WrongUseError("seqarena verify: name variants, such as my_attention.py:MyAttention, or --all")
    configs = list(ATTENTIONS.values()) if options.all else [find_attention(name) for name in options.attention]
    findings = {}
    for config in configs:
        subject = Subject(name=attention_name(config), config=config)
        print(f"{subject.name} ...", file=sys.stderr)
        findings[subject.name] = verify(subject)
        if not options.json:
            print(_report(subject.name, findings[subject.name]))
    if options.json:
        print(json.dumps({name: [asdict(each) for each in some] for name, some in findings.items()}))
    return int(any(each.status == "failed" for some in findings.values() for each in some))


def _report(name: str, findings: Sequence[Finding]) -> str:
    """Returns the counts, and a line per check: its name, its outcome, and what it found."""
    counts = [f"{sum(each.status == status for each in findings)} {status}" for status in STATUSES]
    lines = [
        textwrap.fill(
            each.detail, 116, initial_indent=f"  {each.check:<19}{each.status:<16}", subsequent_indent=" " * 37
        )
        for each in findings
    ]
    return "\n".join([f"{name}: {', '.join(counts)}", *lines])
