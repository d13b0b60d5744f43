"""Lists the attention variants, grouped: name, orders, formula."""

from collections.abc import Callable, Mapping, Sequence

from seqarena.common.attention import ALIASES, ATTENTIONS, PAPERS, AttentionConfig
from seqarena.common.attention.direct import DirectConfig
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.parser import Parser, fit_to_terminal
from seqarena.common.runs.help import summary

GROUPS: Mapping[str, Callable[[str, AttentionConfig], bool]] = {
    "of the papers P1 and P2, and their controls": lambda name, _: name in PAPERS,
    "of other papers, with a matrix of weights": lambda name, config: (
        name not in PAPERS and not isinstance(config, DirectConfig)
    ),
    "of other papers, without a matrix of weights": lambda _, config: (
        isinstance(config, DirectConfig) and not isinstance(config, MixerConfig)
    ),
    "layers in the place of attention": lambda _, config: isinstance(config, MixerConfig),
}
"""Title -> whether a variant belongs to the group."""
LETTERS = {"none": "n", "causal": "c", "ordered_queries": "q"}


def parser() -> Parser:
    """Returns the parser of ``seqarena variants``."""
    return Parser(prog="seqarena variants", description=__doc__)


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena variants`` and returns its exit code."""
    parser().parse_args(arguments)
    orders = "n: every query sees every key; c: causal; q: ordered queries, in any order of keys; s: step by step"
    print(fit_to_terminal(f"orders: {orders}"))
    print("s_ij: scaled score of query i and key j; pi_ij: weight; N: number of keys")
    aliases = {target: alias for alias, target in ALIASES.items()}
    for title, belongs in GROUPS.items():
        print(f"\n{title}")
        for name, config in ATTENTIONS.items():
            if belongs(name, config):
                alias = f" (also: {aliases[name]})" if name in aliases else ""
                print(fit_to_terminal(f"  {name:<14} {_orders(config):<5}  {summary(config)}{alias}"))
    print("\nyour own: --attention FILE.py:CLASS; seqarena verify FILE.py:CLASS checks it")
    return 0


def _orders(config: AttentionConfig) -> str:
    """Returns a letter for each order of a variant, and s if it can be computed step by step in one of them."""
    return "".join(LETTERS[order] for order in config.orders) + ("s" if config.stepwise else "")
