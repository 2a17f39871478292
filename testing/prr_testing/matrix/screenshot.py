"""Pictures of the page for the docs: `python -m prr_testing.matrix.screenshot PAGE FOLDER CELL`, in headless Chromium.

Writes `matrix.png`, the table, and `matrix-drift.png`, the page with one cell (`MODEL/ROW/COLUMN`) open.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..browser import browser


def main() -> None:
    source, folder, cell = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    with browser("--window-size=1320,1000", "--hide-scrollbars") as page:
        page.open(source)
        (folder / "matrix.png").write_bytes(page.screenshot())
        page.open(source, cell)
        (folder / "matrix-drift.png").write_bytes(page.screenshot())


if __name__ == "__main__":
    main()
