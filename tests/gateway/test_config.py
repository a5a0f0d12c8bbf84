from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_gateway import OriginKind
from rsnotify_gateway.config import load_gateway
from tests.gateway.checking import origin
from tests.reader import ROOT, fences_of

CONTACT = 'contact = "operator@gateway.example"\n'
ONE = '[[origin]]\nname = "one"\ntype = "sitemap"\nurl = "https://one.example/"\n'
IIIF = ONE.replace("sitemap", "iiif")


def of(type_: str, more: str = "") -> str:
    return CONTACT + ONE.replace("sitemap", type_) + more


def load(folder: Path, text: str):  # type: ignore[no-untyped-def]
    file = folder / "gateway.toml"
    file.write_text(text)
    return load_gateway(file, port=1234)


def test_origins_are_read_with_their_settings(tmp_path: Path):
    text = f"""{CONTACT}
hubs = ["https://hub.example/"]
{ONE}poll = 10
[[origin]]
name = "two"
type = "oai-pmh"
url = "https://two.example/oai"
prefix = "marc21"
set = "maps"
login = "user:secret"
"""
    settings = load(tmp_path, text)
    one, two = settings.origins
    assert settings.port == 1234
    assert (one.pace.least, one.pace.most) == (10, 3600)
    assert two.type == OriginKind.OAI_PMH
    assert (two.harvest.prefix, two.harvest.set, two.harvest.overlap) == ("marc21", "maps", 60)
    assert two.credentials.login == "user:secret"
    assert "secret" not in repr(two)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE, "contact: it is missing"),
        (CONTACT, "there is no [[origin]]; add one"),
        ('contact = "me"\n' + ONE, "contact: it has to be a URL or email address"),
        (CONTACT + ONE + ONE, "two origins have the name one"),
        (CONTACT + ONE + "pol = 3", "line 6: [[origin]] one: pol: there is no such setting"),
        (CONTACT + ONE + "poll = 0", "line 6: [[origin]] one: poll: it has to be a number above 0"),
        (
            CONTACT + ONE.replace("sitemap", "ftp"),
            "type: it must be one of sitemap, oai-pmh, feed, resourcesync, iiif, ldes",
        ),
        (CONTACT + ONE + 'set = "maps"', 'only type = "oai-pmh" accepts set'),
        (CONTACT + ONE + "compare = 60", 'only type = "oai-pmh" accepts compare'),
        (CONTACT + IIIF + 'set = "maps"\ncompare = 60', 'only type = "oai-pmh" accepts set'),
        (CONTACT + ONE + "[[set]]\nname='x'\nfolder='y'", "use [[origin]], not [[set]]"),
        (of("events"), 'type = "events" needs a table `event`'),
        (of("feed", 'event = { uri = "/a", datetime = "/b" }'), "other types must not have it"),
        (of("events", 'event = { uri = "a", datetime = "/b" }'), "it has to be a JSON Pointer"),
        (of("postgresql"), "[[origin]] one: url: write postgresql://host/database"),
        (of("feed", 'table = "outbox"'), 'only type = "postgresql" accepts table'),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)


@pytest.mark.parametrize("number", range(3))
def test_every_configuration_of_the_documentation_is_one(tmp_path: Path, number: int):
    page = (ROOT / "extensions/gateway/README.md").read_text()
    found = [body for name, body in fences_of(page) if name == "toml"]
    assert len(found) == 3
    assert load(tmp_path, found[number]).origins


def test_the_host_of_a_database_is_not_published():
    url = "postgresql://user:secret@host/database?password=secret"
    assert origin("postgresql", url).public_url == "postgresql:rsnotify_outbox"
