"""The vLLM plugin: `--tool-call-parser prr_*`, `--reasoning-parser prr_*`, and spliced prompts for their chats.

It only translates between vLLM's types and `prr_plugins.common`; it reads no model format, and names families only in
`guidance`. Files:

- `hooks`: every place where it touches vLLM, in one table, checked at start.
- `names`: the `prr_*` names; `standalone_parsers`: the pair of classes behind each; `parser`: the one `Parser` that
  serves a request, with `deltas` (its output as vLLM's types).
- `guidance`: vLLM's own parser of each family, whose guided decoding ours takes over.
- `turn`: one request: its prompt spliced, its completions captured, its response completed. `chat` ties it to the chat
  route; `responses`, `anthropic`, `batches` and `previews` to the others.
- `runtime`: what one API process holds; `admin`: the routes that change the mode at run time.
- `startup`: what must be right before a server starts, and the one line that says what is active.
- `doctor`: the same for `prr doctor`.

With stock parsers chosen nothing of vLLM's request path is touched (L6): `register` only adds names and two checks;
the rest is put in place when a `prr_*` parser is composed.
"""

from __future__ import annotations

import logging


def register() -> None:
    """Entry point of `vllm.general_plugins`. vLLM calls it in every process, and may do so more than once.

    vLLM does not guard plugins: what is raised here would end servers that never chose a `prr_*` parser.
    """
    try:
        from prr_plugins.vllm import hooks, names  # inside: their imports may fail on a vLLM of another shape

        names.register_names()
        hooks.install("register")
    except Exception as e:
        logging.getLogger("vllm.prr_plugins").error("prr-plugins is off: %s: %s", type(e).__name__, e)
