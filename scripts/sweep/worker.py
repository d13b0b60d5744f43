"""Runs one run of a sweep in a process of its own: ``python -m seqarena.scripts.sweep.worker``.

The run is described on the first line of standard input. The process exits when the sweep exits (end of file).
"""

import json
import os
import sys
import threading
from collections.abc import Sequence

from seqarena.common.errors import InUseError, run_command
from seqarena.scripts.sweep.planned_run import IN_USE, from_description


def work(_: Sequence[str]) -> int:
    """Runs the run described on the first line of standard input, and returns the exit code."""
    description = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_the_sweep, daemon=True).start()
    try:
        result = from_description(description).measure()
    except InUseError as error:
        print(f"seqarena: {error}", file=sys.stderr)
        return IN_USE
    return int(result.status == "diverged")


def _leave_with_the_sweep() -> None:
    sys.stdin.read()
    os._exit(1)  # like a kill: the next process resumes from the last checkpoint


if __name__ == "__main__":
    sys.exit(run_command(work, sys.argv[1:]))
