"""`prr`: look at completions, templates and servers from the shell. One file a command, and what they share.

Every command has `--json` and the exit codes 0 (as wished), 1 (not as wished: the answer to what was asked is no) and
2 (the question was wrong: bad option, unreadable file).
"""

from __future__ import annotations

import io
import sys


def main() -> None:
    """The console script `prr`."""
    try:
        from prr_plugins.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        print(f"prr: {missing.name} is not installed; run: pip install 'prr-plugins[cli]'", file=sys.stderr)
        sys.exit(2)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may be no text, a terminal may not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="prr")
