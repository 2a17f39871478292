"""What the plugins of both engines share; the engine's own facts are handed in.

Promise: imports no engine, and of the rooms below it whatever it needs. Nothing is imported here: an engine's processes
load only what they use.

- `flags`: what the parser flags choose; `startup`: what must be right before a server starts, and the start line.
- `hooks`: the table of places where a plugin hangs on its engine. `doctor`: what `prr doctor` says.
- `runtime`: what one API process holds; `splice_switch`: the mode of a running server; `admin`: its HTTP routes.
- `request_turn`: one request on its way; `request_fields`: the request fields of ours.
- `guarded_parser`: a completion parsed without a fault reaching the client; `sent_message`: what the client holds.
- `prometheus`: counters exported.
"""
