"""`prr store`: look into the shared store, and delete what it holds. Reads the server's own `PRR_STORE_*` settings."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prr_plugins.cli.common import fail, print_json
from prr_plugins.common.settings import Settings, SettingsError

if TYPE_CHECKING:
    import redis

app = typer.Typer(help="The shared store that PRR_STORE_URL names.", no_args_is_help=True)

_TIMEOUT = 30.0  # seconds; nobody waits for an answer here but who typed the command
# Where an engine's adapter takes a tenant from; either may bear the name.
_KINDS = ("header", "salt", "extra_key")
_JSON = typer.Option("--json", help="Print JSON.")


@app.command("stats")
def stats(as_json: Annotated[bool, _JSON] = False) -> None:
    """Count what the store holds: turns, keys, bytes of the server's memory, tenants.

    Exit 0: done; 1: the store cannot be reached; 2: wrong settings.
    """
    settings = _settings()
    from prr_plugins.common.store import redis_admin  # needs the package that `_settings` has found

    found = _on_server(settings, lambda client: redis_admin.stats(client, settings.store_prefix))
    answer = {"turns": found.turns, "keys": found.keys, "bytes": found.bytes, "tenants": len(found.tenants)}
    if as_json:
        print_json(answer)
    else:
        for name, value in answer.items():
            typer.echo(f"{name:<8}{value}")


@app.command("purge")
def purge(
    tenant: Annotated[
        str | None, typer.Option(help="A tenant: the value of PRR_TENANT_HEADER's header, or a cache_salt.")
    ] = None,
    no_tenant: Annotated[bool, typer.Option("--no-tenant", help="What requests without a tenant left.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Everything under PRR_STORE_PREFIX.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Delete turns. A server that holds some in its memory drops them at the tenant's next request.

    Exit 0: done, also where there was nothing; 1: the store cannot be reached; 2: wrong settings or options.
    """
    if [tenant is not None, no_tenant, every].count(True) != 1:
        fail("say what to delete: one of --tenant NAME, --no-tenant and --all")
    settings = _settings()
    from prr_plugins.common.store import redis_admin  # needs the package that `_settings` has found

    prefix = settings.store_prefix

    def work(client: redis.Redis) -> int:
        if every:
            return redis_admin.purge_all(client, prefix)
        names = [None] if tenant is None else [f"{kind}:{tenant}" for kind in _KINDS]
        return sum(redis_admin.purge(client, prefix, name) for name in names)

    turns = _on_server(settings, work)
    if as_json:
        print_json({"turns": turns})
    else:
        typer.echo(f"{turns} turns deleted")


def _settings() -> Settings:
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        fail(str(error))
    if settings.store_url is None:
        fail("PRR_STORE_URL is not set: there is no shared store (turns in a server's memory go with the server)")
    if importlib.util.find_spec("redis") is None:
        fail("redis is not installed; run: pip install 'prr-plugins[redis]'")
    return settings


def _on_server(settings: Settings, work: Callable[[redis.Redis], Any]) -> Any:
    import redis

    from prr_plugins.common.store.redis_store import connect, error_kind

    try:
        return work(connect(settings, timeout=_TIMEOUT))
    except (redis.RedisError, OSError) as error:
        typer.echo(f"prr: {settings.store_url}: {error_kind(error)}: {error}", err=True)
        raise typer.Exit(1) from None
