"""A real MQTT broker on loopback, which can go away and come back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.running import LoggingServer

#: Seconds; only what hangs takes them.
PATIENCE = 60
#: Where Debian keeps servers, too.
PATH = f"{os.environ['PATH']}:/usr/sbin"


class Mosquitto(LoggingServer):
    """A broker.

    Args:
        folder: Where it keeps everything.
        users: Passwords by user; none, then everybody is let in.
        acl: Who may do what, as mosquitto's `acl_file` has it.
        settings: More lines for the listener.
        websocket: Whether it speaks MQTT over WebSocket, too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        acl: str | None = None,
        settings: str = "",
        websocket: bool = False,
    ) -> None:
        if shutil.which("mosquitto", path=PATH) is None:
            pytest.skip("mosquitto is not installed")
        self.port = free_port()
        self.websocket_port = free_port() if websocket else None
        super().__init__()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        parts = [
            f"listener {self.port} 127.0.0.1",
            settings,
            # mosquitto 2.0.11 does not start with this listener alone.
            f"listener {self.websocket_port} 127.0.0.1\nprotocol websockets" if websocket else "",
            f"allow_anonymous {'false' if users else 'true'}",
            self._passwords(users) if users else "",
            self._acl(acl) if acl is not None else "",
            f"persistence true\npersistence_location {folder}/\nautosave_interval 1",
            "autosave_on_changes true\nlog_dest stderr\nlog_type all",
            # Started by root, it would change to a user without write access here.
            "user root" if os.getuid() == 0 else "",
        ]
        (folder / "mosquitto.conf").write_text("\n".join(part for part in parts if part) + "\n")

    def _passwords(self, users: Mapping[str, str]) -> str:
        path = self._folder / "passwords"
        path.write_text("".join(f"{user}:{password}\n" for user, password in users.items()))
        path.chmod(0o600)
        subprocess.run(["mosquitto_passwd", "-U", path], check=True, env={"PATH": PATH})
        return f"password_file {path}"

    def _acl(self, acl: str) -> str:
        path = self._folder / "acl"
        path.write_text(acl)
        path.chmod(0o600)
        return f"acl_file {path}"

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    async def start(self) -> None:
        configuration = self._folder / "mosquitto.conf"
        await self._run("mosquitto", "-c", configuration, ready=" running$", env={"PATH": PATH})

    def count(self, text: str) -> int:
        """Count the lines of its log that have this text."""
        return sum(text in line for line in self.lines)

    def reload(self) -> None:
        """Make it read passwords and ACL again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)
