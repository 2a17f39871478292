"""Pictures of the page for the docs: `python -m prr_testing.matrix.screenshot PAGE FOLDER CELL`, in headless Chromium.

Writes `matrix.png`, the table, and `matrix-drift.png`, the page with one cell (`MODEL/ROW/COLUMN`) open.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from ..browser import browser


def main() -> None:
    source, folder, cell = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    with browser("--window-size=1320,1000", "--hide-scrollbars") as page:
        page.open(source)
        _save(page.screenshot(), folder / "matrix.png")
        page.open(source, cell)
        _save(page.screenshot(), folder / "matrix-drift.png")


def _save(png: bytes, file: Path) -> None:
    """With a palette: half the size."""
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(file, optimize=True)


if __name__ == "__main__":
    main()
