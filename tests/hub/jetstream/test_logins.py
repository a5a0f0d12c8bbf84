"""Logging in to real NATS servers, in each way that they support, and what is said if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_jetstream.settings import NatsFiles, NatsSettings, parse_nats_url
from tests.certificates import Authority
from tests.hub.helpers import TOPIC, Clock
from tests.hub.jetstream.nats_accounts import Operator, new_pair, public
from tests.hub.jetstream.nodes import connected, running_node
from tests.hub.storing import made
from tests.nats_servers import NatsCluster, running_nats

SECRET = "c@nary"


async def works(settings: NatsSettings, clock: Clock) -> None:
    async with running_node(settings, clock) as node:
        await node.append(TOPIC, made(0, 1))
        assert await node.kept(TOPIC) == [made(0, 1)]


async def refused(settings: NatsSettings) -> str:
    """Return the reason why a hub cannot connect."""
    with pytest.raises(ConfigurationError) as raised:
        async with connected(settings):
            pass
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return str(raised.value)


async def test_a_hub_logs_in_with_user_and_password(tmp_path: Path, clock: Clock):
    users = "authorization { user: me, password: right }"
    with running_nats(tmp_path, settings=users) as server:
        await works(parse_nats_url(server.url.replace("//", "//me:right@")), clock)
        for login in ("", f"me:{SECRET}@", "me@"):
            reason = await refused(parse_nats_url(server.url.replace("//", f"//{login}")))
            assert "refuses the login: check user and password" in reason
            assert SECRET not in reason


@pytest.mark.parametrize("end", ["", "\n"])
async def test_a_hub_logs_in_with_an_nkey(tmp_path: Path, clock: Clock, end: str):
    right, wrong = new_pair(), new_pair()
    files = {pair: tmp_path / public(pair) for pair in (right, wrong)}
    for pair, file in files.items():
        file.write_text(pair.seed.decode() + end)
    users = f"authorization {{ users: [{{ nkey: {public(right)} }}] }}"
    with running_nats(tmp_path / "nats", settings=users) as server:
        await works(parse_nats_url(server.url, NatsFiles(nkey=files[right])), clock)
        reason = await refused(parse_nats_url(server.url, NatsFiles(nkey=files[wrong])))
        assert "refuses the login: check user and password, or the files" in reason


@pytest.fixture(scope="module")
def operator() -> Operator:
    return Operator()


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory, operator: Operator) -> Iterator[NatsCluster]:
    folder = tmp_path_factory.mktemp("operated")
    with running_nats(folder, settings=operator.settings) as server:
        yield server


async def test_a_hub_logs_in_with_credentials(
    operated: NatsCluster, operator: Operator, tmp_path: Path, clock: Clock
):
    file = tmp_path / "hub.creds"
    file.write_text(operator.credentials())
    settings = parse_nats_url(operated.url, NatsFiles(credentials=file))
    await works(settings, clock)
    for wrong in (Operator().credentials(), operator.credentials(expires=1)):
        file.write_text(wrong)
        assert "refuses the login: check user and password, or the files" in await refused(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no JWT"),
        ("-----BEGIN NATS USER JWT-----\n", "has no JWT"),
        ("-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n", "has no NKey"),
        (
            "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
            f"-----BEGIN USER NKEY SEED-----\n{SECRET}\n------END USER NKEY SEED------\n",
            "has no NKey",
        ),
    ],
)
async def test_a_file_that_has_no_credentials_is_named(
    nats_server: NatsCluster, tmp_path: Path, text: str, expected: str
):
    file = tmp_path / "hub.creds"
    file.write_text(text)
    reason = await refused(parse_nats_url(nats_server.url, NatsFiles(credentials=file)))
    assert str(file) in reason
    assert expected in reason
    assert SECRET not in reason


@pytest.mark.parametrize("text", ["", SECRET, public(new_pair())], ids=["empty", "text", "public"])
async def test_a_file_that_has_no_nkey_is_named(
    nats_server: NatsCluster, tmp_path: Path, text: str
):
    file = tmp_path / "seed"
    file.write_text(text)
    reason = await refused(parse_nats_url(nats_server.url, NatsFiles(nkey=file)))
    assert f"{file} has no NKey" in reason
    assert SECRET not in reason


async def test_a_file_that_cannot_be_read_is_named(nats_server: NatsCluster, tmp_path: Path):
    files = NatsFiles(credentials=tmp_path / "hub.creds")
    reason = await refused(parse_nats_url(nats_server.url, files))
    assert f"cannot read {tmp_path / 'hub.creds'}" in reason


async def test_a_hub_logs_in_with_a_certificate(tmp_path: Path, clock: Clock):
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path, "stranger")
    certificate, key = authority.certificate("nats")
    tls = (
        f"tls {{ cert_file: '{certificate}', key_file: '{key}', ca_file: '{authority.file}', "
        "verify: true }"
    )
    mine, theirs = authority.certificate("hub"), stranger.certificate("other")
    with running_nats(tmp_path / "nats", settings=tls) as server:
        url = server.url.replace("nats:", "tls:")

        def settings(files: tuple[str, str] | None) -> NatsSettings:
            certificate, key = map(Path, files) if files else (None, None)
            ca = Path(authority.file)
            return parse_nats_url(url, NatsFiles(ca=ca, certificate=certificate, key=key))

        await works(settings(mine), clock)
        for files in (None, theirs):
            reason = await refused(settings(files))
            assert "refuses the certificate of this hub" in reason
        assert "are not a certificate for NATS and its key" in await refused(
            settings((mine[0], theirs[1]))
        )
        untrusted = await refused(parse_nats_url(url))
        assert "has a certificate that is not trusted" in untrusted
        assert "name the file with its authority" in untrusted
