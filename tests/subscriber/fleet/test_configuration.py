"""A file of Sources: what holds for each, and what is said of a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType
from rsnotify.runtime.settings import SettingsFile
from rsnotify_subscriber import Via
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, FollowedSource, load, parse
from rsnotify_subscriber.fleet.reloading import configuration_change

PATH = "/etc/rsnotify/fleet.toml"


def configuration(text: str, **options: object) -> FleetConfiguration:
    return parse(SettingsFile(PATH, text), options)


def source(text: str) -> FollowedSource:
    """Return the one Source of a file, with an URL and a name, but for what the text says."""
    head, _, rest = text.partition("[[source]]")
    named = f'{head}[[source]]\nname = "one"\nurl = "https://one.example/"\n{rest}'
    (only,) = configuration(named).sources
    return only


def test_a_source_inherits_missing_settings_from_the_defaults() -> None:
    one, two = configuration(
        """
        [defaults]
        dest = "copies/{name}"
        poll = 60
        only = ["*.ttl"]

        [[source]]
        name = "one"
        url = "https://one.example/"

        [[source]]
        name = "two"
        url = "https://two.example/"
        poll = 5
        only = ["maps/"]
        except = ["maps/old/"]
        change = ["created", "deleted"]
        via = "poll"
        """
    ).sources
    assert (one.dest, one.poll, one.only) == ("/etc/rsnotify/copies/one", 60, ("*.ttl",))
    assert (one.via, one.excluded, one.change) == (Via.AUTO, (), ())
    assert (two.dest, two.poll, two.only) == ("/etc/rsnotify/copies/two", 5, ("maps/",))
    assert (two.via, two.excluded) == (Via.POLL, ("maps/old/",))
    assert two.change == (ChangeType.CREATED, ChangeType.DELETED)


def test_a_source_is_called_by_its_name_or_by_its_url() -> None:
    text = '[[source]]\nurl = "https://one.example/"\ndest = "one"'
    assert configuration(text).sources[0].title == "https://one.example/"
    assert source('[[source]]\ndest = "one"').title == "one"


def test_paths_begin_from_the_folder_of_the_file() -> None:
    one = source('[[source]]\ndest = "../copy"\nstate = "/var/lib/state"\nmqtt_ca = "ca.pem"')
    assert (one.dest, one.state, one.mqtt_ca) == (
        "/etc/copy",
        "/var/lib/state",
        "/etc/rsnotify/ca.pem",
    )


def test_a_source_with_a_handler_does_not_inherit_another() -> None:
    defaults = '[defaults]\nhandler = "a:b"\noptions = {x = 1}\nstate = "{name}"\n'
    assert source(f'{defaults}[[source]]\ndest = "copy"').handler is None
    own = source(f'{defaults}[[source]]\nhandler = "c:d"')
    assert (own.handler, own.options) == ("c:d", {})
    added = source(f"{defaults}[[source]]\noptions = {{y = 2}}")
    assert (added.handler, added.options) == ("a:b", {"x": 1, "y": 2})


def test_a_state_in_a_database_takes_the_place_of_a_folder() -> None:
    defaults = '[defaults]\nhandler = "a:b"\nstate = "states/{name}"\n'
    one = source(f'{defaults}[[source]]\npostgresql = "dbname=x"\nschema = "follower_{{name}}"')
    assert (one.state, one.postgresql, one.schema) == (None, "dbname=x", "follower_one")


def test_options_override_the_defaults_and_sources_override_both() -> None:
    text = (
        "[defaults]\npoll = 60\n"
        '[[source]]\nurl = "https://a.example/"\ndest = "a"\npoll = 5\n'
        '[[source]]\nurl = "https://b.example/"\ndest = "b"'
    )
    found = configuration(text, poll=1.0, callback_url="https://c.example/", callback_lease=60)
    assert [one.poll for one in found.sources] == [5, 1]
    assert (found.websub.url, found.websub.lease) == ("https://c.example/", 60)


def test_a_password_is_read_from_its_file_and_shown_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("canary\n")
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[defaults]\nmqtt_url = "mqtts://b.example"\nmqtt_user = "u"\n'
        'mqtt_password_file = "password"\n[[source]]\nurl = "https://a.example/"\ndest = "a"'
    )
    found = load(file)
    assert found.sources[0].mqtt_password == "canary"
    assert found.files == (str(file), str(tmp_path / "password"))
    assert "canary" not in repr(found)
    (tmp_path / "password").unlink()
    with pytest.raises(ConfigurationError, match=f"cannot read {tmp_path}/password"):
        load(file)


def test_a_file_may_be_json(tmp_path: Path) -> None:
    one = {"url": "https://a.example/", "dest": "a", "options": {}}
    file = tmp_path / "fleet.json"
    file.write_bytes(msgspec.json.encode({"limits": {"workers": 3}, "source": [one]}))
    found = load(file)
    assert (found.limits.workers, found.sources[0].url) == (3, "https://a.example/")


SOURCE = '[[source]]\nname = "one"\nurl = "https://one.example/"\n'
TWO = SOURCE + 'dest = "x"\n[[source]]\nname = "two"\nurl = "https://two.example/"\n'

WRONG = {
    "a key that is unknown": (f'{SOURCE}dest = "x"\npol = 3',
        "line 5: [[source]] one: pol: there is no such setting; did you mean poll?"),
    "a key of the defaults that is unknown": (f'[defaults]\ndestination = "x"\n{SOURCE}',
        "line 2: [defaults]: destination: there is no such setting"),
    "an URL in the defaults": (f'[defaults]\nurl = "https://one.example/"\n{SOURCE}',
        "line 2: [defaults]: url: there is no such setting"),
    "a table that is unknown": (f"[limit]\nworkers = 3\n{SOURCE}",
        "line 1: [limit]: there is no such setting; did you mean limits?"),
    "a limit that is unknown": (f"[limits]\nthreads = 3\n{SOURCE}",
        "line 2: [limits]: threads: there is no such setting"),
    "a wrong kind of value": (f'{SOURCE}dest = "x"\npoll = "often"',
        "line 5: [[source]] one: poll: it has to be a number from 0.1 to 30,000,000"),
    "a value out of bounds": (f'{SOURCE}dest = "x"\nhubs = 0',
        "line 5: [[source]] one: hubs: it has to be a whole number from 1 to"),
    "no array where one has to be": (f'{SOURCE}dest = "x"\nonly = "*.ttl"',
        "line 5: [[source]] one: only: it has to be an array of strings"),
    "a way that there is not": (f'{SOURCE}dest = "x"\nvia = "carrier pigeon"',
        "line 5: [[source]] one: via: it has to be one of auto, websocket, mqtt, xmpp, websub"),
    "a change that there is not": (f'{SOURCE}dest = "x"\nchange = ["renamed"]',
        "line 5: [[source]] one: item 1 of change: it has to be one of created, updated, deleted"),
    "a name that is no name": ('[[source]]\nname = "../x"\nurl = "https://a.example/"\ndest = "x"',
        "line 2: [[source]] ../x: name: it has to be a string of letters, digits"),
    "no URL": ('[[source]]\nname = "one"\ndest = "x"',
        "line 1: [[source]] one: url: it is missing"),
    "no Source": ("[defaults]\npoll = 3", "source: add at least one Source as ["),
    "a Source that is no array": ('[source]\nurl = "https://a.example/"',
        "line 1: [source]: it has to be an array of tables"),
    "nowhere to put it": (SOURCE, "line 1: [[source]] one: dest: give the folder of a mirror"),
    "a mirror and a handler": (f'{SOURCE}dest = "x"\nhandler = "a:b"',
        "line 5: [[source]] one: handler: it cannot be combined with dest"),
    "a handler without a state": (f'{SOURCE}handler = "a:b"',
        "line 1: [[source]] one: state: a handler needs a place for its state"),
    "options without a handler": (f'{SOURCE}dest = "x"\noptions = {{a = 1}}',
        "line 5: [[source]] one: options: only a handler has options"),
    "a mirror with its state in a database": (f'{SOURCE}dest = "x"\npostgresql = ""',
        "line 5: [[source]] one: postgresql: the state of a mirror must be in a folder"),
    "a state within the mirror": (f'{SOURCE}dest = "x"\nstate = "x/state"',
        "line 5: [[source]] one: state: it must be outside the mirror"),
    "two states": (f'{SOURCE}handler = "a:b"\nstate = "x"\npostgresql = ""',
        "line 6: [[source]] one: postgresql: it cannot be combined with state"),
    "two passwords": (f'{SOURCE}dest = "x"\nmqtt_password = "p"\nmqtt_password_file = "f"',
        "line 6: [[source]] one: mqtt_password_file: it cannot be combined with mqtt_password"),
    "WebSub without a callback": (f'{SOURCE}dest = "x"\nvia = "websub"',
        "line 5: [[source]] one: via: WebSub needs a url in [websub]"),
    "a name that is needed and missing": (
        '[defaults]\ndest = "{name}"\n[[source]]\nurl = "https://a.example/"',
        "line 3: [[source]] https://a.example/: dest: the Source needs a name to use {name}",
    ),
    "two of one name": (f'{SOURCE}dest = "x"\n{SOURCE}dest = "y"',
        "line 6: [[source]] one: name: another Source is also called one"),
    "two mirrors in one folder": (f'{TWO}dest = "y/../x"',
        "line 8: [[source]] two: dest: it conflicts with one"),
    "a mirror in a mirror": (f'{TWO}dest = "x/y"',
        "line 8: [[source]] two: dest: it conflicts with one"),
    "a mirror around a state": (f'{TWO.replace("x", "x/y")}dest = "x"',
        "[[source]] two: dest: it conflicts with one"),
    "a mirror where a state lies": (f'{TWO}dest = "x.rsnotify"',
        "two: dest: it conflicts with one"),
    "a session for two": (f'[defaults]\nmqtt_session = "s"\n{TWO}dest = "y"',
        "[[source]] two: mqtt_session: it conflicts with one; make it unique"),
    "a broker for all that is none": (
        f'[defaults]\nmqtt_url = "http://b.example"\n{SOURCE}dest = "x"',
        "line 2: [defaults]: mqtt_url: this is not a broker",
    ),
    "a broker for one that is none": (f'{SOURCE}dest = "x"\nmqtt_url = "http://b.example"',
        "line 5: [[source]] one: mqtt_url: this is not a broker"),
    "a version that there is not": (f'[defaults]\nmqtt_version = "4"\n{SOURCE}dest = "x"',
        'line 2: [defaults]: mqtt_version: it has to be one of "3.1.1", "5"'),
    "a schema for two": (
        '[defaults]\nhandler = "a:b"\npostgresql = ""\n'
        '[[source]]\nurl = "https://a.example/"\n[[source]]\nurl = "https://b.example/"',
        "line 6: [[source]] https://b.example/: schema: it conflicts with https://a.example/",
    ),
    "a schema for two, of which one names it": (
        '[defaults]\nhandler = "a:b"\npostgresql = ""\n'
        '[[source]]\nurl = "https://a.example/"\n'
        '[[source]]\nurl = "https://b.example/"\nschema = "rsnotify"',
        "line 8: [[source]] https://b.example/: schema: it conflicts with https://a.example/",
    ),
    "a mirror where no file can be": (f'{SOURCE}dest = "x\\u0000y"',
        "line 4: [[source]] one: dest: it has to be the path of a file or folder"),
    "a name that is a table": (
        '[[source]]\nname = {password = "x"}\nurl = "https://a.example/"\ndest = "x"',
        "line 2: [[source]] 1: name: it has to be a string of letters, digits",
    ),
    "a schema of what is no database": (SOURCE + 'dest = "x"\nschema = "y"',
        "schema: only a state in PostgreSQL has a schema; set postgresql, too"),
    "a Source that is a number": ("source = [5]", "item 1 of source: it has to be a table"),
    "a limit that lets nobody in": (f'[limits]\nworkers = 0\n{SOURCE}dest = "x"',
        "line 2: [limits]: workers: it has to be a whole number from 1 to"),
    "a limit that is none": (f'[limits]\nrequests = {10**30}\n{SOURCE}dest = "x"',
        "line 2: [limits]: requests: "),
    "a number that is too long": (f"[limits]\nworkers = {'9' * 5000}", "cannot read"),
    "what is too deep": (f"source = {'[' * 5000}", "it is nested too deeply"),
    "no TOML": ("[[source]\nurl = 3", "cannot read /etc/rsnotify/fleet.toml, line 1, column 9: "),
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_an_error_is_one_sentence_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        configuration(text)
    assert told in str(error.value)
    assert PATH in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match="name: it has to be a string of letters, digits"):
        configuration('[[source]]\nname = "one\\n"\nurl = "https://a.example/"\ndest = "x"')


def test_json_that_is_too_deep_is_reported_in_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"^cannot read a\.json: it is nested too deeply$"):
        SettingsFile("a.json", '{"source": ' + "[" * 1_000_000)  # 3.14 reads 20,000


def test_the_password_in_a_url_is_shown_to_nobody() -> None:
    text = '[[source]]\nurl = "https://me:canary@a.example/"\n'
    assert configuration(f'{text}dest = "x"').sources[0].title == "https://a.example/"
    with pytest.raises(ConfigurationError) as error:
        configuration(f"{text}pol = 3")
    assert "[[source]] https://a.example/: pol" in str(error.value)


def test_a_password_on_the_command_line_replaces_a_password_file() -> None:
    text = f'[defaults]\nmqtt_password_file = "x"\n{SOURCE}dest = "x"'
    (one,) = configuration(text, mqtt_password="canary").sources
    assert (one.mqtt_password, one.mqtt_password_file) == ("canary", None)


def test_an_option_of_the_command_that_is_wrong_is_named_as_such() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^--poll: it has to be a number from 0\.1 to 30,000,000$"
    ):
        configuration(f'{SOURCE}dest = "x"', poll=0.0)
    with pytest.raises(
        ConfigurationError,
        match=r"^--callback-lease: it has to be a whole number from 1 to 1,000,000,000$",
    ):
        configuration(f'{SOURCE}dest = "x"', callback_lease=0)


_TERMS = st.fixed_dictionaries(
    {}, optional={"poll": st.integers(1, 3), "prefer": st.just(["text/turtle"])}
)
_FLEETS = st.dictionaries(st.sampled_from("abcdef"), _TERMS)


def made(fleet: dict[str, dict[str, object]]) -> tuple[FollowedSource, ...]:
    return tuple(
        msgspec.convert({"name": name, "url": f"https://{name}.example/", **terms}, FollowedSource)
        for name, terms in fleet.items()
    )


@given(_FLEETS, _FLEETS)
def test_only_changed_sources_are_restarted(
    before: dict[str, dict[str, object]], now: dict[str, dict[str, object]]
) -> None:
    gone, new = configuration_change(made(before), made(now))
    left = {name: one for name, one in before.items() if name not in gone}
    assert all(now[name] == one for name, one in left.items())
    assert {**left, **{one.title: now[one.title] for one in new}} == now
    assert not left.keys() & {one.title for one in new}


def test_every_setting_of_the_command_is_one_of_the_file() -> None:
    from rsnotify_subscriber.commands.follow import follow

    of_the_command = {"context", "url", "config", "once", "json", "quiet", "return"}
    of_the_command |= {"status", "status_port", "status_host"}
    options = set(follow.__annotations__) - of_the_command
    websub = {name for name in options if name.startswith("callback_")}
    assert {name.removeprefix("callback_") for name in websub} == set(
        msgspec.structs.asdict(configuration(f'{SOURCE}dest = "x"').websub)
    )
    assert options - websub <= set(FollowedSource.__struct_fields__)
