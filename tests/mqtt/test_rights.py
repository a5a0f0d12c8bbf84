"""What docs/mqtt.md says of three brokers' rights: it is the same, and what we ship."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from rsnotify.mqtt.names import channel_name

ROOT = Path(__file__).resolve().parents[2]
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
    return of_mosquitto("\n".join(re.findall(r"^    (user .*|topic .*)", PAGE, re.MULTILINE)))


def test_the_three_brokers_are_told_the_same_rights() -> None:
    rights = documented()
    assert {user for user, _, _ in rights} == {"hub", "source", "subscriber"}
    assert of_emqx() == rights
    assert of_hivemq() == rights


def test_the_rights_of_the_page_are_those_that_we_ship() -> None:
    shipped = of_mosquitto((ROOT / "hub/mosquitto/acl").read_text())
    assert shipped == {right for right in documented() if right[0] != "source"}


def test_a_source_may_write_the_name_of_its_own_channel_and_nothing_else() -> None:
    name = channel_name("https://source.example/data/channel.xml", "")
    assert {right for right in documented() if right[0] == "source"} == {
        ("source", "publish", f"rsnotify/{name}"),
        ("source", "publish", f"rsnotify-in/{name}"),
    }
