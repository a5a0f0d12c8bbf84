"""What docs/mqtt.md says works, and of three brokers it says the same rights, which we ship."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rsnotify.runtime.mqtt_broker import channel_topic
from rsnotify_hub.config.loading import load_configuration
from tests.certificates import Authority
from tests.mosquitto import Mosquitto
from tests.reader import ROOT, Reader, fences_of, lines_of

PAGE = (ROOT / "docs/mqtt.md").read_text()
#: What a user may do with which topics: publish or subscribe.
Right = tuple[str, str, str]


def of_mosquitto(text: str) -> set[Right]:
    rights, user = set(), ""
    for line in text.splitlines():
        match line.split():
            case ["user", name]:
                user = name
            case ["topic", access, topic]:
                rights.add((user, {"write": "publish", "read": "subscribe"}[access], topic))
    return rights


def of_emqx() -> set[Right]:
    [rules] = re.findall(r"^```erlang\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    *allowed, last = rules.splitlines()
    assert last == "{deny, all}."
    rule = re.compile(r'\{allow, \{username, "(\w+)"\}, (publish|subscribe), \["([^"]+)"\]\}\.')
    found = [rule.fullmatch(line) for line in allowed]
    assert all(found)
    return {(match[1], match[2], match[3]) for match in found if match}


def of_hivemq() -> set[Right]:
    [page] = re.findall(r"^```xml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    root = ElementTree.fromstring(page)
    roles = {role.findtext("id"): role.iter("permission") for role in root.iter("role")}
    return {
        (user.findtext("name", ""), permission.findtext("activity", "").lower(), topic)
        for user in root.iter("user")
        for permission in roles[user.findtext("roles/id")]
        for topic in [permission.findtext("topic", "")]
    }


def documented() -> set[Right]:
    [rules] = [body for name, body in fences_of(PAGE) if name == "text" and "user hub" in body]
    return of_mosquitto(rules)


async def test_every_command_and_program_of_the_page_works(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.certificate("localhost")
    tls = f"certfile {certificate}\nkeyfile {key}"
    async with Mosquitto(tmp_path / "mosquitto", settings=tls) as broker:
        known = {
            "https://source.example": "http://127.0.0.1:8000",
            "mqtts://broker.example": f"mqtts://localhost:{broker.port}",
        }
        # The Source names the broker, so its address is untrusted.
        trusted = {"SSL_CERT_FILE": authority.file, "RSNOTIFY_FOLLOW_ALLOW_PRIVATE_ADDRESSES": "1"}
        with Reader(tmp_path / "here", known, trusted) as reader:
            (reader.folder / "ca.pem").symlink_to(authority.file)
            await asyncio.to_thread(do_all, reader)


def do_all(reader: Reader) -> None:
    (reader.folder / "data").mkdir()
    (reader.folder / "data/one.ttl").write_text("<a> <b> <c> .\n")
    fences = fences_of(PAGE)
    for command in [line for name, body in fences if name == "sh" for line in lines_of(body)]:
        reader.start(command, re.compile("serving|, (level|in step).* push up by mqtts:"))
    [program] = [body for name, body in fences if name == "python"]
    reader.write("program.py", program.replace('"mirror"', '"other"'))
    reader.start("python program.py", (reader.folder / "other/one.ttl").exists)
    reader.end()


def test_the_page_configures_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mqtt.password").write_text("secret")
    [settings] = [body for name, body in fences_of(PAGE) if name == "toml"]
    Path("hub.toml").write_text(settings)
    assert load_configuration("hub.toml").mqtt.url == "mqtts://broker.example"


def test_the_three_brokers_are_configured_with_the_same_rights() -> None:
    rights = documented()
    assert {user for user, _, _ in rights} == {"hub", "source", "subscriber"}
    assert of_emqx() == rights
    assert of_hivemq() == rights


def test_the_rights_of_the_page_are_those_that_we_ship() -> None:
    shipped = of_mosquitto((ROOT / "hub/mosquitto/acl").read_text())
    assert shipped == {right for right in documented() if right[0] != "source"}


def test_a_source_may_write_the_name_of_its_own_channel_and_nothing_else() -> None:
    name = channel_topic("https://source.example/data/channel.xml", "")
    assert {right for right in documented() if right[0] == "source"} == {
        ("source", "publish", f"rsnotify/{name}"),
        ("source", "publish", f"rsnotify-in/{name}"),
    }
