"""docs/mqtt.md as its readers use it: every command, at a broker with TLS, passwords and ACL."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rsnotify.runtime.mqtt_broker import channel_topic
from tests.certificates import Authority
from tests.end_to_end.page_place import PagePlace
from tests.mosquitto import Mosquitto
from tests.reader import ROOT, blocks

PAGE = "docs/mqtt.md"
DIGEST = "54d306916666ab3e3c34bfb25387c3de"
PASSWORDS = {
    "hub": "the hub's password",
    "source": "the Source's password",
    "subscriber": "the subscribers' password",
}


def command(number: int) -> str:
    return blocks(PAGE, "sh")[number].replace("\\\n", " ")


class Place(PagePlace):
    """A folder with what the page speaks of, a broker, and the programs that run there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        authority = Authority(folder, "ca")
        certificate, key = authority.certificate("broker.example")
        (acl,) = [block for block in blocks(PAGE, "text") if block.startswith("user hub\n")]
        digest = channel_topic(self.base + "channel.xml", "")
        self.broker = Mosquitto(
            folder / "broker",
            users=PASSWORDS,
            acl=acl.replace(DIGEST, digest),
            settings=f"cafile {authority.file}\ncertfile {certificate}\nkeyfile {key}",
        )

    def adapt(self, text: str) -> str:
        broker = self.broker.url.replace("mqtt:", "mqtts:")
        return (
            text.replace("https://source.example/data/", self.base)
            .replace("https://hub.example", f"http://127.0.0.1:{self.hub_port}")
            .replace("mqtts://broker.example", broker)
        )

    def rsnotify(self, line: str, user: str, **environ: str):  # type: ignore[no-untyped-def]
        """Run a command of the page, with the password of a user."""
        name, *arguments = shlex.split(self.adapt(line))
        assert name == "rsnotify"
        if "--via websocket" not in line:
            environ |= {f"RSNOTIFY_{arguments[0].upper()}_MQTT_PASSWORD": PASSWORDS[user]}
        if arguments[0] == "source":
            environ["RSNOTIFY_SOURCE_PORT"] = str(self.port)
        if arguments[0] == "follow":
            environ["RSNOTIFY_FOLLOW_POLL"] = "600"  # so that polling brings nothing
        return self.run(sys.executable, "-m", "rsnotify", *arguments, **environ)

    async def arrives(self, content: str) -> None:
        await super().arrives("first " + content)  # which the start may bring
        await super().arrives(content)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    async with place.broker:
        yield place


async def test_a_source_and_a_destination_need_a_broker_and_no_hub(place: Place):
    environ = {
        "RSNOTIFY_FOLLOW_MQTT_URL": place.adapt("mqtts://broker.example"),
        "RSNOTIFY_FOLLOW_MQTT_USER": "subscriber",
        "RSNOTIFY_FOLLOW_MQTT_CA": "ca.pem",
    }
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.rsnotify(command(0), "source"))
        async with place.rsnotify(command(1), "subscriber", **environ):
            await place.arrives("heard of through the broker\n")
        async with place.rsnotify(command(2), "subscriber"):
            await place.arrives("in a session\n")
        (program,) = blocks(PAGE, "python")
        async with place.run(sys.executable, "-c", place.adapt(program)):
            await place.arrives("by the library\n")


async def test_a_source_reaches_everybody_through_the_inbox_of_a_hub(place: Place):
    (settings,) = blocks(PAGE, "toml")
    settings += (
        f'mqtt_ca = "ca.pem"\nmqtt_channels = ["{place.base}"]\nport = {place.hub_port}\n'
        'data = "hub"\nallow_private_addresses = true\n'
    )
    (place.folder / "mqtt.password").write_text(PASSWORDS["hub"] + "\n")
    (place.folder / "hub.toml").write_text(place.adapt(settings))
    (inbox,) = re.findall(
        r"`--hub (mqtts://broker.example/rsnotify-in/)`", (ROOT / PAGE).read_text()
    )
    (ways,) = re.findall(r"`(--advertise \S+ --advertise \S+)`", (ROOT / PAGE).read_text())
    source = command(0).replace("mqtts://broker.example", inbox) + " " + ways
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.rsnotify("rsnotify hub --config hub.toml", "hub"))
        await stack.enter_async_context(place.rsnotify(source, "source"))
        async with place.rsnotify(command(2), "subscriber"):
            await place.arrives("through broker, hub and broker\n")
        websocket = "rsnotify follow https://source.example/data/ mirror --via websocket"
        async with place.rsnotify(websocket, "subscriber"):
            await place.arrives("through broker and hub\n")
