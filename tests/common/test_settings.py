"""Every setting is read, defaulted and refused as its row in the table says."""

from __future__ import annotations

from dataclasses import fields

import pytest

from prr_plugins.common.settings import SETTINGS, Settings, SettingsError


def test_the_table_and_the_fields_agree() -> None:
    defaults = Settings()
    assert {row.field for row in SETTINGS} == {f.name for f in fields(Settings)} - {"warnings"}
    assert all(getattr(defaults, row.field) == row.default for row in SETTINGS)


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"PRR_SPLICE": " ", "PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("PRR_SPLICE", "observe", "observe"),
        ("PRR_RETENTION", "ALL", "all"),
        ("PRR_STOP", "sampled", "sampled"),
        ("PRR_STORE_BYTES", "512M", 512 << 20),
        ("PRR_STORE_BYTES", "2GiB", 2 << 30),
        ("PRR_STORE_BYTES", "1000", 1000),
        ("PRR_STORE_TTL", "3600", 3600.0),
        ("PRR_STORE_TTL", "0", 0.0),
        ("PRR_STORE_TIMEOUT", "20", 0.02),
        ("PRR_STORE_PREFIX", "team-a:prr", "team-a:prr"),
        ("PRR_TENANT_HEADER", "X-Tenant", "x-tenant"),
        ("PRR_VERIFY", "0.01", 0.01),
        ("PRR_TEST", "1", True),
    ],
)
def test_values(variable: str, text: str, value: object) -> None:
    row = next(row for row in SETTINGS if row.variable == variable)
    assert getattr(Settings.from_env({variable: text}), row.field) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PRR_SPLICE", "yes"),
        ("PRR_RETENTION", "some"),
        ("PRR_STORE_BYTES", "-1"),
        ("PRR_STORE_BYTES", "lots"),
        ("PRR_STORE_TTL", "inf"),
        ("PRR_STORE_TIMEOUT", "0"),
        ("PRR_STORE_PREFIX", "{prr}"),
        ("PRR_TENANT_HEADER", "X Tenant"),
        ("PRR_VERIFY", "1.5"),
        ("PRR_FAULT", "disk"),
        ("PRR_TEST", "maybe"),
    ],
)
def test_a_bad_value_names_variable_value_and_what_is_accepted(variable: str, text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.from_env({variable: text})
    line = str(raised.value)
    accepts = next(row for row in SETTINGS if row.variable == variable).accepts
    assert variable in line
    assert repr(text) in line
    assert accepts in line
    assert "\n" not in line


def test_an_unknown_variable_is_a_warning_with_a_suggestion() -> None:
    assert Settings.from_env({"PRR_RETENTOIN": "all"}).warnings == (
        "PRR_RETENTOIN is not a setting; did you mean PRR_RETENTION?",
    )
    assert Settings.from_env({"PRR_QQQQQQQ": "1"}).warnings == ("PRR_QQQQQQQ is not a setting",)


def test_a_fault_needs_the_test_switch() -> None:
    settings = Settings.from_env({"PRR_FAULT": "bridge"})
    assert settings.fault is None
    assert settings.warnings
    assert Settings.from_env({"PRR_FAULT": "bridge", "PRR_TEST": "1"}).fault == "bridge"
