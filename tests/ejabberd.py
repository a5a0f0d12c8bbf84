"""A real ejabberd on loopback, as an XMPP server and as an MQTT broker."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.ports import free_port
from tests.prosody import DOMAIN, PASSWORDS, SERVICE, XmppServer

#: Where Debian has its modules.
_MODULES = Path("/usr/lib/x86_64-linux-gnu")
_ALL = {"#": [{"allow": "all"}]}
_REGISTER = 'ejabberd_auth:try_register(<<"{}">>, <<"{}">>, <<"{}">>)'


class Ejabberd(XmppServer):
    """ejabberd, in an Erlang node without a name, which needs no daemon beside it."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("erl") is None or not list(_MODULES.glob("ejabberd-*")):
            pytest.skip("ejabberd is missing: apt-get install ejabberd")
        super().__init__()
        self.port, self.mqtt_port = free_port(), free_port()
        folder.mkdir()
        self._folder = folder
        authority = Authority(folder, "authority")
        self.ca = authority.file
        certificate = Path(folder, "both.pem")
        certificate.write_text("".join(map(_text, authority.certificate(DOMAIN))))
        here = {"ip": "127.0.0.1"}
        clients = {"module": "ejabberd_c2s", "max_stanza_size": 10_000_000, "starttls": True}
        settings = {
            "hosts": [DOMAIN],
            "certfiles": [str(certificate)],
            "auth_method": ["internal"],
            "log_rotate_count": 0,
            "listen": [
                {**here, "port": self.port, **clients},
                {**here, "port": self.mqtt_port, "module": "mod_mqtt"},
            ],
            "modules": {
                "mod_disco": {},
                "mod_ping": {},
                "mod_mqtt": {"access_publish": _ALL, "access_subscribe": _ALL},
                "mod_pubsub": {"hosts": [SERVICE], "access_createnode": "all"},
            },
        }
        (folder / "ejabberd.yml").write_text(json.dumps(settings))

    @property
    def mqtt_url(self) -> str:
        return f"mqtt://127.0.0.1:{self.mqtt_port}"

    async def start(self) -> None:
        users = [_REGISTER.format(user, DOMAIN, word) for user, word in PASSWORDS.items()]
        ready = 'io:format("ready~n")'
        environment = {
            "EJABBERD_CONFIG_PATH": str(self._folder / "ejabberd.yml"),
            "EJABBERD_LOG_PATH": str(self._folder / "ejabberd.log"),
            "ERL_CRASH_DUMP": os.devnull,
            "ERL_LIBS": str(_MODULES),
            "HOME": str(self._folder),
            "PATH": os.environ["PATH"],
        }
        await self._run(
            *("erl", "-noinput", "-mnesia", "dir", json.dumps(str(self._folder / "spool"))),
            *("-s", "ejabberd", "-eval", f"{', '.join([*users, ready])}."),
            ready="^ready$",
            env=environment,
        )


def _text(path: str) -> str:
    return Path(path).read_text()
