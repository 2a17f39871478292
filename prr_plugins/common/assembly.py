"""The import path of before, kept for who uses it: these names are those of `prompts.assembler`."""

from prr_plugins.common.prompts.assembler import (
    Assembled,
    AssemblyError,
    Cleaning,
    OverBudget,
    PromptAssembler,
    Segment,
    TokenBudget,
)

__all__ = ["Assembled", "AssemblyError", "Cleaning", "OverBudget", "PromptAssembler", "Segment", "TokenBudget"]
