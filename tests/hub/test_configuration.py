from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.settings import Variables, digest, line_of
from rsnotify_hub.config.configuration import (
    SETTINGS,
    AccessConfig,
    HubConfig,
    PublisherGrant,
    ServerConfig,
)
from rsnotify_hub.config.loading import ConfigurationSource, load_configuration
from tests.cases import case

ROOT = Path(__file__).parents[2]
TOKEN = "x" * 16
DIGEST = sha256(TOKEN.encode()).hexdigest()
PUBLISHER = PublisherGrant(token_sha256=DIGEST, topics=("https://a.example/",))
FIELDS = {field.name: field for field in msgspec.structs.fields(SETTINGS)}


def setting(configuration: HubConfig, name: str) -> Any:
    """Return a setting by its name in a file, from whichever section has it."""
    sections = msgspec.structs.asdict(configuration).values()
    return next(getattr(section, name) for section in sections if hasattr(section, name))


def file(folder: Path, text: str, name: str = "hub.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_without_settings_the_defaults_apply():
    configuration = load_configuration(None)
    assert (configuration.server.host, configuration.server.port) == ("127.0.0.1", 8080)
    assert configuration.log.data == "rsnotify-hub"
    assert not configuration.websub.allow_private_addresses


def test_a_file_is_toml_or_json_and_options_win(tmp_path: Path):
    publisher = {"token_sha256": DIGEST, "topics": ["https://a.example/"]}
    as_json = json.dumps({"port": 1, "publishers": [publisher]})
    as_toml = (
        f'port = 1\n[[publishers]]\ntoken_sha256 = "{DIGEST}"\ntopics = ["https://a.example/"]'
    )
    for path in (file(tmp_path, as_json, "hub.json"), file(tmp_path, as_toml)):
        configuration = load_configuration(path, port=2, host=None)
        assert configuration == HubConfig(
            server=ServerConfig(port=2), access=AccessConfig(publishers=(PUBLISHER,))
        )


def test_the_environment_wins_over_the_file_and_options_win_over_both(tmp_path: Path):
    path = file(tmp_path, "port = 1\nlog_bytes = 1\nmax_links = 1")
    environ = {"RSNOTIFY_HUB_PORT": "2", "RSNOTIFY_HUB_LOG_BYTES": "2"}
    environ["RSNOTIFY_HUB_MAX_LINKS"] = ""
    configuration = load_configuration(path, environ=environ, port=3)
    assert configuration.server.port == 3
    assert (configuration.log.log_bytes, configuration.intake.max_links) == (2, 1)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("host", "::1", "::1"),
        ("public_url", "https://hub.example/", "https://hub.example/"),
        ("port", "81", 81),
        ("log_seconds", "30", 30.0),
        ("allow_private_addresses", "1", True),
        ("allow_private_addresses", "false", False),
        ("open_topics", '["https://a.example/"]', ("https://a.example/",)),
        ("publishers", json.dumps([{"token": TOKEN, "topics": ["https://a.example/"]}]), None),
        ("publishers", f'[{{token = "{TOKEN}", topics = ["https://a.example/"]}}]', None),
        ("publishers", f'[{{token_sha256="{DIGEST}", topics=["https://a.example/"]}}]', None),
    ],
)
def test_every_kind_of_setting_can_be_a_variable(name: str, text: str, value: Any):
    configuration = load_configuration(None, environ={f"RSNOTIFY_HUB_{name.upper()}": text})
    assert setting(configuration, name) == (value if value is not None else (PUBLISHER,))


def test_every_setting_can_be_a_variable():
    types, values = get_type_hints(SETTINGS, include_extras=True), example()
    for name in FIELDS:
        with case(name):
            value = values.get(name, "the key")
            text = value if isinstance(value, str) else json.dumps(value)
            found = Variables("hub", {f"RSNOTIFY_HUB_{name.upper()}": text}, types).settings
            assert set(found) == {name}
            assert msgspec.convert(found[name], types[name]) == msgspec.convert(value, types[name])


def example() -> dict[str, Any]:
    """Return the settings of the example with all comment signs removed."""
    text = (ROOT / "hub" / "hub.example.toml").read_text()
    text = re.sub(r"^#(?=[a-z_0-9]+ = |\[\[)", "", text, flags=re.MULTILINE)
    return msgspec.toml.decode(text, type=dict[str, Any])


def test_a_misspelt_variable_is_reported():
    environ = {"RSNOTIFY_HUB_LOG_BYTE": "1", "RSNOTIFY_PUBLISHER": "x", "RSNOTIFY_PORT": "1"}
    environ |= {"RSNOTIFY_TOKEN": "x", "RSNOTIFY_HUB": "x", "LOG_BYTE": "x"}
    environ |= {"RSNOTIFY_CONFIG": "x", "RSNOTIFY_HUB_CONFIG": "x"}
    environ |= {"RSNOTIFY_SOURCE_PORT": "x", "RSNOTIFY_HUB_URL": "x"}
    assert ConfigurationSource(None, environ, {}).misspelt() == {
        "RSNOTIFY_HUB_LOG_BYTE": "RSNOTIFY_HUB_LOG_BYTES",
        "RSNOTIFY_PUBLISHER": "RSNOTIFY_HUB_PUBLISHERS",
        "RSNOTIFY_PORT": "RSNOTIFY_HUB_PORT",
        "RSNOTIFY_CONFIG": "RSNOTIFY_HUB_CONFIG",
    }


def test_a_wrong_value_is_reported_with_its_variable():
    with pytest.raises(ConfigurationError, match="the variable RSNOTIFY_HUB_PORT: port"):
        load_configuration(None, environ={"RSNOTIFY_HUB_PORT": "x"})


def test_variables_of_other_commands_do_not_matter():
    load_configuration(None, environ={"RSNOTIFY_BASE_URL": "x", "PORT": "x"})


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("colour = 1", 1, "colour: there is no such setting"),
        ("\nlog_byte = 1", 2, "log_byte: there is no such setting; did you mean log_bytes?"),
        ("data = 'x'\nport = 'x'", 2, "port: it has to be a whole number from 0 to 65,535"),
        ("port = 70000", 1, "port: it has to be a whole number from 0 to 65,535"),
        ("max_lease_seconds = 10000000", 1, "max_lease_seconds"),
        ("\n\nlog_bytes = 0", 3, "log_bytes"),
        ("log_bytes = 10000000000000000", 1, "log_bytes"),
        ("\nlog_seconds = 1e12", 2, "log_seconds: it has to be a number above 0 of at most"),
        ("callback_seconds = inf", 1, "callback_seconds: it has to be a number above 0 of at most"),
        ("host = ''", 1, "host"),
        ("data = ''", 1, "data"),
        ("\npublic_url = 'ftp://canary/'", 2, "public_url: it is not an absolute http"),
        ("websocket_origins = [\n'page.example']", 1, "websocket_origins: .* not an origin"),
        ("websocket_origins = ['https://page.example/canary']", 1, "not an origin"),
        ("min_lease_seconds = 61\nmax_lease_seconds = 60", 1, "longer than max_lease_seconds"),
        ("open_topics = [\n 'https://'\n]", 1, "open_topics: a topic is not an absolute http"),
        ("trusted_proxies = ['10.0.0.1/8']", 1, "trusted_proxies: not an address or network"),
        ("[[publishers]]\ntoken = 'canary'\ntopics = []", 2, "token: .* the token's SHA-256"),
        ("[[admins]]\ntoken = 'canary'", 2, "token: .* the token's SHA-256"),
        ("jwt_key = 'canary'", 1, "jwt_key: a settings file must not contain secrets"),
        ("\nmqtt_password = 'canary'", 2, "mqtt_password: .* must not contain passwords"),
        ("mqtt_url = 'http://broker'", 1, "mqtt_url: this is not a broker"),
        ("mqtt_url = 'mqtt://b'\nmqtt_public_url = 'mqtt://b/x'", 2, "mqtt_public_url: a hub has"),
        ("mqtt_url = 'mqtt://b'\nmqtt_ca = 'gone.pem'", 2, "mqtt_ca: cannot use .* gone.pem"),
        ("mqtt_user = 'hub'", 1, "mqtt_user: this requires mqtt_url"),
        ("xmpp_password = 'canary'", 1, "xmpp_password: .* must not contain passwords"),
        ("xmpp_url = 'xmpp://b'", 1, "xmpp_url: .* is not the URI of a PubSub service"),
        ("xmpp_url = 'xmpp:b?;node=x'", 1, "xmpp_url: a hub has many channels"),
        ("xmpp_url = 'xmpp:b'", 1, "xmpp_url: this needs xmpp_jid"),
        ("xmpp_jid = 'me@b'", 1, "xmpp_jid: this needs xmpp_url"),
        ("xmpp_url = 'xmpp:b'\nxmpp_jid = 'me@b'", 2, "xmpp_jid: .* needs a password"),
        ("mqtt_channels = ['https://a.example/']", 1, "mqtt_channels: this requires mqtt_url"),
        ("[[admins]]\n[[admins]]\ntoken_sha256 = 'canary'", 1, "token_sha256: it is missing"),
        (
            f"[[admins]]\ntoken_sha256 = '{DIGEST}'\n[[admins]]\ntoken_sha256='canary'",
            4,
            "token_sha256: it has to be 64 hexadecimal digits",
        ),
        (f"[[publishers]]\ntoken_sha256 = '{DIGEST}'\ntopics = ['/a']", 3, "topics: a topic is"),
        (f"[[publishers]]\ntoken_sha256='{DIGEST}'\ntopics=['http://a/x/../']", 3, "dot segments"),
        (f"[[publishers]]\ntoken_sha256='{DIGEST}'\ntopic = 1\ntopics=[]", 3, "no such setting"),
        ("\nlog_seconds = 1e11", 2, "log_seconds: it has to be a number above 0 of at most"),
        ("idle_seconds = inf", 1, "idle_seconds: it has to be a number above 0 of at most"),
        ("jwt_algorithms = ['none']", 1, "jwt_algorithms: it has to be one of ES256, ES384"),
        ("jwt_algorithms = ['ES256']", 1, "jwt_key"),
    ],
)
def test_a_wrong_setting_is_reported_with_its_line_and_without_secrets(
    tmp_path: Path, text: str, line: int, reason: str
):
    path = file(tmp_path, text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        load_configuration(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("PORT", "canary", "port: it has to be a whole number"),
        ("PUBLISHERS", "canary", "publishers: it has to be an array of tables"),
        ("PUBLISHERS", "[canary", "it is not a valid JSON or TOML array"),
        ("PUBLISHERS", '[{"token": "canary", "topics": []}]', "at least 16 characters"),
        ("JWT_KEY", "canary", "jwt_key: this requires jwt_algorithms"),
    ],
)
def test_a_wrong_variable_is_named_and_not_repeated(variable: str, text: str, reason: str):
    with pytest.raises(ConfigurationError, match=reason) as caught:
        load_configuration(None, environ={f"RSNOTIFY_HUB_{variable}": text})
    assert str(caught.value).startswith(f"the variable RSNOTIFY_HUB_{variable}: ")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("port = x", "cannot read .*line 1"), ("a = 1\na = 2\n", "cannot read .*line 2")],
)
def test_invalid_toml_is_reported_with_its_line(tmp_path: Path, text: str, reason: str):
    with pytest.raises(ConfigurationError, match=reason):
        load_configuration(file(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="it does not exist"):
        load_configuration(str(tmp_path / "none.toml"))


def test_a_tokens_file_adds_to_the_settings(tmp_path: Path):
    other = sha256(b"y").hexdigest()
    tokens = file(tmp_path, f'[[admins]]\ntoken_sha256 = "{other}"', "tokens.toml")
    publishers = [{"token": TOKEN, "topics": ["https://a.example/"]}]
    configuration = load_configuration(None, tokens_file=tokens, publishers=publishers)
    assert configuration.access.publishers == (PUBLISHER,)
    assert [admin.token_sha256 for admin in configuration.access.admins] == [other]


def test_a_wrong_tokens_file_is_reported_with_its_line(tmp_path: Path):
    tokens = file(tmp_path, "\nport = 1", "tokens.toml")
    with pytest.raises(ConfigurationError, match=r"tokens\.toml, line 2: port: there is no"):
        load_configuration(None, tokens_file=tokens)


SHARED, PUBLIC = "s" * 64, "-----BEGIN PUBLIC KEY-----"


@pytest.mark.parametrize(
    ("algorithms", "key", "audience", "reason"),
    [
        (["HS256"], SHARED, None, "jwt_audience"),
        (["HS256", "RS256"], SHARED, "a", "mixed"),
        (["HS256"], "s" * 31, "a", "32 bytes"),
        (["HS512"], "s" * 63, "a", "64 bytes"),
        (["HS256"], PUBLIC + "x" * 32, "a", "a public key cannot be the secret"),
        (["RS256"], SHARED, "a", "public key in PEM"),
    ],
)
def test_web_tokens_that_could_be_forged_are_refused(
    algorithms: list[str], key: str, audience: str | None, reason: str
):
    with pytest.raises(ConfigurationError, match=reason) as caught:
        load_configuration(None, jwt_algorithms=algorithms, jwt_key=key, jwt_audience=audience)
    assert key not in str(caught.value)


@pytest.mark.parametrize("algorithms", [["RS256"], ["ES384"], ["EdDSA"], ["ES256", "RS256"]])
def test_a_key_that_is_not_of_its_algorithms_is_refused(algorithms: list[str]):
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for each in (pem, PUBLIC + "\nrubbish\n-----END PUBLIC KEY-----"):
        with pytest.raises(ConfigurationError, match="jwt-key: this is not a key for") as caught:
            load_configuration(None, jwt_algorithms=algorithms, jwt_key=each, jwt_audience="a")
        assert each not in str(caught.value)


def test_no_secret_shows_in_the_configuration():
    publishers = [{"token": "canary" * 3, "topics": []}]
    options = {"jwt_algorithms": ["HS256"], "jwt_key": "canary" * 9, "jwt_audience": "a"}
    options |= {"mqtt_url": "mqtt://a", "mqtt_user": "a", "mqtt_password": "canary"}
    configuration = load_configuration(None, publishers=publishers, **options)
    assert "canary" not in repr(configuration)


def test_the_example_has_every_setting_with_its_default():
    settings = example()
    assert set(settings) == set(FIELDS) - {
        *("jwt_key", "mqtt_password", "store_password", "xmpp_password")
    }
    for name, value in settings.items():
        if FIELDS[name].default not in (None, ()):
            assert value == FIELDS[name].default, name


#: What is not written by hand, and may have very many files.
GENERATED = (".git", ".hypothesis", ".mypy_cache", ".venv", "build")
KINDS = (".md", ".toml", ".yml", ".example")
#: Where examples of secrets may stand, and how they may be written.
EXAMPLES = re.compile(
    r"""(?:token_sha256["']?\s*[=:]|\btoken["']?\s*[=:]|--token|[A-Z_]*TOKEN=|jwt_key\s*=)"""
    r"""\s*["']([^"'\n${…]+)["']"""
)


def test_the_hub_accepts_no_secret_of_the_documentation():
    tops = [path for path in ROOT.iterdir() if path.name not in GENERATED]
    pages = [page for top in tops for page in (top, *top.rglob("*")) if page.suffix in KINDS]
    found = {secret for page in pages for secret in EXAMPLES.findall(page.read_text())}
    assert digest("a long random secret") in found
    for secret in found - {"a token that the hub knows"}:
        name = "token_sha256" if re.fullmatch("[0-9a-f]{64}", secret) else "token"
        with pytest.raises(ConfigurationError, match=r"example from the documentation|16 char"):
            load_configuration(None, admins=[{name: secret}])


@given(
    st.text(alphabet='[]="# \nab\t{},', max_size=60),
    st.lists(st.sampled_from(["a", 0]), min_size=1),
)
def test_any_file_has_lines_or_has_none(text: str, path: list[str | int]):
    line = line_of(text, path)
    assert line is None or "a" in text.splitlines()[line - 1]


def test_the_password_of_the_broker_is_read_from_a_file(tmp_path: Path):
    password = tmp_path / "password"
    password.write_text("two words\n")
    settings = {"mqtt_url": "mqtts://broker.example", "mqtt_user": "hub"}
    loaded = load_configuration(None, **settings, mqtt_password_file=str(password))
    assert loaded.mqtt.password == "two words"
