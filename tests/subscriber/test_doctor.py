"""`rsnotify doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rsnotify.runtime.command_line import application
from rsnotify_validation.doctor import (
    Check,
    Level,
    check_packages,
    check_port,
    check_space,
    check_year,
    clock_verdict,
    examine,
    flush_verdict,
)
from tests.subscriber.source import SmallSource, body, page, status

HERE = Path()
OK, WARNING, FAILED = Level


@pytest.mark.parametrize(
    ("check", "level", "said"),
    [
        (flush_verdict(HERE, 0.01), WARNING, "it is in memory, or ignores flushes"),
        (flush_verdict(HERE, 0.5), OK, "0.50 ms: fast"),
        (flush_verdict(HERE, 9.0), OK, "9.00 ms: normal"),
        (flush_verdict(HERE, 80.0), WARNING, "80.00 ms: slow"),
        (check_space(HERE, 10**8 - 1), FAILED, "100.0 MB free"),
        (check_space(HERE, 5 * 10**8), WARNING, "500.0 MB free"),
        (check_space(HERE, 10**10), OK, "10.0 GB free"),
        (clock_verdict(-4.0, 1.0), OK, "agrees"),
        (clock_verdict(-8.0, 9.0), OK, "agrees"),
        (clock_verdict(42.0, 1.0), WARNING, "42 s ahead of the server's"),
        (clock_verdict(-3600.0, 1.0), FAILED, "3,600 s behind the server's"),
        (check_year(1970), FAILED, "the year 1970"),
        (check_year(2030), OK, "the year 2030"),
    ],
)
def test_each_measurement_has_a_verdict(check: Check, level: Level, said: str) -> None:
    assert check.level is level
    assert said in check.found
    assert bool(check.remedy) == (level is not OK)


def test_installed_packages_are_compared_with_the_required_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check_packages().level is OK
    required = [
        "aiohttp>=3.12",
        "lxml>=999",
        "paho-mqtt<1,>=0.1",
        "no-such>=1",
        "x>=1; extra == 'x'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    check = check_packages()
    assert check.level is FAILED
    for said in ("lxml 6", ">=999", "is not <1", "no-such is not installed"):
        assert said in check.found
    assert "aiohttp" not in check.found


def test_the_extras_are_named_whose_packages_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    required = [
        "aiohttp>=3.12",
        "lxml>=1; extra == 'a'",
        "msgspec>=0; extra == 'b'",
        "no-such>=1; extra == 'b'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    assert check_packages().found == "all 1 required; extras: a"
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required[:1])
    assert check_packages().found == "all 1 required; extras: none"


def test_a_port_in_use_is_only_a_failure_if_it_was_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert check_port(port, WARNING).level is WARNING
        arguments = ["doctor", "--port", str(port), "--folder", str(tmp_path)]
        shown = CliRunner().invoke(application(), arguments)
        facts = json.loads(CliRunner().invoke(application(), [*arguments, "--json"]).stdout)
    assert shown.exit_code == 1
    assert f"port {port}: another program uses it; stop the process that uses it" in shown.stdout
    assert facts["passed"] is False
    assert [check["level"] for check in facts["checks"] if check["name"] == "port"] == ["failed"]
    assert list(tmp_path.iterdir()) == []


async def examined(url: str) -> dict[str, Check]:
    """Return the last check of each name."""
    found: dict[str, Check] = {}
    await examine(url, lambda check: found.update({check.name: check}))
    return found


async def test_a_source_is_checked_down_to_its_hubs(source: SmallSource) -> None:
    source.put("a", b"1")
    checks = await examined(source.site)
    levels = {name: check.level for name, check in checks.items()}
    assert levels.pop("push") is WARNING  # without a hub
    assert levels == {"clock": OK, "Source": OK, "documents": OK}
    assert source.url in checks["Source"].found

    ws = source.site.replace("http", "ws") + "ws"
    source.hubs = [source.site + "websub", ws, "mqtt://127.0.0.1:1/"]
    source.answers["/websub"] = status(405)
    checks = await examined(source.site)
    assert (checks["hub"].level, checks["WebSocket"].level) == (OK, FAILED)
    assert "responds with 405; it is not an rsnotify hub" in checks["hub"].found
    assert "(status 404)" in checks["WebSocket"].found
    assert checks["mqtt"].level is FAILED
    assert all("--hub" in checks[name].remedy for name in ("WebSocket", "mqtt"))
    source.answers["/.well-known/rsnotify-hub"] = body(b'{"websub": "http://h/"}')
    assert "an rsnotify hub that offers websub" in (await examined(source.site))["hub"].found


async def test_what_is_missing_is_reported_with_what_to_do(source: SmallSource) -> None:
    source.answers["/data/changelist.xml"] = status(404)
    check = (await examined(source.site))["document"]
    assert (check.level, "changelist.xml" in check.found) == (FAILED, True)
    source.describe(source.url, source.base + "other.xml")
    assert (await examined(source.site))["Source"].level is WARNING
    source.answers["/.well-known/resourcesync"] = status(404)
    source.answers["/"] = page("<html>")
    check = (await examined(source.site))["Source"]
    assert check.level is FAILED
    assert "rsnotify inspect" in check.remedy
    with socket.socket() as closed:  # bound, so that no other process listens there
        closed.bind(("127.0.0.1", 0))
        check = (await examined(f"http://127.0.0.1:{closed.getsockname()[1]}/"))["URL"]
    assert check.level is FAILED
