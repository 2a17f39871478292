"""One request's conversation, what is known of it, and what is to be done with its prompt. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prr_plugins.common.bridge.continuation import Continuation
from prr_plugins.common.matching.find_turn import Match
from prr_plugins.common.matching.message_keys import Chain
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.store.interface import Lookup
from prr_plugins.common.store.turn import Turn

Outcome = Literal["spliced", "first_turn", "refused", "fallback", "trimmed"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat request as the template will see it.

    messages: OpenAI shape as the client sent them; never changed here.
    template_kwargs: the request's merged over the server's defaults.
    template_id: hash of the template text and the tokenizer that are used for this request.
    tenant: isolation domain (`cache_salt`, else the tenant header's value), None where there is none.
    late_system_as_user: the engine has a way of its own for a system message that the template refuses in place (vLLM's
        Anthropic route merges it into the first message, which changes all that follows); write such a message where it
        stands, in the frame of a user message.
    """

    messages: list[Message]
    tools: Tools = None
    template_kwargs: dict[str, Any] | None = None
    model: str = ""
    lora: str | None = None
    tenant: str | None = None
    template_id: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    late_system_as_user: bool = False


@dataclass(slots=True)
class Context:
    """What `plan` knows of a request and `record` needs. Opaque to the engine."""

    conversation: Conversation
    chain: Chain
    root: bytes
    answered: list[int]
    """Indices of the assistant messages."""
    lookup: Lookup | None = None
    """What to ask the store for; None where the history has no turn."""
    known: Sequence[bytes] | None = None
    """The store's answer: fingerprints of what is under the loose key. None: not asked yet."""
    match: Match | None = None
    match_ids: list[int] = field(default_factory=list)
    used: bool = False
    """The engine got a spliced prompt."""
    retained_tokens: int = 0
    continued: Continuation | None = None
    appended: tuple[list[Message], str] | None = None
    """Of a spliced prompt: all messages as rendered, and the text behind the turn."""
    whole: Chain | None = None
    """The history as the client sent it, where `conversation` lacks some of its messages (overflow.py)."""
    sibling: tuple[Turn, list[int]] | None = None
    """The first turn recorded for this request, with its prompt: with n > 1 the others share it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with one request's prompt.

    reason: "" where everything went plainly, else one of docs/refusals.md.
    prompt_ids: use these; None: the engine renders.
    kept_tokens: tokens of the previous turn (prompt and completion) that stand unchanged in `prompt_ids`.
    retained_reasoning_tokens: tokens of sampled reasoning in `prompt_ids` that the template would drop.
    observed_tokens: with mode "observe", the tokens that would have been kept.
    hides_reasoning: `prompt_ids` contain reasoning that the client never received: do not show the ids.
    dropped: indices of the client's messages that were left out to fit the window (overflow.py).
    special_texts: how often the text of a special token stands in the messages behind the last assistant message.
    error: with PRR_ON_MISS=error, the message to fail the request with; else None.
    context: opaque, for `record`; None where the turn is not to be recorded.
    """

    outcome: Outcome
    reason: str = ""
    prompt_ids: list[int] | None = None
    kept_tokens: int = 0
    retained_reasoning_tokens: int = 0
    observed_tokens: int = 0
    respelled_stop: bool = False
    hides_reasoning: bool = False
    dropped: tuple[int, ...] = ()
    special_texts: int = 0
    error: str | None = None
    context: Context | None = None

    def report(self) -> dict[str, Any]:
        """What a client is told that asks for it (`"prr": true`)."""
        told = {
            "outcome": self.outcome,
            "reason": self.reason,
            "kept_tokens": self.kept_tokens,
            "retained_reasoning_tokens": self.retained_reasoning_tokens,
        }
        return {**told, "dropped_messages": len(self.dropped)} if self.dropped else told
