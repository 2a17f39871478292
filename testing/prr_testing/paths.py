"""Where the things lie that are built once and shared: `$PRR_CACHE`, else `.cache` in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """The cache of engines and models."""
    configured = os.environ.get("PRR_CACHE")
    return Path(configured).expanduser().resolve() if configured else CHECKOUT / ".cache"
