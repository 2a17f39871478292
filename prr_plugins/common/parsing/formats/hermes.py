"""`prr_hermes`: Hermes 2 Pro, 3 and 4, Qwen2.5, QwQ and Qwen3 (calls as JSON in `<tool_call>`, reasoning in `<think>`).

The models' own chat templates write an assistant turn as

    <think>\\nREASONING\\n</think>\\n\\nCONTENT\\n
    <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call>\\n<tool_call>...

(the prompt may end in `<think>\\n` or in `<think>\\n\\n</think>\\n\\n`; Qwen2.5, Hermes 2 and 3 and the Instruct models
write no reasoning). The newlines around `<think>` are frames when they stand exactly so; the blanks before a call are
its frame, since models write a newline, a space or nothing there. In a JSON string no marker counts.
"""

from __future__ import annotations

from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._json_call import json_calls, json_opener
from prr_plugins.common.parsing.formats._shared import Opener, ThinkFormat

_FORMAT = ThinkFormat(
    [Opener("<tool_call>", json_opener("<tool_call>"), json_calls("</tool_call>"))],
    inside="\n",
    behind="\n\n",
    stops=("<|im_end|>",),
)

FORMAT = Format(
    name="prr_hermes",
    grammar=_FORMAT.grammar,
    markers=("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    turn_openers=("<|im_start|>",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
