"""Which stored turn a history goes on from, and whether its client may have it.

Promise: no turn is chosen unless it is the only one left that fits; what is unclear stays unspliced. Reasoning that a
client never received is given back only to a client that proves it is the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from prr_plugins.common.matching.message_keys import Link, call_ids, edited_index
from prr_plugins.common.messages import Message
from prr_plugins.common.store.interface import Store
from prr_plugins.common.store.turn import Turn

DIGEST_BYTES = 8
"""Of a message's digest, as kept in `Turn.path`."""


@dataclass(frozen=True, slots=True)
class Match:
    """The deepest stored turn of a history.

    index: of its assistant message; lineage: the stored turns its ids come from, the turn itself last.
    """

    index: int
    lineage: tuple[Turn, ...]

    @property
    def turn(self) -> Turn:
        return self.lineage[-1]

    def ids(self) -> list[int]:
        """The turn's prompt and completion."""
        return _ids(self.lineage)


def _ids(lineage: Sequence[Turn]) -> list[int]:
    ids: list[int] = []
    for turn in lineage:
        del ids[turn.start :]
        ids.extend(turn.ids)
    return ids


class Ambiguous(Exception):
    """Several stored turns fit and differ in their ids."""


def reasoning_hash(reasoning: str | None) -> bytes | None:
    """What a turn remembers of the reasoning it returned."""
    if reasoning is None or not reasoning.strip():
        return None
    return hashlib.blake2b(reasoning.strip().encode(errors="surrogatepass"), digest_size=8).digest()


def deepest(store: Store, links: Sequence[Link], turns: Sequence[tuple[int, bytes]]) -> Match | None:
    """The deepest of `turns` (message index and key of each assistant message) that is stored.

    Raises `Ambiguous` where several stored turns fit it and nothing that the client kept tells them apart.
    """
    found = store.find([key for _, key in turns])
    for place in range(len(turns) - 1, -1, -1):
        lineages = [_lineage(store, turn) for turn in found[place]]
        candidates = [lineage for lineage in lineages if lineage]
        if candidates:
            index_of = {key: index for index, key in turns[: place + 1]}
            return Match(turns[place][0], _settle(candidates, links, index_of))
    return None


def _lineage(store: Store, turn: Turn) -> tuple[Turn, ...]:
    """The turns from the first to this one; empty where one of them is gone."""
    lineage = [turn]
    while lineage[-1].parent is not None:
        parent = store.parent(lineage[-1])
        if parent is None:
            return ()
        lineage.append(parent)
    return tuple(reversed(lineage))


def _settle(candidates: list[tuple[Turn, ...]], links: Sequence[Link], index_of: dict[bytes, int]) -> tuple[Turn, ...]:
    """The one candidate that the call ids and the reasoning in the history point to, from the deepest turn up."""
    for link in (links[index] for index in sorted(index_of.values(), reverse=True)):
        if len(candidates) == 1:
            break
        at = [next((turn for turn in lineage if _is_at(turn, links, index_of, link)), None) for lineage in candidates]
        for agrees in (_same_call_ids, _same_reasoning):
            kept = [place for place, turn in enumerate(at) if turn is not None and agrees(turn, link)]
            if kept:
                candidates, at = [candidates[place] for place in kept], [at[place] for place in kept]
    if len({(lineage[-1].total, lineage[-1].completion) for lineage in candidates}) > 1:
        raise Ambiguous
    first = _ids(candidates[0]) if len(candidates) > 1 else []
    if any(_ids(lineage) != first for lineage in candidates[1:]):
        raise Ambiguous
    # Of equal ones (the choices of n > 1 may say the same) the one that asks most of its owner.
    return max(candidates, key=lambda lineage: any(turn.hidden for turn in lineage))


def _is_at(turn: Turn, links: Sequence[Link], index_of: dict[bytes, int], link: Link) -> bool:
    return any(key in index_of and links[index_of[key]] is link for key in turn.keys)


def _same_call_ids(turn: Turn, link: Link) -> bool:
    return any(link.call_ids) and turn.call_ids == link.call_ids


def _same_reasoning(turn: Turn, link: Link) -> bool:
    return turn.reasoning is not None and turn.reasoning == reasoning_hash(link.reasoning)


def hidden_without_proof(match: Match, links: Sequence[Link], turns: Sequence[tuple[int, bytes]]) -> bool:
    """Whether the turn holds reasoning that its client never got and this client cannot prove to own.

    Proof is a call id that was made up for this turn, or for one that goes on from it: nobody else has seen it. Ids
    that a model writes (`functions.bash:0`) can be guessed and prove nothing.
    """
    index_of = {key: index for index, key in turns}
    reach = match.turn.total
    for turn in reversed(match.lineage):
        sampled = turn.total - turn.completion
        index = next((index_of[key] for key in turn.keys if key in index_of), None)
        if index is not None and reach > sampled and _proves(turn, links[index]):
            return False
        if turn.hidden and reach > sampled:
            return True
        reach = min(reach, turn.start)
    return False


def hides_reasoning(match: Match) -> bool:
    """Whether the turn's ids hold reasoning that was not shown to the client."""
    reach = match.turn.total
    for turn in reversed(match.lineage):
        if turn.hidden and reach > turn.total - turn.completion:
            return True
        reach = min(reach, turn.start)
    return False


def _proves(turn: Turn, link: Link) -> bool:
    native = (*turn.native_call_ids, *(None for _ in turn.call_ids[len(turn.native_call_ids) :]))
    issued = {mine for mine, own in zip(turn.call_ids, native, strict=False) if mine is not None and own is None}
    return not issued.isdisjoint(call_id for call_id in link.call_ids if call_id is not None)


def first_edit(store: Store, match: Match, links: Sequence[Link]) -> int | None:
    """Index of the first message behind the turn that is not what stood there before; None where nothing is known."""
    edits = []
    for child in store.children(match.turn):
        path = [child.path[at : at + DIGEST_BYTES] for at in range(0, len(child.path), DIGEST_BYTES)]
        edits.append(edited_index(path, links, match.index + 1))
    return max(edits, default=None)


def with_native_ids(assistant: Message, new_messages: Sequence[Message], turn: Turn) -> tuple[Message, list[Message]]:
    """The assistant message and its tool results with the call ids that the model itself wrote, where it did."""
    calls = assistant.get("tool_calls") or []
    native = {call.get("id"): own for call, own in zip(calls, turn.native_call_ids, strict=False) if own is not None}
    if not native:
        return assistant, list(new_messages)
    renamed = {
        **assistant,
        "tool_calls": [{**call, "id": native.get(call.get("id"), call.get("id"))} for call in calls],
    }
    results = []
    for message in new_messages:
        if message.get("role") == "assistant":  # its calls may bear the same ids
            native = {call_id: own for call_id, own in native.items() if call_id not in call_ids(message)}
        elif message.get("role") == "tool" and message.get("tool_call_id") in native:
            message = {**message, "tool_call_id": native[message.get("tool_call_id")]}
        results.append(message)
    return renamed, results
