"""The SGLang plugin: `--tool-call-parser prr_*`, `--reasoning-parser prr_*`, and spliced prompts for their chats.

It only translates between SGLang's types and `prr_plugins.common`; it reads no model format, and names families only in
`detectors`. Files:

- `hooks`: every place where it touches SGLang, in one table, checked at start.
- `detectors`: the pair of classes behind each name.
- `turn`: one chat request: its prompt spliced, its completions captured; `choice`: one completion of it. `chat` ties it
  to the chat route.
- `runtime`: what one API process holds; `admin`: the routes that change the mode at run time.
- `startup`: what must be right before a server starts, and the one line that says what is active; `worker`: further API
  processes.
- `doctor`: the same for `prr doctor`.

With stock parsers chosen nothing of SGLang's request path is touched (L6): `register` adds names and wraps the function
that tells a process its configuration; the rest is put in place when that names a `prr_*` parser.
"""

from __future__ import annotations

import logging

GROUP = "sglang.srt.plugins"


def register() -> None:
    """Entry point of `sglang.srt.plugins`. SGLang calls it once in every process, before it reads its arguments."""
    from prr_plugins.sglang import detectors, hooks

    detectors.register_names()
    hooks.install("register")
    for line in hooks.HOOKS.problems("register"):
        logging.getLogger("sglang.srt.plugins").warning("prr-plugins: %s", line)
