"""Which store the settings name, and what is said where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.open_store import open_store
from rsnotify_hub.store import providers

URL = "nats://127.0.0.1:4222"
INSTALL = r"a store in NATS needs another package: pip install 'rsnotify\[nats\]'"

#: A hub without the extension, of which nothing can be imported.
WITHOUT = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("nats", "rsnotify_jetstream"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

sys.meta_path.insert(0, Refuses())
import asyncio
from datetime import UTC, datetime
import rsnotify_hub.application
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.open_store import open_store

async def main():
    configuration = load_configuration(None, data=sys.argv[1])
    async with open_store(configuration, lambda: datetime.now(UTC), "") as opened:
        await opened.store.check()
        print(opened.folder)

asyncio.run(main())
"""


def test_a_hub_on_sqlite_imports_neither_the_extension_nor_nats(tmp_path: Path):
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT, tmp_path], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == f"{tmp_path}\n"


def test_without_the_extension_one_sentence_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(providers, "store_providers", dict)
    file = tmp_path / "hub.toml"
    # Without the extension the second setting is unknown, which would be no help.
    file.write_text(f'port = 0\nstore = "{URL}"\nstore_unknown = "file"\n')
    with pytest.raises(ConfigurationError, match=f"line 2.*store: {INSTALL}"):
        load_configuration(str(file))


async def test_without_nats_one_sentence_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigurationError, match=f"^{INSTALL}$"):
        async with open_store(load_configuration(None, store=URL), lambda: datetime.now(UTC), ""):
            pass


@pytest.mark.parametrize("url", ["redis://me:c@nary@host", "me:c@nary@host", ""])
def test_a_url_of_no_store_is_a_clear_error_without_the_password(url: str):
    with pytest.raises(ConfigurationError, match="write it as nats://host:port") as raised:
        load_configuration(None, store=url)
    assert "nary" not in str(raised.value)


@pytest.mark.parametrize("name", ["password_file", "credentials", "nkey", "ca", "key"])
def test_a_login_needs_a_store(name: str):
    option = f"--store-{name.replace('_', '-')}"
    with pytest.raises(ConfigurationError, match=f"{option}: this needs store"):
        load_configuration(None, **{f"store_{name}": "file"})


def test_a_login_is_read_from_files(tmp_path: Path):
    file = tmp_path / "password"
    file.write_text("c@nary\n")
    loaded = load_configuration(None, store=URL, store_password_file=str(file)).store
    assert loaded is not None
    assert loaded.nats().password == "c@nary"  # type: ignore[attr-defined]
    assert "nary" not in repr(loaded)
    with pytest.raises(ConfigurationError, match=r"store: .*must be 1, 3 or 5"):
        load_configuration(None, store=f"{URL}?replicas=2")
