"""`python -m prr_plugins.cli` is `prr`."""

from prr_plugins.cli import main

main()
