"""A Source that asks for credentials: who gets them, and who never does."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError, Unavailable, without_credentials
from rsnotify_relay import Relay
from rsnotify_subscriber import Credentials, Fleet, FollowOptions, audit
from rsnotify_subscriber.fetching.credentials import split_login
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.fleet.building import build
from rsnotify_subscriber.fleet.configuration import load
from rsnotify_validation.inspection import inspect
from rsnotify_validation.target_validation import validate_target
from tests.subscriber.destination import PATIENCE, Destination, files_of
from tests.subscriber.processes import run
from tests.subscriber.source import SmallSource, body, path_of, redirect

SECRET = "c@nary/1:2"
IN_URL = "me:c%40nary%2F1%3A2@"
BASIC = "Basic " + b64encode(f"me:{SECRET}".encode()).decode()


class LockedSource(SmallSource):
    """A Source that answers with 401 to whoever does not send the right header fields."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[str, str] = {}
        self.received: list[tuple[str, dict[str, str]]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.received.append((request.path, dict(request.headers)))
        if any(request.headers.get(name) != value for name, value in self.wanted.items()):
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})
        return await super().answer(request)

    @property
    def with_login(self) -> str:
        """The URL of the site, with the user and password in it."""
        return self.site.replace("//", f"//{IN_URL}")

    def sent(self, path: str) -> list[str | None]:
        """Return the Authorization field of each request for a path."""
        return [headers.get("Authorization") for one, headers in self.received if one == path]


@pytest.fixture
async def source() -> AsyncIterator[LockedSource]:
    async with LockedSource() as source:
        source.wanted = {"Authorization": BASIC}
        source.put("a", b"1")
        source.put("folder/b", b"2")
        yield source


@pytest.fixture
async def other() -> AsyncIterator[LockedSource]:
    """Another origin: another port of the same host."""
    async with LockedSource() as other:
        other.contents["a"] = b"1"
        yield other


@pytest.fixture(autouse=True)
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A netrc file that is not there yet."""
    file = tmp_path / "a netrc file"
    monkeypatch.setenv("NETRC", str(file))
    return file


@pytest.mark.parametrize(
    ("credentials", "wanted"),
    [
        (Credentials(login=f"me:{SECRET}"), {"Authorization": BASIC}),
        (Credentials(login="mé:ü"), {"Authorization": "Basic bcOpOsO8"}),
        (Credentials(bearer="t0ken"), {"Authorization": "Bearer t0ken"}),
        (Credentials(headers={"X-Key": "k", "Cookie": "a=b"}), {"X-Key": "k", "Cookie": "a=b"}),
        (
            Credentials(bearer="t", headers={"X-Key": "k"}),
            {"Authorization": "Bearer t", "X-Key": "k"},
        ),
    ],
)
async def test_credentials_are_sent_with_every_request(
    source: LockedSource,
    destination: Destination,
    credentials: Credentials,
    wanted: dict[str, str],
) -> None:
    source.wanted = wanted
    await destination.become_equal(source.site, credentials=credentials)
    options = FollowOptions(credentials=credentials)
    assert (await audit(source.site, destination.folder, options=options)).in_step


async def test_a_user_and_password_in_the_url_are_used_for_all_and_shown_nowhere(
    source: LockedSource, destination: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = source.with_login
    await destination.become_equal(url)
    assert (await audit(url, destination.folder)).in_step
    found = await inspect(url)
    checked = await validate_target(f"{url}.well-known/resourcesync", deep=True)
    assert source.base + "changelist.xml" in {one.name for one in checked.documents}
    await destination.catch_up(source.site, credentials=Credentials(login=f"me:{SECRET}"))
    kept = b"".join(files_of(destination.folder.with_name("mirror.rsnotify")).values())
    told = f"{found}{checked}{caplog.text}{destination.current.status}"
    for secret in (SECRET, IN_URL, BASIC.split()[1]):
        assert secret not in told
        assert secret.encode() not in kept


@pytest.mark.parametrize(
    ("login", "is_given"), [(f"me password {SECRET}", False), ("somebody password else", True)]
)
async def test_a_netrc_file_is_used_for_the_host_of_the_source_unless_credentials_are_given(
    source: LockedSource, destination: Destination, netrc: Path, login: str, is_given: bool
) -> None:
    netrc.write_text(f"machine 127.0.0.1 login {login}\n")
    await destination.become_equal(source.with_login if is_given else source.site)


@pytest.mark.parametrize("text", [f"default login me password {SECRET}\n", "machine\n", ""])
async def test_a_netrc_file_without_the_host_or_that_is_broken_is_not_used(
    source: LockedSource, destination: Destination, netrc: Path, text: str
) -> None:
    netrc.write_text(text)
    with pytest.raises(Unavailable, match="401: it requires credentials, but none were sent"):
        await destination.catch_up(source.site)
    assert source.sent("/") == [None]


async def test_credentials_that_are_refused_are_told_from_none(
    source: LockedSource, destination: Destination
) -> None:
    credentials = Credentials(login="me:wrong")
    with pytest.raises(Unavailable, match="says 401 to the credentials that were sent") as caught:
        await destination.catch_up(source.site, credentials=credentials)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("size", [1, 100_000])  # which two clients request
async def test_another_origin_gets_no_credentials(
    source: LockedSource, other: LockedSource, destination: Destination, size: int
) -> None:
    source.put("a", b"1" * size)
    other.contents["a"] = b"1" * size
    listed = source.resource_list()
    (entry,) = [each for each in listed.resources if each.uri == source.base + "a"]
    elsewhere = replace(entry, uri=other.base + "a")
    source.publish("resourcelist.xml", replace(listed, resources=(elsewhere,)))
    source.changes.clear()
    source.wanted |= {"X-Key": "k"}
    credentials = Credentials(login=f"me:{SECRET}", headers={"X-Key": "k"})
    await destination.catch_up(source.site, credentials=credentials, allow_private_addresses=True)
    ((path, headers),) = other.received
    assert path == path_of("a")
    assert not {"Authorization", "X-Key"} & headers.keys()


async def test_a_redirect_to_another_origin_gets_no_credentials_and_neither_does_one_back(
    source: LockedSource, other: LockedSource, destination: Destination
) -> None:
    source.answers[path_of("a")] = redirect(other.site + "data/a")
    other.answers[path_of("a")] = redirect(source.base + "back")
    source.answers[path_of("back")] = body(b"1")
    with pytest.raises(RsnotifyError, match="401"):
        await destination.catch_up(source.with_login, allow_private_addresses=True)
    assert {*source.sent(path_of("a"))} == {BASIC}
    assert {*other.sent(path_of("a"))} == {*source.sent(path_of("back"))} == {None}


async def test_a_redirect_within_the_origin_keeps_the_credentials(
    source: LockedSource, destination: Destination
) -> None:
    source.answers[path_of("a")] = redirect("/data/elsewhere")
    source.answers[path_of("elsewhere")] = body(b"1")
    await destination.become_equal(source.with_login)


async def test_a_hub_at_the_origin_of_the_source_gets_the_credentials_too() -> None:
    sessions = Sessions("https://me:pw@a.example/", credentials=Credentials())
    assert "Authorization" in sessions.credentials_for("wss://a.example/hub")
    for uri in ("ws://a.example/hub", "wss://a.example:8443/", "wss://b.example/", "ws://["):
        assert sessions.credentials_for(uri) == {}


@pytest.mark.parametrize(
    ("credentials", "told"),
    [
        (Credentials(login=SECRET.replace(":", "")), "write USER:PASSWORD"),
        (Credentials(bearer=f"{SECRET}\r\nX: y"), "the bearer token"),
        (Credentials(bearer=f"{SECRET} x"), "the bearer token"),
        (
            Credentials(login=f"me:{SECRET}", bearer="x"),
            "a login, a bearer token and an Authorization header",
        ),
        (Credentials(bearer="x", headers={"authorization": SECRET}), "a login, a bearer token"),
        (Credentials(headers={"X Key": SECRET}), "'X Key' is not the name of a header field"),
        (Credentials(headers={"X-Key": f"{SECRET}\nX: y"}), "the value of the header field X-Key"),
        (Credentials(headers={"range": "bytes=0-1"}), "rsnotify sets the header field range"),
        (Credentials(headers={"If-None-Match": "*"}), "rsnotify sets the header field If-None"),
    ],
)
def test_what_cannot_be_sent_is_refused_without_repeating_a_secret(
    credentials: Credentials, told: str, destination: Destination
) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        destination.subscriber("https://a.example/", credentials=credentials)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(credentials)


def test_a_password_in_a_url_is_left_out_of_messages_up_to_its_last_at_sign() -> None:
    assert without_credentials("http://me:c@nary@a.example/x@y") == "http://a.example/x@y"
    assert split_login("http://me:c@nary@a.example/x@y") == ("http://a.example/x@y", "me:c@nary")
    assert split_login("http://a.example/x@y") == ("http://a.example/x@y", None)


async def test_each_command_takes_them_as_options_or_from_the_environment(
    source: LockedSource, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.wanted = {"Authorization": "Bearer t0ken", "X-Key": "a b"}
    options = ("--bearer", "t0ken", "--header", "X-Key: a b")
    follow = ("follow", source.site, destination.folder, "--once")
    done = await run(*follow, *options)
    assert done[0] == 0, done
    monkeypatch.setenv("RSNOTIFY_HEADER", "Authorization: Bearer t0ken\nX-Key: a b\n")
    for arguments in (
        ("audit", source.site, destination.folder),
        ("inspect", source.site),
        ("validate", source.url),
    ):
        done = await run(*arguments)
        assert done[0] == 0, done
    monkeypatch.delenv("RSNOTIFY_HEADER")
    monkeypatch.setenv("RSNOTIFY_LOGIN", f"me:{SECRET}")
    source.wanted = {"Authorization": BASIC}
    done = await run(*follow)
    assert done[0] == 0, done


async def test_a_file_of_sources_has_them_for_each_source(
    source: LockedSource, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.toml"
    source.wanted |= {"X-Key": "k"}
    file.write_text(
        f'[[source]]\nname = "one"\nurl = "{source.site}"\ndest = "one"\nlogin = "me:{SECRET}"\n'
        f'header = ["X-Key: k"]\n[[source]]\nname = "two"\nurl = "{source.site}"\ndest = "two"\n'
    )
    configuration = load(file)
    assert SECRET not in repr(configuration)
    fleet = Fleet(configuration.limits)
    for one in configuration.sources:
        fleet.add(one.title, build(configuration, one, fleet.shared, None))
    async with asyncio.timeout(PATIENCE):
        await fleet.catch_up()
    assert files_of(tmp_path / "one") == source.contents
    assert "401" in str(fleet.status["two"].error)


async def test_a_relay_follows_with_them_and_does_not_publish_them(
    source: LockedSource, tmp_path: Path
) -> None:
    relay = Relay(source.with_login, tmp_path / "copy", "http://127.0.0.1:1/")
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(PATIENCE):
        await relay.subscriber.until(lambda status: status.level and status.resources == 2)
        relay.stop()
        await running
    kept = b"".join(files_of(tmp_path).values())
    assert SECRET.encode() not in kept
    assert IN_URL.encode() not in kept
