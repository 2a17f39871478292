"""What the laws are tried on: soup of a format's own literals, mutated real completions, random text, and splits."""

from __future__ import annotations

from hypothesis import strategies as st

from prr_testing.corpus import Completion, completions_of
from prr_testing.laws import literals

# What stands between markers: JSON and XML parts, blanks, names, multi-byte characters, lone halves of anything.
FILLERS = (
    *'\n\t "\\{}[]():,=></x0é🙂\u2028\x00',
    *(
        "\n\n",
        "</",
        '\\"',
        "null",
        "1e5",
        "city",
        "Paris",
        "get_weather",
        "functions.get_weather:0",
        '"name"',
        '"arguments"',
    ),
    *('{"a": 1}', '{"city": "Paris"}', "{'a': True}", '{"a": '),
    '{"name": "get_weather", "arguments": {"city": "x"}}',
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "x", "parameters": {"type": "object", "properties": {}}}},
]


def soup(format: str, largest: int = 40) -> st.SearchStrategy[str]:
    """Concatenations of the format's own literals, whole and cut short, and of what stands between them."""
    own = literals(format)
    cut = st.sampled_from(own).flatmap(lambda s: st.integers(1, len(s)).map(lambda n: s[:n]))
    return st.lists(st.one_of(st.sampled_from(own), cut, st.sampled_from(FILLERS)), max_size=largest).map("".join)


@st.composite
def mutated(draw: st.DrawFn, format: str) -> tuple[Completion, str]:
    """A real completion with spans cut out, doubled, swapped or replaced, and perhaps cut short."""
    completion = draw(st.sampled_from(completions_of(format)))
    text = completion.text[:4000]
    for _ in range(draw(st.integers(0, 4))):
        a = draw(st.integers(0, len(text)))
        b = min(len(text), a + draw(st.integers(0, 60)))
        action = draw(st.sampled_from(["cut", "double", "insert", "replace", "end"]))
        if action == "cut":
            text = text[:a] + text[b:]
        elif action == "double":
            text = text[:b] + text[a:b] + text[b:]
        elif action == "end":
            text = text[:b] or text
        else:
            text = text[:a] + draw(soup(format, 4)) + text[a if action == "insert" else b :]
    return completion, text


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """`text` cut at any places."""
    cuts = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=24))) if len(text) > 1 else []
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
