"""Seal of a JSON object in a file: a hash of its values, by which edits and damage are noticed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "seal"
"""Field of the object with the hash of all other fields."""


def seal(values: Mapping[str, Any]) -> str:
    """Returns the hash of all fields but the seal itself; 16 hex digits."""
    unsealed = {name: value for name, value in values.items() if name != SEAL}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True).encode()).hexdigest()[:16]
