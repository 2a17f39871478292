"""`prr`: look at completions, templates and servers from the shell. One file a command.

Every command has `--json` and the exit codes 0 (as wished), 1 (not as wished: the answer to what was asked is no) and
2 (the question was wrong: bad option, unreadable file).
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script `prr`."""
    try:
        from prr_plugins.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(f"prr: {missing.name} is not installed; run: pip install 'prr-plugins[cli]'")
    app(prog_name="prr")
