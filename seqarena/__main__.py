"""The ``seqarena`` command as ``python -m seqarena``."""

import sys

from seqarena.scripts.seqarena import main

sys.exit(main())
