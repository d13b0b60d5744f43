"""A benchmark suite for attention mechanisms: ``seqarena.common`` and the task packages.

In a checkout they are links to the folders of the same names at its root. An installed copy has them in this folder.
"""

__version__ = "0.2.0"
