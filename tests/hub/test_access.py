"""Clients behind proxies, rates, JSON Web Tokens, and grants that change while the hub runs."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify_hub.access.client_addresses import TrustedProxies, client_network
from rsnotify_hub.access.grants import JsonWebTokens
from rsnotify_hub.access.limits import RateLimiter
from rsnotify_hub.application import serve
from rsnotify_hub.config.configuration import HubConfig
from rsnotify_hub.config.loading import ConfigurationSource
from rsnotify_hub.refusals import Refusal
from tests.hub.helpers import TOPIC, Client, Clock, LogWatch, RunHub, Time, fragment
from tests.waiting import until

AUDIENCE = "https://hub.example/"
SECRET = "s" * 32
DAY = 86_400


@pytest.mark.parametrize(
    ("header", "value", "client"),
    [
        ("X-Forwarded-For", "192.0.2.1", "192.0.2.1"),
        ("X-Forwarded-For", "198.51.100.7, 192.0.2.1", "192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.1, 10.0.0.2", "192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.1:4711", "192.0.2.1"),
        ("X-Forwarded-For", "[2001:db8::1]:4711", "2001:db8::1"),
        ("X-Forwarded-For", "2001:db8::1", "2001:db8::1"),
        ("X-Forwarded-For", "10.0.0.3", "10.0.0.3"),
        ("X-Forwarded-For", "", "10.0.0.1"),
        ("X-Forwarded-For", "192.0.2.1, nonsense", "nonsense"),
        ("Forwarded", "for=192.0.2.1;proto=https", "192.0.2.1"),
        ("Forwarded", 'proto=https;For="[2001:db8::1]:4711", for=10.0.0.2', "2001:db8::1"),
        ("Forwarded", "for=192.0.2.1, for=_hidden", "_hidden"),
    ],
)
def test_the_client_named_by_a_trusted_proxy_is_used(header: str, value: str, client: str):
    proxies = TrustedProxies(["10.0.0.0/8"], header)
    assert proxies.client("10.0.0.1", [(header.lower(), value)]) == client


def test_a_forwarding_header_of_others_is_ignored():
    proxies = TrustedProxies(["10.0.0.0/8"], "X-Forwarded-For")
    assert proxies.client("192.0.2.9", [("X-Forwarded-For", "192.0.2.1")]) == "192.0.2.9"
    assert proxies.client("10.0.0.1", [("Forwarded", "for=192.0.2.1")]) == "10.0.0.1"


@given(st.lists(st.sampled_from(["10.0.0.2", "192.0.2.1", "evil", "", '"', "[", "for=x", ";"])))
def test_a_client_cannot_override_the_address_from_the_proxy(claims: list[str]):
    for header, said in (("X-Forwarded-For", "192.0.2.5"), ("Forwarded", "for=192.0.2.5")):
        proxies = TrustedProxies(["10.0.0.0/8"], header)
        fields = [(header, ", ".join(claims)), (header, said)]
        assert proxies.client("10.0.0.1", fields) == "192.0.2.5"


def test_an_ipv6_network_counts_as_one_client():
    assert (
        client_network("2001:db8::1") == client_network("2001:db8::ffff:1%eth0") == "2001:db8::/64"
    )
    assert client_network("2001:db8:0:1::1") != client_network("2001:db8::1")
    assert client_network("::ffff:192.0.2.1") == client_network("192.0.2.1") == "192.0.2.1"


def passed(limiter: RateLimiter, address: str | None, tries: int) -> int:
    """Return how many of some attempts pass."""
    count = 0
    for _ in range(tries):
        try:
            limiter.check(address)
        except Refusal:
            continue
        count += 1
    return count


def test_a_client_may_burst_and_then_keep_to_the_rate():
    now = Time()
    limiter = RateLimiter(2, "tries", now=now)
    assert passed(limiter, "192.0.2.1", 100) == 20
    now.seconds += 3
    assert passed(limiter, "192.0.2.1", 100) == 6
    assert passed(limiter, "192.0.2.2", 100) == 20


def test_requests_of_this_machine_are_not_limited():
    assert passed(RateLimiter(1, "tries"), "127.0.0.1", 100) == 100
    assert passed(RateLimiter(1, "tries"), "::1", 100) == 100


def test_memory_is_bounded_for_any_number_of_clients():
    now = Time()
    limiter = RateLimiter(1, "tries", now=now, clients=10)
    assert passed(limiter, "192.0.2.1", 11) == 10
    for number in range(100):
        limiter.check(f"198.51.100.{number}")
    assert passed(limiter, "192.0.2.1", 11) == 10  # it was forgotten, not remembered forever
    assert passed(limiter, "198.51.100.99", 11) == 9


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 30)), max_size=20))
def test_no_pattern_passes_more_than_the_rate(tries: list[tuple[float, int]]):
    now = Time()
    limiter, count = RateLimiter(3, "tries", now=now), 0
    for wait, number in tries:
        now.seconds += wait
        count += passed(limiter, "192.0.2.1", number)
    assert count <= 30 + 3 * now.seconds + 1e-6


async def test_a_client_behind_a_proxy_is_limited_and_the_others_are_not(run_hub: RunHub):
    settings = {"trusted_proxies": ["127.0.0.1"], "open_topics": [TOPIC], "failed_token_rate": 1e-3}
    async with run_hub(**settings) as hub:
        body = fragment(0, 1)
        bad = {"Authorization": "Bearer " + "x" * 16, "X_Forwarded_For": "192.0.2.1"}
        assert [(await hub.publish(body, **bad))[0] for _ in range(3)] == [403, 429, 429]
        assert (await hub.publish(body, **{**bad, "X_Forwarded_For": "192.0.2.2"}))[0] == 403


async def test_a_right_token_passes_after_wrong_ones_from_the_same_address(run_hub: RunHub):
    settings: dict[str, Any] = {
        "trusted_proxies": ["127.0.0.1"],
        "publishers": [{"token": "t" * 16, "topics": [TOPIC]}],
        "failed_token_rate": 0.001,
    }
    async with run_hub(**settings) as hub:
        for token, status in (("x", 403), ("x", 429), ("t", 202), ("x", 429)):
            headers = {"Authorization": "Bearer " + token * 16, "X_Forwarded_For": "192.0.2.1"}
            assert (await hub.publish(fragment(0, 1), **headers))[0] == status


def token(*, key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    grants = {"publish": ["https://source.example/data/"], "admin": True}
    full = {"aud": AUDIENCE, "exp": int(time.time()) + DAY, "rsnotify": grants, **claims}
    present = {name: value for name, value in full.items() if value is not None}
    return jwt.encode(present, key, algorithm=algorithm)


def verifier(**changes: Any) -> JsonWebTokens:
    given = {"algorithms": ["HS256"], "key": SECRET, "audience": AUDIENCE, "issuer": None}
    return JsonWebTokens(**{**given, **changes})


def test_a_web_token_grants_what_its_claim_lists():
    claims = verifier().claims(token())
    assert (claims.publish, claims.admin) == (("https://source.example/data/",), True)
    assert claims.until > time.time() + DAY / 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": None},
        {"exp": int(time.time()) - 60},
        {"exp": int(time.time()) - 1},
        {"nbf": int(time.time()) + DAY},
        {"aud": None},
        {"aud": "https://other.example/"},
        {"key": "z" * 32},
        {"key": "s" * 64, "algorithm": "HS512"},
        {"key": None, "algorithm": "none"},
        {"rsnotify": {"publish": "https://source.example/"}},
        {"rsnotify": {"admin": "yes"}},
        {"rsnotify": []},
    ],
)
def test_an_invalid_web_token_grants_nothing(wrong: dict[str, Any]):
    assert verifier().claims(token(**wrong)) is None


def test_a_web_token_holds_from_half_a_minute_before_its_beginning_to_its_end():
    now = int(time.time())
    claims = verifier().claims(token(nbf=now + 20, iat=now + 20, exp=now + DAY))
    assert claims.until == now + DAY


def test_a_web_token_without_our_claim_grants_nothing():
    claims = verifier().claims(token(rsnotify=None))
    assert (claims.publish, claims.admin) == ((), False)


def test_a_web_token_of_another_issuer_grants_nothing():
    mine = verifier(issuer="https://issuer.example/")
    assert mine.claims(token(iss="https://issuer.example/")) is not None
    assert mine.claims(token(iss="https://other.example/")) is None
    assert mine.claims(token()) is None


@given(st.text(max_size=60))
def test_a_malformed_web_token_grants_nothing(text: str):
    assert verifier().claims(text) is None


async def test_a_public_key_verifies_web_tokens(run_hub: RunHub, tmp_path: Path):
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "jwt.pem").write_bytes(pem)
    settings = {"jwt_algorithms": ["ES256"], "jwt_audience": AUDIENCE}
    async with run_hub(**settings, jwt_key_file=str(tmp_path / "jwt.pem")) as hub:
        right = "Bearer " + token(key=private, algorithm="ES256")
        # The public key used as a secret: the oldest forgery.
        forged = "Bearer " + _signed_with(pem)
        assert (await hub.publish(fragment(0, 1)))[0] == 401
        assert (await hub.publish(fragment(0, 1), Authorization=forged))[0] == 403
        assert (await hub.publish(fragment(0, 1), Authorization=right))[0] == 202
        other = "https://source.example/else"
        assert (await hub.publish(fragment(0, 1), topic=other, Authorization=right))[0] == 403
        headers = {"Authorization": right}
        async with hub.session.get(hub.url + "admin/status", headers=headers) as response:
            assert response.status == 200


def _signed_with(key: bytes) -> str:
    """Return a token signed by HS256, which the library refuses to do with a public key."""
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    head, body, _ = token().split(".")
    text = f"{head}.{body}".encode()
    signature = jwt.utils.base64url_encode(algorithm.sign(text, key))
    return f"{head}.{body}.{signature.decode()}"


OLD, NEW = "the-old-token-of-it", "the-new-token-of-it"


def settings_with(token: str, more: str = "") -> str:
    digest = sha256(token.encode()).hexdigest()
    return f'[[publishers]]\ntoken_sha256 = "{digest}"\ntopics = ["{TOPIC}"]\n{more}'


def write(path: Path, text: str) -> None:
    """Replace a file atomically, as an editor does."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


@pytest.fixture(autouse=True)
def often_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice soon that a file has changed."""
    monkeypatch.setattr("rsnotify.runtime.settings._CHECK_INTERVAL", 0.02)


@asynccontextmanager
async def hub_of(path: Path, clock: Clock, **options: Any) -> AsyncIterator[Client]:
    options = {"port": 0, "data": str(path.parent / "hub"), **options}
    async with serving_source(ConfigurationSource(str(path), {}, options), clock) as hub:
        yield hub


@asynccontextmanager
async def serving_source(source: ConfigurationSource, clock: Clock) -> AsyncIterator[Client]:
    async with (
        serve(source.load(), source=source, clock=clock) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Client(url, session)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The settings of a hub, with the old token."""
    path = tmp_path / "hub.toml"
    path.write_text(settings_with(OLD))
    return path


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_is_replaced_while_the_hub_runs(path: Path, clock: Clock, watch: LogWatch):
    async with hub_of(path, clock) as hub:
        socket = await hub.source(**bearing(OLD))
        write(path, settings_with(NEW))
        await watch.line("reloaded the grants")
        assert (await hub.publish(fragment(0, 1), **bearing(OLD)))[0] == 403
        assert (await hub.publish(fragment(0, 1), **bearing(NEW)))[0] == 202
        await socket.send_str(fragment(1, 2).decode())
        assert (await socket.receive_json())["code"] == "forbidden"


async def test_limits_for_open_topics_apply_to_topics_that_are_opened_while_the_hub_runs(
    path: Path, clock: Clock, watch: LogWatch
):
    async with hub_of(path, clock, max_open_topics=1) as hub:
        assert (await hub.publish(fragment(0, 1), **bearing(OLD)))[0] == 202
        write(path, 'open_topics = ["http://127.0.0.1/"]\n' + settings_with(OLD))
        await watch.line("reloaded the grants")
        status, reason = await hub.form(mode="publish", url="http://127.0.0.1/new")
        assert (status, "too many open topics" in reason) == (503, True)


class Overtaken(ConfigurationSource):
    """A source whose file is written again just after it was read."""

    def __init__(self, path: Path, *, read: str, then: str) -> None:
        super().__init__(str(path), {}, {"port": 0, "data": str(path.parent / "hub")})
        self._file, self._read, self._then = path, read, then

    def load(self) -> HubConfig:
        text = self._file.read_text()
        loaded = super().load()
        if text == self._read:
            write(self._file, self._then)
        return loaded


@pytest.mark.parametrize("at_start", [True, False])
async def test_a_file_that_changes_just_after_it_was_read_is_read_again(
    path: Path, clock: Clock, at_start: bool
):
    if not at_start:
        path.write_text(settings_with("the-first-token-of-it"))
    source = Overtaken(path, read=settings_with(OLD), then=settings_with(NEW))
    async with serving_source(source, clock) as hub:
        if not at_start:
            write(path, settings_with(OLD))

        async def accepts_the_new() -> bool:
            return (await hub.publish(fragment(0, 1), **bearing(NEW)))[0] == 202

        await until(accepts_the_new)


async def test_a_broken_file_keeps_the_old_grants_and_is_logged(
    path: Path, clock: Clock, watch: LogWatch
):
    async with hub_of(path, clock) as hub:
        write(path, settings_with(NEW, 'token = "canary"'))
        line = await watch.line("cannot reload the grants", "line 4")
        assert "canary" not in line
        assert (await hub.publish(fragment(0, 1), **bearing(OLD)))[0] == 202
        write(path, settings_with(NEW))
        await watch.line("reloaded the grants")
        assert (await hub.publish(fragment(0, 1), **bearing(NEW)))[0] == 202


async def test_removing_all_tokens_does_not_open_the_hub(
    tmp_path: Path, clock: Clock, watch: LogWatch
):
    path, tokens = tmp_path / "hub.toml", tmp_path / "tokens.toml"
    path.write_text("max_links = 7")
    tokens.write_text(settings_with(OLD))
    async with hub_of(path, clock, tokens_file=str(tokens)) as hub:
        assert (await hub.publish(fragment(0, 1), **bearing(OLD)))[0] == 202
        write(tokens, "")
        await watch.line("reloaded the grants")
        assert (await hub.publish(fragment(0, 1)))[0] == 401
        assert (await hub.publish(fragment(0, 1), **bearing(OLD)))[0] == 403


@pytest.mark.parametrize("where", [{"host": "0.0.0.0"}, {"public_url": "https://hub.example/"}])
async def test_a_hub_that_others_can_reach_does_not_start_without_grants(
    run_hub: RunHub, where: dict[str, str]
):
    with pytest.raises(ConfigurationError, match="nobody may publish on it: configure publishers"):
        async with run_hub(**where):
            pass
