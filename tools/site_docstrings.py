"""Docstrings as the site shows them: an extension of griffe, which reads them without importing the package.

A line of a docstring that begins with the name of a parameter or attribute and a colon explains it. On the site it is
an item of a list.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import griffe  # type: ignore[import-not-found, unused-ignore]

_EXPLAINED = re.compile(r"((?:[a-z_]\w*)(?:, [a-z_]\w*)*): (?=\S)")


class ExplainedNames(griffe.Extension):  # type: ignore[misc, unused-ignore]
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and (obj.is_class or obj.is_function):
            obj.docstring.value = listed(obj.docstring.value, _names(obj))


def _names(obj: Any) -> set[str]:
    names = {parameter.name for parameter in obj.parameters}
    return names | set(obj.members) if obj.is_class else names


def listed(docstring: str, names: Collection[str]) -> str:
    """`docstring` with each unindented line that explains some of `names` as an item of a list."""
    made: list[str] = []
    for line in docstring.splitlines():
        explained = _EXPLAINED.match(line)
        if explained and set(explained[1].split(", ")) <= set(names):
            if made and made[-1] and not made[-1].startswith(("- ", "  ")):
                made.append("")
            shown = ", ".join(f"`{name}`" for name in explained[1].split(", "))
            line = f"- {shown}: {line[explained.end() :]}"
        made.append(line)
    return "\n".join(made)
