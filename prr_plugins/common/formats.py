"""The import path of before, kept for who uses it: these names are those of `parsing`."""

from prr_plugins.common.parsing import FORMATS, Format, UnknownFormat, get_format

__all__ = ["FORMATS", "Format", "UnknownFormat", "get_format"]
