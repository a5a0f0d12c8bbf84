"""What holds for every test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests import fork_server, reserved_names, watchdog
from tests.browser import Browser, connect
from tests.chromium import running_chromium
from tests.examples_count import examples
from tests.mosquitto import Mosquitto
from tests.ports import free_port, released
from tests.postgresql import PostgreSQL, running_postgresql
from tests.prosody import Prosody

# Every process and every hub that a test starts loads the trusted authorities; no test needs them.
os.environ["SSL_CERT_FILE"] = os.devnull
# Neither the many processes of the same few modules that tests start need to compile them each
# time, nor the workers the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Thousands of tests store something, and each would wait for a disk several times.
_MEMORY, _ENOUGH = "/dev/shm", 2_000_000_000
if os.path.isdir(_MEMORY) and shutil.disk_usage(_MEMORY).free > _ENOUGH:
    tempfile.tempdir = _MEMORY
# Where a release tool installed it, `jsonschema` imports it and builds 39 parsers, in each worker,
# for formats that no test checks.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
watchdog.start()
reserved_names.refuse()
fork_server.start()
# What a shell starts in the background may ignore interruptions, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says something of the machine, not of the code.
settings.register_profile("rsnotify", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make mutants` has to know whether a test fails, not how simple an example can be.
settings.register_profile(
    "mutants",
    settings.get_profile("rsnotify"),
    database=None,
    max_examples=examples(100),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.load_profile("rsnotify")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test where `RSNOTIFY_REQUIRE_ALL` says that everything is installed."""
    report = yield
    if report.skipped and os.environ.get("RSNOTIFY_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, though RSNOTIFY_REQUIRE_ALL=1: {report.longrepr}"
    return report


#: What takes longest begins first, so that no worker is left with it while the others are idle.
_LONG = (
    "tests/harnesses/",
    "tests/end_to_end/",
    "tests/gateway/test_processes.py",
    "tests/hub/jetstream/",
    "tests/relay/",
    "tests/interop/",
    "tests/test_roles.py",
    "tests/test_docker.py",
    "tests/demo/",
    "tests/wild/test_lost_folder.py",
    "tests/wild/test_hostile_documents.py",
    "tests/subscriber/test_processes.py",
    "tests/publisher/test_source_command.py",
    "tests/core/test_follower_",
)


#: Tests of whole systems, and samples of the harnesses.
_PROOFS = (
    "tests/harnesses/",
    "tests/end_to_end/",
    "tests/hub/jetstream/",
    "tests/hub/test_dashboard",
    "tests/interop/",
    "tests/core/test_follower_honest.py",
    "tests/gateway/test_processes.py",
    "tests/gateway/test_replay",
    "tests/test_application_servers.py",
    "tests/test_compose",
    "tests/test_docker.py",
    "tests/test_guides.py",
    "tests/test_roles.py",
    "tests/test_without_extensions.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected; what is loaded stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


#: Fewer tests than this may start no process; if one does, the fork server starts then.
_MANY = 100


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_PROOFS):
            item.add_marker(pytest.mark.proof)
    if len(items) >= _MANY:
        fork_server.prepare()
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


@pytest.fixture(autouse=True)
def ports_are_released() -> Iterator[None]:
    """Give up the ports of a test after it, and not those of what several tests share."""
    with released():
        yield


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    with running_chromium() as url:
        yield url


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with connect(chromium) as driven:
        yield driven


@pytest.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    """A broker that lets everybody do everything."""
    async with Mosquitto(tmp_path / "mosquitto") as broker:
        yield broker


@pytest.fixture
async def prosody(tmp_path: Path) -> AsyncIterator[Prosody]:
    """An XMPP server with a PubSub service, to which a hub may publish."""
    async with Prosody(tmp_path / "prosody") as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgreSQL]:
    with running_postgresql() as server:
        yield server


@pytest.fixture
def unused_tcp_port() -> int:
    """A port that stays free until the test takes it; pytest-asyncio's may be taken before."""
    return free_port()


@pytest.fixture
def postgresql(postgresql_server: PostgreSQL) -> str:
    """How to connect to an empty database."""
    return postgresql_server.database()
