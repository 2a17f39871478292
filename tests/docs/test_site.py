"""The site builds without a warning and loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "docs" / "bin" / "python"


def test_the_site_builds(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("the site's packages are not here: make docs")
    command = [str(PYTHON), "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = {
        path.relative_to(tmp_path).as_posix(): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")
    }
    for name, page in pages.items():
        loaded = re.findall(r"<(?:script|link|img|source|iframe)\b[^>]*?\b(?:src|href|srcset)=\"?([^\s\">]+)", page)
        assert not [address for address in loaded if address.startswith(("http:", "https:", "//"))], name
    assert 'id="prr_plugins.common.bridge.TemplateBridge.extend"' in pages["reference/bridge.html"]
    assert "<code>&lt;|observation|&gt;</code>" in pages["refusals.html"]
    assert "contributing.html" in pages["index.html"]
