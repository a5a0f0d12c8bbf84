from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_hub.configuration import Configuration, Publisher, load_configuration


def test_without_anything_the_defaults_hold():
    configuration = load_configuration(None)
    assert (configuration.host, configuration.port) == ("127.0.0.1", 8080)
    assert configuration.data == "rsnotify-hub"
    assert not configuration.allow_private_addresses


def test_a_file_is_toml_or_json_and_options_win(tmp_path: Path):
    digest = sha256(b"x" * 16).hexdigest()
    publisher = {"token_sha256": digest, "topics": ["https://a.example/"]}
    (tmp_path / "hub.json").write_text(json.dumps({"port": 1, "publishers": [publisher]}))
    (tmp_path / "hub.toml").write_text(
        f'port = 1\n[[publishers]]\ntoken_sha256 = "{digest}"\ntopics = ["https://a.example/"]\n'
    )
    for name in ("hub.json", "hub.toml"):
        configuration = load_configuration(str(tmp_path / name), port=2, host=None)
        assert configuration == Configuration(
            port=2, publishers=(Publisher(token_sha256=digest, topics=("https://a.example/",)),)
        )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("colour = 1", "colour"),
        ("port = 'x'", "port"),
        ("port = 70000", "port"),
        ("max_lease_seconds = 10000000", "max_lease_seconds"),
        ("log_bytes = 0", "log_bytes"),
        ("[[publishers]]\ntoken = 'canary'\ntopics = []", "token"),
        ("port = ", "cannot read"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_without_its_value(
    tmp_path: Path, text: str, reason: str
):
    (tmp_path / "hub.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        load_configuration(str(tmp_path / "hub.toml"))
    assert "canary" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="No such file"):
        load_configuration(str(tmp_path / "none.toml"))


def test_every_setting_is_in_the_readme():
    readme = (Path(__file__).parents[2] / "hub" / "README.md").read_text()
    for field in msgspec.structs.fields(Configuration):
        assert f"`{field.name}`" in readme
