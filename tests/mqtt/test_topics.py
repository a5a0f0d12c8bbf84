"""How brokers are named, and channels at them."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt_broker import channel_topic, is_broker_url, parse_broker
from rsnotify.runtime.mqtt_streams import PacketLengths, PacketTooLong

CHANNEL = "https://source.example/data/channel.xml"
DIGEST = sha256(CHANNEL.encode()).hexdigest()[:32]


def test_the_topic_of_a_channel_is_as_in_the_protocol() -> None:
    assert channel_topic(CHANNEL) == "rsnotify/54d306916666ab3e3c34bfb25387c3de"
    assert channel_topic(CHANNEL) == f"rsnotify/{DIGEST}"


@given(st.text(st.characters(codec="utf-8")))
def test_the_name_of_any_channel_is_a_plain_topic(channel: str) -> None:
    name = channel_topic(channel)
    assert len(name) == len("rsnotify/") + 32
    assert not set(name) & set("+#$")


@pytest.mark.parametrize(
    ("url", "port", "tls", "path"),
    [
        ("mqtt://broker", 1883, False, None),
        ("mqtts://broker/", 8883, True, None),
        ("mqtts://broker:1234", 1234, True, None),
        ("ws+mqtt://broker", 80, False, "/mqtt"),
        ("wss+mqtt://broker", 443, True, "/mqtt"),
        ("wss+mqtt://broker/?path=/ws", 443, True, "/ws"),
    ],
)
def test_the_scheme_determines_the_connection_to_a_broker(
    url: str, port: int, tls: bool, path: str | None
) -> None:
    broker = parse_broker(url)
    assert is_broker_url(url)
    assert (broker.host, broker.port, broker.tls, broker.path) == ("broker", port, tls, path)
    assert broker.topic(CHANNEL) == f"rsnotify/{DIGEST}"


@pytest.mark.parametrize(
    ("path", "topic"),
    [
        ("", f"rsnotify/{DIGEST}"),
        ("/", f"rsnotify/{DIGEST}"),
        ("/deep/down/", f"deep/down/{DIGEST}"),
        ("/any/name", "any/name"),
        ("/with%20space", "with space"),
    ],
)
def test_the_path_determines_the_topic(path: str, topic: str) -> None:
    assert parse_broker(f"mqtts://broker{path}").topic(CHANNEL) == topic


@pytest.mark.parametrize("path", ["", "/deep/", "/any/name", "/with%20space"])
@pytest.mark.parametrize("root", ["mqtt://broker:1", "wss+mqtt://[::1]"])
def test_a_url_with_the_topic_in_it_leads_to_the_same(root: str, path: str) -> None:
    broker = parse_broker(root + path)
    named = parse_broker(broker.url_for(CHANNEL))
    assert named.topic("any other channel") == broker.topic(CHANNEL)
    assert (named.host, named.port, named.path) == (broker.host, broker.port, broker.path)


def test_the_path_of_a_websocket_stays_in_a_url_with_the_topic() -> None:
    url = parse_broker("ws+mqtt://broker?path=/ws").url_for(CHANNEL)
    assert url == f"ws+mqtt://broker/rsnotify/{DIGEST}?path=/ws"
    assert parse_broker(url).path == "/ws"


@pytest.mark.parametrize(
    "url",
    [
        "http://broker",
        "mqtt:broker",
        "mqtt://",
        "mqtt://broker:0",
        "mqtt://broker:port",
        "mqtt://broker?path=/ws",
        "mqtt://broker#part",
        "ws+mqtt://broker?path=ws",
        "ws+mqtt://broker?path=/ws&more=1",
        "mqtt://broker/wild/+",
        "mqtt://broker/wild/%23",
        "mqtt://broker/$SYS/x",
        "mqtt://broker/with%00nul",
        "mqtt://broker/" + "x" * 70_000,
    ],
)
def test_a_malformed_broker_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="broker"):
        parse_broker(url)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_broker("mqtts://user:hunter2@broker")
    assert "hunter2" not in str(error.value)


@given(st.text())
def test_any_url_is_read_or_refused(url: str) -> None:
    for text in (url, "mqtt://" + url, "wss+mqtt://broker/" + url):
        try:
            parse_broker(text).topic(CHANNEL)
        except ConfigurationError:
            continue


def packet(length: int) -> bytes:
    """A packet with its remaining length in front (MQTT 5 §1.5.5)."""
    header, left = bytearray([0x30]), length
    while True:
        left, low = divmod(left, 128)
        header.append(low | (0x80 if left else 0))
        if not left:
            return bytes(header) + b"x" * length


@given(st.lists(st.integers(0, 20_000), max_size=5), st.integers(1, 5_000))
def test_packets_pass_however_they_are_cut(lengths: list[int], step: int) -> None:
    stream = b"".join(packet(length) for length in lengths)
    framing = PacketLengths(20_000)
    for start in range(0, len(stream), step):
        framing.feed(stream[start : start + step])


@given(st.lists(st.integers(0, 100), max_size=5), st.integers(101, 300_000))
def test_a_packet_that_is_too_long_is_refused_at_its_header(lengths: list[int], long: int) -> None:
    framing = PacketLengths(100)
    framing.feed(b"".join(packet(length) for length in lengths))
    with pytest.raises(PacketTooLong):
        framing.feed(packet(long)[:5])


def test_a_length_without_end_is_refused() -> None:
    framing = PacketLengths(2**28)
    with pytest.raises(PacketTooLong):
        framing.feed(b"\x30" + b"\xff" * 4)
