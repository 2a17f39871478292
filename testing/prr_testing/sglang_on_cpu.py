"""Lets SGLang 0.5.23 be imported where there is no GPU, no triton and no CPU build of torchvision.

SGLang brings stand-ins for triton, but puts them in place only on platforms that it knows; its tokenizer code imports
torchvision, whose wheel expects operators of its own C++ library. `prepare` must run before the first `import sglang`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_TRITON_PARTS = ("language", "runtime", "runtime.jit", "runtime.driver", "testing", "tools", "compiler", "backends")


def prepare() -> None:
    """Put the stand-ins in place; once is enough, more does no harm."""
    if "_sglang_stand_ins" in sys.modules:
        return
    if importlib.util.find_spec("triton") is None:
        _stand_in_for_triton()
    import torch

    with contextlib.suppress(RuntimeError):  # they are there already
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


def _stand_in_for_triton() -> None:
    spec = importlib.util.find_spec("sglang")  # finds, does not import
    if spec is None or spec.origin is None:
        raise ImportError("sglang is not installed")
    stand_ins: Any = _load("_sglang_stand_ins", Path(spec.origin).with_name("_platform_stubs.py"))
    sys.meta_path.insert(0, stand_ins._TritonFinder())
    triton = stand_ins._make_mock("triton")
    triton.__version__ = "3.0.0"
    triton.cdiv = stand_ins._cdiv
    triton.next_power_of_2 = stand_ins._next_power_of_2
    triton.Config = stand_ins._Config
    for part in _TRITON_PARTS:
        stand_ins._make_mock(f"triton.{part}")


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
