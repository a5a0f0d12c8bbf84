"""Brokers and stores that are killed: each change arrives, and the copy is in step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ejabberd import Ejabberd
from tests.mosquitto import Mosquitto
from tests.nats_servers import running_nats
from tests.prosody import DOMAIN, PASSWORDS, Prosody, XmppServer
from tests.running import LoggingServer
from tests.trials.aedes import Aedes
from tests.trials.deployment import Background, Deployment

pytestmark = pytest.mark.slow

Start = Callable[[LoggingServer], LoggingServer]


def survives_kills(trial: Deployment, server: LoggingServer, run: Background) -> None:
    trial.survives(lambda: run(server.stop(signal.SIGKILL)), lambda: run(server.start()))
    trial.ends_in_step()


def test_mosquitto_by_mqtt(tmp_path: Path, background: Background, started: Start) -> None:
    broker = Mosquitto(tmp_path / "mosquitto")
    started(broker)
    with Deployment(tmp_path / "here", f'mqtt_url = "{broker.url}"\n') as trial:
        trial.follow_by("mqtt")
        survives_kills(trial, broker, background)


def test_aedes_by_mqtt(tmp_path: Path, background: Background, started: Start) -> None:
    broker = Aedes()
    started(broker)
    settings = f'mqtt_url = "{broker.url}"\nmqtt_version = "3.1.1"\n'
    with Deployment(tmp_path / "here", settings) as trial:
        trial.follow_by("mqtt", "--mqtt-version 3.1.1")
        survives_kills(trial, broker, background)


def test_ejabberd_by_mqtt(tmp_path: Path, background: Background, started: Start) -> None:
    broker = Ejabberd(tmp_path / "ejabberd")
    started(broker)
    password = tmp_path / "password"
    password.write_text(PASSWORDS["hub"])
    settings = (
        f'mqtt_url = "{broker.mqtt_url}"\nmqtt_user = "hub@{DOMAIN}"\n'
        f'mqtt_password_file = "{password}"\n'
    )
    environment = {
        "RSNOTIFY_FOLLOW_MQTT_URL": broker.mqtt_url,
        "RSNOTIFY_FOLLOW_MQTT_USER": f"reader@{DOMAIN}",
        "RSNOTIFY_FOLLOW_MQTT_PASSWORD": PASSWORDS["reader"],
    }
    with Deployment(tmp_path / "here", settings, environment=environment) as trial:
        trial.follow_by("mqtt")
        survives_kills(trial, broker, background)


@pytest.mark.parametrize("kind", [Prosody, Ejabberd], ids=["prosody", "ejabberd"])
def test_xmpp(
    tmp_path: Path,
    background: Background,
    started: Start,
    kind: Callable[[Path], XmppServer],
) -> None:
    server = kind(tmp_path / "server")
    started(server)
    settings = "".join(server.hub_settings(tmp_path / "password"))
    environment = server.follower_environment()
    with Deployment(tmp_path / "here", settings, environment=environment) as trial:
        trial.follow_by("xmpp")
        survives_kills(trial, server, background)


def test_a_hub_on_nats(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        Deployment(tmp_path / "here", hub=f"--store {nats.url}") as trial,
    ):
        trial.follow_by("websocket")
        trial.survives(nats.stop, nats.restore)
        trial.ends_in_step()
