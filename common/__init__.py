"""Everything two packages of the suite share. Imports no task package."""

import time

if __name__ == "common":  # a second copy of every class, whose configs the first would not know
    raise ImportError("the import name of this package is seqarena.common")

STARTED = time.time()
"""When this process began to import the suite: whatever it imports is no older."""
