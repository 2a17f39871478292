"""Real client packages in a tool loop with a server: `python clients.py CLIENT < job.json`.

Runs alone in the environment of the client packages (tools/engines/clients.lock), without this project's. A client is
used as its documentation shows: what it returns is appended to its history as it is, and nothing but its base URL is
set. What a test adds to the requests and sees of the responses passes through `wire.Wire`, which that URL leads to.

job: base_url (without /v1), model, stream, tools (OpenAI's shape), question and follow_up (texts), turns (a number).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]


def openai_chat(job: Job) -> None:
    from openai import OpenAI
    from openai.lib.streaming.chat import ChatCompletionStreamState

    client = OpenAI(base_url=f"{job['base_url']}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": job["question"]}]

    def ask() -> Any:
        made = {"model": job["model"], "messages": messages, "tools": job["tools"]}
        if not job["stream"]:
            return client.chat.completions.create(**made).choices[0].message
        state: Any = ChatCompletionStreamState()
        for chunk in client.chat.completions.create(stream=True, **made):
            state.handle_chunk(chunk)
        return state.get_final_completion().choices[0].message

    for message in _turns(job, ask, messages.append):
        calls = message.tool_calls or []
        messages.extend({"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls)
        if not calls:
            messages.append({"role": "user", "content": job["follow_up"]})


def openai_responses(job: Job) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{job['base_url']}/v1", api_key="none", max_retries=0)
    items: list[Any] = [{"role": "user", "content": job["question"]}]
    tools = [{"type": "function", **tool["function"]} for tool in job["tools"]]

    def ask() -> Any:
        made: dict[str, Any] = {"model": job["model"], "input": items, "tools": tools}
        if not job["stream"]:
            return client.responses.create(**made).output
        return next(
            event.response.output
            for event in client.responses.create(stream=True, **made)
            if event.type == "response.completed"
        )

    for output in _turns(job, ask, items.extend):
        calls = [item for item in output if item.type == "function_call"]
        items.extend({"type": "function_call_output", "call_id": call.call_id, "output": "done"} for call in calls)
        if not calls:
            items.append({"role": "user", "content": job["follow_up"]})


def anthropic(job: Job) -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=job["base_url"], api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": job["question"]}]
    tools: list[Any] = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in job["tools"]
    ]

    def ask() -> Any:
        made: dict[str, Any] = {"model": job["model"], "messages": messages, "tools": tools, "max_tokens": 500}
        if not job["stream"]:
            return client.messages.create(**made)
        with client.messages.stream(**made) as stream:
            return stream.get_final_message()

    def append(message: Any) -> None:
        messages.append({"role": "assistant", "content": message.content})

    for message in _turns(job, ask, append):
        calls = [block for block in message.content if block.type == "tool_use"]
        content: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "done"} for call in calls]
        messages.append({"role": "user", "content": content or job["follow_up"]})


def langchain(job: Job) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{job['base_url']}/v1", api_key="none", model=job["model"], max_retries=0)
    bound = model.bind_tools(job["tools"])
    messages: list[Any] = [HumanMessage(job["question"])]

    def ask() -> Any:
        if not job["stream"]:
            return bound.invoke(messages)
        whole: Any = None
        for chunk in bound.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    for message in _turns(job, ask, messages.append):
        messages.extend(ToolMessage("done", tool_call_id=call["id"]) for call in message.tool_calls)
        if not message.tool_calls:
            messages.append(HumanMessage(job["follow_up"]))


def litellm(job: Job) -> None:
    import litellm as lite

    messages: list[Any] = [{"role": "user", "content": job["question"]}]

    def ask() -> Any:
        made: dict[str, Any] = {
            "model": f"hosted_vllm/{job['model']}", "api_base": f"{job['base_url']}/v1", "api_key": "none",
            "messages": messages, "tools": job["tools"], "num_retries": 0,
        }  # fmt: skip
        if not job["stream"]:
            return lite.completion(**made).choices[0].message
        return lite.stream_chunk_builder(list(lite.completion(stream=True, **made))).choices[0].message

    for message in _turns(job, ask, messages.append):
        calls = message.tool_calls or []
        messages.extend({"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls)
        if not calls:
            messages.append({"role": "user", "content": job["follow_up"]})


def _turns(job: Job, ask: Callable[[], Any], append: Callable[[Any], object]) -> Any:
    for _ in range(job["turns"]):
        answer = ask()
        append(answer)
        yield answer


CLIENTS: dict[str, Callable[[Job], None]] = {
    "openai": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "langchain": langchain,
    "litellm": litellm,
}


if __name__ == "__main__":
    CLIENTS[sys.argv[1]](json.load(sys.stdin))
