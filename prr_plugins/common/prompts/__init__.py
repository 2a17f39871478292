"""The next prompt of a conversation: spliced, trimmed to fit, or a named reason why the engine is to render it.

Promise: `splicer` and `overflow.plan_prompt` never raise, so no request fails here; where messages may be dropped
(`PRR_OVERFLOW`), a prompt fits if what must stay does. Imports `bridge`, `matching`, `store` and the base modules.

- `splicer`: plans prompts and records turns; `plan`: what it says of a request.
- `budget`: how long a prompt may be; `dropping`: which messages go when it is longer; `overflow`: the prompt without
  them.
- `assembler`: the same for whoever runs the model without a server; `cleaning`, `anthropic`: other conversations
  brought into shape.
"""

from prr_plugins.common.prompts.assembler import Assembled, AssemblyError, PromptAssembler
from prr_plugins.common.prompts.budget import OverBudget, TokenBudget
from prr_plugins.common.prompts.cleaning import Cleaning
from prr_plugins.common.prompts.plan import Conversation, Plan
from prr_plugins.common.prompts.splicer import Splicer

__all__ = [
    "Assembled",
    "AssemblyError",
    "Cleaning",
    "Conversation",
    "OverBudget",
    "Plan",
    "PromptAssembler",
    "Splicer",
    "TokenBudget",
]
