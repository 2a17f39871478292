"""What follows a completion in the next prompt, learnt from the chat template itself.

Promise: an answer is what the template would write, or there is a `Refusal`. Imports the ground (`messages`, `prefix`)
and no other room; needs a render and an encode function, no engine.

- `template_bridge`: the bridge; `continuation`: its answers.
- `template_probe`: short conversations that make a template show what it writes; `template_facts`: what was learnt.
- `turn_end`: how a turn ends; `message_bounds`: where messages begin; `token_boundary`: text encoded behind tokens.
- `special_tokens`: the text of special tokens inside messages, kept text.
- `huggingface`: a bridge out of a `transformers` tokenizer; `chat_template`: Jinja templates rendered without one.
"""

from prr_plugins.common.bridge.continuation import Continuation, Extension, Refusal, Span
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.bridge.template_probe import Render
from prr_plugins.common.messages import Message, Tools

__all__ = ["Continuation", "Extension", "Message", "Refusal", "Render", "Span", "TemplateBridge", "Tools"]
