"""Logging in to real NATS servers, in each way that they support, and what is said if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_jetstream.nats_settings import NatsFiles, NatsSettings, parse_nats_url
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
            assert "refuses the login: check the user and password" in reason
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
        assert "refuses the login: check the user and password, or the files" in reason


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
        assert "refuses the login: check the user and password" in await refused(settings)


JWT = "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
SEED = f"-----BEGIN USER NKEY SEED-----\n{SECRET}\n------END USER NKEY SEED------\n"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("credentials", "", "{file} contains no user JWT"),
        ("credentials", "-----BEGIN NATS USER JWT-----\n", "{file} contains no user JWT"),
        ("credentials", JWT, "{file} contains no NKey"),
        ("credentials", JWT + SEED, "{file} contains no NKey"),
        ("credentials", None, "cannot read {file}"),
        ("nkey", "", "{file} contains no NKey"),
        ("nkey", SECRET, "{file} contains no NKey"),
        ("nkey", public(new_pair()), "{file} contains no NKey"),
    ],
    # The last text is another one in each process.
    ids=["empty", "half", "jwt", "both", "no file", "no seed", "text", "public"],
)
async def test_a_file_that_is_not_a_login_is_named(
    nats_server: NatsCluster, tmp_path: Path, kind: str, text: str | None, expected: str
):
    file = tmp_path / "login"
    if text is not None:
        file.write_text(text)
    reason = await refused(parse_nats_url(nats_server.url, NatsFiles(**{kind: file})))
    assert expected.format(file=file) in reason
    assert SECRET not in reason


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
            assert "refuses this hub's certificate" in reason
        assert "are not a certificate for NATS and its key" in await refused(
            settings((mine[0], theirs[1]))
        )
        untrusted = await refused(parse_nats_url(url))
        assert "has a certificate that is not trusted" in untrusted
        assert "configure the certificate of its authority" in untrusted
