"""The seqarena command, and tools that work across the task packages."""
