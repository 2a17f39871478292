"""Everything that knows no engine: imports neither vllm, sglang nor torch.

Rooms, from the ground up; each imports only rooms below it (pyproject.toml, `[tool.importlinter]`):

- `settings`, `metrics`, `messages`, `canonical_json`, `prefix`, `faults`: the ground. Files, not rooms; they import
  nothing of ours.
- `parsing/`: a completion in, reasoning, content and tool calls out. Stands alone.
- `bridge/`: what follows a completion in the next prompt, learnt from the chat template. Stands alone.
- `store/`: finished turns, in memory or in Redis.
- `matching/`: which stored turn a history goes on from.
- `prompts/`: the next prompt of a conversation: spliced, or trimmed to fit, or a reason why not.
- `serving/`: what both engine plugins share: hook table, start-up checks, doctor, metrics, run-time switch.

`assembly`, `formats`, `huggingface` and `machine` only keep the import paths that pages named before there were rooms.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prr_plugins.common.bridge import TemplateBridge
    from prr_plugins.common.parsing import ParsedCompletion, StreamParser, parse
    from prr_plugins.common.store import TurnStore

__all__ = ["ParsedCompletion", "StreamParser", "TemplateBridge", "TurnStore", "parse"]

# Loaded when first asked for: a parser needs no bridge, a bridge no parser.
_ROOMS = {
    "ParsedCompletion": "parsing",
    "StreamParser": "parsing",
    "TemplateBridge": "bridge",
    "TurnStore": "store",
    "parse": "parsing",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
