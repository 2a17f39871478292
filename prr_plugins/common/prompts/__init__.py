"""The next prompt of a conversation: spliced, trimmed to fit, or a named reason why the engine is to render it.

Promise: nothing here raises into a request; every prompt fits the room it was given. Imports `bridge`, `matching`,
`store` and the ground.

- `splicer`: plans prompts and records turns; `plan`: what it says of a request.
- `budget`: which messages go when a conversation does not fit; `overflow`: the prompt without them.
- `assembler`: the same for who runs the model himself; `cleaning`, `anthropic`: other conversations brought into shape.
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
