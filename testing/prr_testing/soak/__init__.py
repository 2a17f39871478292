"""Many clients of several kinds on one real server, while its shared store fails in every way (`make soak`).

`clients` holds what they do and what they check of every answer, `faults` what is done to the store, `overhead` what
our part of a request costs; `run` puts them together and writes the figures.
"""

from .run import run

__all__ = ["run"]
