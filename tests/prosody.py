"""A real XMPP server with a PubSub service on loopback, which can go away and come back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority
from tests.ports import free_port
from tests.running import PATIENCE, LoggingServer

if TYPE_CHECKING:
    from rsnotify_xmpp.xmpp_service import XmppLogin

DOMAIN = "xmpp.example"
SERVICE = "pubsub.xmpp.example"
PASSWORDS = {"hub": "the hub's password", "reader": "the reader's password"}

#: The accounts of `PASSWORDS` once a server has them: to register them takes two processes.
_accounts: dict[str, bytes] = {}

_HOSTS = f"""
VirtualHost "{DOMAIN}"
Component "{SERVICE}" "pubsub"
  admins = {{ "hub@{DOMAIN}" }}
"""

#: Drops items that contain "drop-this", as a full queue or a failing link between servers would.
_DROPPING = """
module:hook("message/bare", function (event)
  local node = event.stanza:get_child("event", "http://jabber.org/protocol/pubsub#event");
  local text = node and tostring(node) or "";
  if text:find("drop-this", 1, true) then return true; end
end, 1000);
"""


def login_in_environment() -> XmppLogin:
    """Return the login in `follower_environment`, if it is that of this process."""
    from rsnotify_xmpp.xmpp_service import XmppLogin

    names = XmppLogin.__struct_fields__
    return XmppLogin(**{name: os.environ.get(_variable(name)) for name in names})


def _variable(name: str) -> str:
    return f"RSNOTIFY_FOLLOW_XMPP_{name.upper()}"


class XmppServer(LoggingServer):
    """A server with a PubSub service, where the users of `PASSWORDS` can log in."""

    port: int
    ca: str

    @property
    def url(self) -> str:
        return f"xmpp:{SERVICE}"

    def login(self, user: str, password: str | None = None) -> XmppLogin:
        from rsnotify_xmpp.xmpp_service import XmppLogin

        return XmppLogin(
            jid=f"{user}@{DOMAIN}",
            password=password or PASSWORDS[user],
            server=f"127.0.0.1:{self.port}",
            ca=self.ca,
        )

    def hub_settings(self, password: Path) -> list[str]:
        """Return lines for the settings of a hub, whose password is written into a file."""
        login = self.login("hub")
        password.write_text(f"{login.password}\n")
        names = {"url": self.url, "jid": login.jid, "server": login.server, "ca": login.ca}
        names["password_file"] = str(password)
        return [f"xmpp_{name} = {json.dumps(value)}\n" for name, value in names.items()]

    def follower_environment(self) -> dict[str, str]:
        """Return the variables that are the options of a Destination."""
        login = self.login("reader")
        return {_variable(name): getattr(login, name) for name in login.__struct_fields__}


class Prosody(XmppServer):
    """Prosody.

    Args:
        folder: Where it keeps everything.
        name: The name in its certificate, which is not to be trusted if it is another.
        hosts: The part of the configuration from the first host on.
    """

    def __init__(self, folder: Path, *, name: str = DOMAIN, hosts: str = _HOSTS) -> None:
        if shutil.which("prosody") is None:
            pytest.skip("prosody is not installed")
        self.port = free_port()
        super().__init__()
        for each in (folder, folder / "data", folder / "modules"):
            each.mkdir(parents=True, exist_ok=True)
        authority = Authority(folder, "authority")
        self.ca = authority.file
        certificate, key = authority.certificate(name)
        (folder / "modules/mod_dropping.lua").write_text(_DROPPING)
        self._configuration = folder / "prosody.cfg.lua"
        self._configuration.write_text(f"""
            daemonize = false
            run_as_root = true
            pidfile = "{folder}/prosody.pid"
            data_path = "{folder}/data"
            plugin_paths = {{ "{folder}/modules" }}
            modules_enabled = {{
              "roster", "saslauth", "tls", "disco", "ping", "posix", "dropping"
            }}
            modules_disabled = {{ "s2s" }}
            c2s_ports = {{ {self.port} }}
            c2s_interfaces = {{ "127.0.0.1" }}
            c2s_require_encryption = true
            authentication = "internal_hashed"
            storage = "internal"
            log = {{ info = "*console" }}
            ssl = {{ certificate = "{certificate}", key = "{key}" }}
            {hosts}
        """)
        accounts = folder / "data" / DOMAIN.replace(".", "%2e") / "accounts"
        if not _accounts:
            self.add_users(PASSWORDS)
            _accounts.update({file.name: file.read_bytes() for file in accounts.iterdir()})
        accounts.mkdir(parents=True, exist_ok=True)
        for name, account in _accounts.items():
            (accounts / name).write_bytes(account)

    def add_users(self, users: Mapping[str, str]) -> None:
        for user, password in users.items():
            subprocess.run(
                ["prosodyctl", "--config", self._configuration, "register", user, DOMAIN, password],
                check=True,
                capture_output=True,
                timeout=PATIENCE,
            )

    async def start(self) -> None:
        ready = "Activated service 'c2s' on"
        await self._run("prosody", "--config", self._configuration, "-F", ready=ready)
