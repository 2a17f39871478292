"""The SGLang plugin: `--tool-call-parser prr_*`, `--reasoning-parser prr_*`, and spliced prompts for their chats.

It only translates between SGLang's types and `prr_plugins.common`; it knows no model format. Rooms:

- `hooks`: every place where it touches SGLang, in one table, checked at start.
- `detectors`: the pair of classes behind each name.
- `serving`: follows a chat request: splice, capture, what the client gets to see; `output`: one completion of it.
- `runtime`: what one API process holds (store, splicer, counters).
- `admin`: changing the mode at run time.
- `startup`: what must be right before a server starts, and the one line that says what is active; `worker`: further API
  processes.

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
