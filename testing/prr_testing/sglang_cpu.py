"""Lets SGLang be imported and served on a machine without a GPU: `python -m prr_testing.sglang_cpu MODULE ARGUMENT...`.

SGLang imports three packages of GPU code at module level, `triton`, `sgl_kernel` and `torchvision`, though little of
them is called on a CPU. Importing this module puts stand-ins for those that are not installed: what is only imported,
subclassed or used as a decorator works, the one function that the torch-native path calls is written out below, and
calling anything else raises. Nothing of SGLang itself is changed.

Run as a program it installs the stand-ins and runs the module in this process. The engine's own processes are spawned,
import the program's main module again, which is this one, and so have the stand-ins before they import anything else.
"""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.util
import logging
import os
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

VERSIONS = {"triton": "3.4.0", "sgl_kernel": "0.4.10", "torchvision": "0.28.0"}


class _Class:
    """A class of a missing package: can be subclassed, made and tested for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Function:
    """A function or namespace of a missing package: a decorator with and without arguments; not called for a result."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made_up(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return _decorator


def _decorator(decorated: Any) -> Any:
    if not callable(decorated):
        raise NotImplementedError("this needs a GPU package that is not installed")
    return decorated


def _made_up(path: str) -> Any:
    name = path.rpartition(".")[2]
    return type(name, (_Class,), {}) if name[:1].isupper() else _Function(path)


class _StandIn(types.ModuleType):
    """A module that has every attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = VERSIONS.get(name.partition(".")[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _OWN.get((self.__name__, name)) or _made_up(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder:
    """Imports a stand-in for every module below the given packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


def _assign_req_to_token_pool(
    requests: Any, request_to_token: Any, starts: Any, ends: Any, locations: Any, pool_length: int
) -> None:
    """Note for each request where its tokens `[start, end)` lie in the KV pool; `locations` holds them in a row."""
    taken = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        request_to_token[request, start:end] = locations[taken : taken + count].to(request_to_token.dtype)
        taken += count


_OWN: dict[tuple[str, str], Any] = {
    ("sgl_kernel", "assign_req_to_token_pool_cpu"): _assign_req_to_token_pool,
    ("triton", "cdiv"): lambda a, b: -(-a // b),
    ("triton.language", "constexpr"): lambda value: value,
    ("triton", "next_power_of_2"): lambda n: 1 << max(n - 1, 0).bit_length(),
    ("torchvision.transforms", "InterpolationMode"): _InterpolationMode,
    ("torchvision.transforms.functional", "InterpolationMode"): _InterpolationMode,
}


def install() -> None:
    """Stand in for what is not installed. Idempotent."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    missing = [package for package in VERSIONS if importlib.util.find_spec(package) is None]
    if not missing:
        return
    # transformers decides by find_spec whether it may use these; it must not, so let it look before there is something
    import transformers.utils.import_utils as seen

    for package in missing:
        getattr(seen, f"is_{package}_available", lambda: False)()
    sys.meta_path.append(_Finder(missing))


install()

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)  # SGLang loads plugins, and says so, before it sets its own logging up
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
