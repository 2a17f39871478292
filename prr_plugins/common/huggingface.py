"""The import path of before, kept for who uses it: these names are those of `bridge.huggingface`."""

from prr_plugins.common.bridge.huggingface import bridge_of, encoder, renderer

__all__ = ["bridge_of", "encoder", "renderer"]
