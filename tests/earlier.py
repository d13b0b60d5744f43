"""Results of earlier formats, as tests write them."""

from seqarena.common.runs.results import ADDED
from seqarena.common.seal import SEAL

LATER = {SEAL}.union(*ADDED.values())
"""Fields that a file of format 1 lacks."""
