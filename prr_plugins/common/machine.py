"""The import path of before, kept for who uses it: these names are those of `parsing`."""

from prr_plugins.common.parsing import Delta, Policy, StreamParser, parse

__all__ = ["Delta", "Policy", "StreamParser", "parse"]
