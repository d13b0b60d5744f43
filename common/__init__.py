"""Everything two packages of the suite share. Imports no task package."""

import time

STARTED = time.time()
"""When this process began to import the suite: whatever it imports is no older."""
