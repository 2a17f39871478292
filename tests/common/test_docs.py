"""The documents name every reason that the code gives, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMON = ROOT / "prr_plugins" / "common"


def test_refusals_are_documented() -> None:
    source = "\n".join((COMMON / name).read_text() for name in ("bridge.py", "ending.py", "splice.py"))
    given = set(re.findall(r'(?:_?Refused|Refusal)\(\s*"([a-z_]+)"', source))
    given |= {f"{what}_changed" for what in ("template", "tools", "template_kwargs", "model")}
    given |= {f"error_{stage}" for stage in ("splice", "store", "bridge", "capture")}
    given |= {"edited", "unknown_turn", "ambiguous", "multimodal", "too_long", "off", "observe", "store_full"}
    text = (ROOT / "docs" / "refusals.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)(?::messages\[i\])?`", text))
    assert given <= documented
