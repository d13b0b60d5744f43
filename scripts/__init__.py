"""The seqarena command, and what works across the task packages."""
