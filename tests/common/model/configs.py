"""A config of an encoder alone, for tests."""

from dataclasses import dataclass

from seqarena.common.model.transformer import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class ShortEncoderConfig(EncoderConfig):
    """An encoder of at most 64 tokens."""

    @property
    def longest(self) -> int:
        """64."""
        return 64
