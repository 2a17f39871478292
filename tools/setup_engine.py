"""Set up one engine for development, tests and demos: `python tools/setup_engine.py vllm` (or `sglang`).

Two environments, both made of pinned packages and built only when something they are made of has changed:

- the *engine*: torch, the engine and the test tools (about 2 GB, a minute or two). It lies in the cache, named after a
  hash of its lock files, and any number of checkouts share it.
- the *overlay* `.venv/<engine>`: a small virtual environment of this checkout that sees the engine's packages and, in
  front of them, this checkout's own distributions as editable installs. A shared engine never points into a checkout.

The cache is `$PRR_CACHE`, else `.cache/` in the checkout. An environment counts only once its stamp is written, which
is the last step; one that an interrupted run left behind is removed and built again. Builders wait for one another.

Prints the path of the overlay's python, and the progress on stderr. Only the standard library is used.

`PRR_TORCH` holds pip's arguments for torch (default: `torch==2.13.0` from wherever pip is configured to look). On a
machine whose index offers the CUDA build, name PyTorch's own CPU index there to save several gigabytes.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ROOT / "tools" / "engines"
TORCH = os.environ.get("PRR_TORCH", "torch==2.13.0")
SETUPTOOLS = "setuptools==84.2.1"
# warnings about an index or the pip version are noise here; a failing step still prints its errors
PIP_INSTALL = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")


@dataclass(frozen=True)
class Engine:
    """What makes up one engine.

    locks: pip requirement files under tools/engines, installed in this order with --no-deps after torch.
    distributions: folders installed into the overlay, editable.
    metadata: folders of distributions without code, installed into the overlay.
    torch: whether it needs torch.
    """

    locks: tuple[str, ...]
    distributions: tuple[str, ...] = (".", "testing")
    metadata: tuple[str, ...] = ()
    torch: bool = True


KNOWN = {
    "vllm": Engine(locks=("vllm.lock", "test.lock"), metadata=("tools/engines/vllm-distribution",)),
    "sglang": Engine(locks=("sglang.lock", "test.lock")),
    "fuzz": Engine(locks=("fuzz.lock",), torch=False),
    "clients": Engine(locks=("clients.lock",), distributions=(), torch=False),
    "docs": Engine(locks=("docs.lock",), distributions=(), torch=False),
}


def cache_dir() -> Path:
    """The cache shared by checkouts: `$PRR_CACHE`, else `.cache` in this checkout."""
    configured = os.environ.get("PRR_CACHE")
    return Path(configured).expanduser().resolve() if configured else ROOT / ".cache"


def digest(parts: Sequence[bytes]) -> str:
    """A short name for what an environment is made of."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:12]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    """Run a step with its output on stderr; a failing step ends the set-up with the command it was."""
    line = [str(part) for part in command]
    done = subprocess.run(line, stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"setup: this step failed (exit {done.returncode}): {shlex.join(line)}")


@contextmanager
def exclusive(lock_file: Path) -> Iterator[None]:
    """Let one builder in at a time; the lock goes with the process, however it ends."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(directory: Path, stamp: str, build: Callable[[Path], None]) -> None:
    """Make `directory` whole: nothing to do when its stamp fits, else build it from scratch and stamp it last."""
    stamp_file = directory / ".stamp"
    if stamp_file.is_file() and stamp_file.read_text() == stamp:
        return
    with exclusive(directory.with_name(directory.name + ".lock")):
        if stamp_file.is_file() and stamp_file.read_text() == stamp:
            return
        shutil.rmtree(directory, ignore_errors=True)
        build(directory)
        stamp_file.write_text(stamp)


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))


def build_engine(directory: Path, engine: Engine) -> None:
    """Torch by itself first, so that nothing later can pull another build of it; then the locks as they are."""
    say(f"setup: building {directory}{' (about 2 GB, once)' if engine.torch else ''}")
    try:
        venv.create(directory, with_pip=True, symlinks=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit("setup: python cannot create virtual environments here; install python3-venv") from error
    pip = (directory / "bin" / "python", *PIP_INSTALL)
    torch = shlex.split(TORCH) if engine.torch else []
    say(f"setup: {' '.join(torch or [SETUPTOOLS])}")
    run(*pip, SETUPTOOLS, *torch)
    for lock in engine.locks:
        say(f"setup: {lock}")
        run(*pip, "--no-deps", "--only-binary=:all:", "-r", ENGINES / lock)


def build_overlay(directory: Path, engine_directory: Path, engine: Engine) -> None:
    """An environment without pip of its own: the engine's pip installs this checkout's distributions into it."""
    say(f"setup: building the overlay in {directory}")
    venv.create(directory, with_pip=False, symlinks=True)
    # addsitedir, not a bare path: the .pth files of the engine's own site-packages must count too
    behind = f"import site; site.addsitedir({str(site_packages(engine_directory))!r})\n"
    (site_packages(directory) / "engine.pth").write_text(behind)
    # the engine's site-packages are visible but not ours to change: put a copy into the overlay, uninstall nothing
    own = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--prefix", directory)
    pip = (directory / "bin" / "python", *PIP_INSTALL, *own)
    if engine.metadata:
        run(*pip, *(ROOT / folder for folder in engine.metadata))
    if engine.distributions:
        run(*pip, *(argument for folder in engine.distributions for argument in ("-e", ROOT / folder)))


def set_up(name: str) -> Path:
    """Bring engine and overlay up to date; the overlay's python."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what a user with an older python meets first
        raise SystemExit(f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]} ({sys.executable})")
    engine = KNOWN[name]
    python_tag = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    locks = [(ENGINES / lock).read_bytes() for lock in engine.locks]
    engine_stamp = digest([b"engine 1", python_tag, TORCH.encode(), SETUPTOOLS.encode(), *locks])
    engine_directory = cache_dir() / f"{name}-{engine_stamp}"
    ensure(engine_directory, engine_stamp, lambda directory: build_engine(directory, engine))

    projects = [(ROOT / folder / "pyproject.toml").read_bytes() for folder in engine.distributions + engine.metadata]
    overlay = ROOT / ".venv" / name
    overlay_stamp = digest([b"overlay 1", str(ROOT).encode(), str(engine_directory).encode(), *projects])
    ensure(overlay, overlay_stamp, lambda directory: build_overlay(directory, engine_directory, engine))
    return overlay / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description="Set up an engine for development, tests and demos.")
    parser.add_argument("engine", choices=sorted(KNOWN), nargs="?", default="vllm")
    print(set_up(parser.parse_args().engine))


if __name__ == "__main__":
    main()
