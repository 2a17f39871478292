"""Everything that knows no engine: imports neither vllm, sglang nor torch.

Rooms: `reader`, `machine`, `arguments`, `formats/` parse a completion into a `completion.ParsedCompletion`; `bridge`
says what follows a completion in the next prompt; `chain`, `store`, `splice` find the turn a request goes on from.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prr_plugins.common.bridge import TemplateBridge
    from prr_plugins.common.completion import ParsedCompletion
    from prr_plugins.common.machine import StreamParser, parse
    from prr_plugins.common.store import TurnStore

__all__ = ["ParsedCompletion", "StreamParser", "TemplateBridge", "TurnStore", "parse"]

# Loaded when first asked for: a parser needs no bridge, a bridge no parser.
_HOME = {
    "ParsedCompletion": "completion",
    "StreamParser": "machine",
    "TemplateBridge": "bridge",
    "TurnStore": "store",
    "parse": "machine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
