"""What users see when something is wrong: one sentence, without the text of a library."""

from __future__ import annotations

import errno
import re
import socket
import sqlite3
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import typer

from docs.hooks import reference
from rsnotify.errors import StorageError
from rsnotify.runtime.command_line import EXIT_CODES, main, run_application
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.settings import misspelt_variables

#: What libraries write, and no user should have to read.
RAW = re.compile(r"Errno|_ssl\.c|\[SSL|\[X509|Input should|Value error|<string>|Traceback")
#: Nothing listens there.
CLOSED = "http://127.0.0.1:9/"


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
    error.verify_code = code
    return error


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1006)")
    error.reason = reason
    return error


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


def libpq_error(reason: str) -> psycopg.Error:
    server = 'connection to server at "secret.example" (192.0.2.1), port 5432'
    return psycopg.OperationalError(f"connection failed: {server} failed: {reason}")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOENT, "No such file or directory"), "it does not exist"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EACCES, "Permission denied"), "check the permissions"),
        (OSError(errno.ECONNREFUSED, "Connection refused"), "connection refused; check"),
        (OSError(errno.EDOM, "raw"), "the system reports: numerical argument out of domain"),
        (OSError("its URL has no host"), "its URL has no host"),
        (TimeoutError(), "no answer in time"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "unknown host name"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "the name server does not answer"),
        (certificate_error(10), "its certificate has expired"),
        (certificate_error(18), "its certificate is self-signed; set SSL_CERT_FILE"),
        (certificate_error(20), "from an untrusted authority; set SSL_CERT_FILE"),
        (certificate_error(62), "its certificate is for another host name"),
        (certificate_error(77), "its certificate cannot be trusted (reason 77)"),
        (tls_error("WRONG_VERSION_NUMBER"), "it does not use TLS; check the port"),
        (tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "it refuses the certificate of this"),
        (tls_error("KEY_VALUES_MISMATCH"), "the key does not belong to the certificate"),
        (ssl.SSLError(9, "[SSL] PEM lib (_ssl.c:3905)"), "no key, in PEM format"),
        (tls_error("BAD_LENGTH"), "the TLS connection failed (bad_length)"),
        (sqlite_error(sqlite3.SQLITE_NOTADB), "it is not a database"),
        (sqlite_error(sqlite3.SQLITE_FULL), "the disk is full"),
        (sqlite_error(sqlite3.SQLITE_IOERR | 2 << 8), "failed to read or write"),
        (sqlite_error(sqlite3.SQLITE_MISMATCH), "the database reports: as SQLite says it"),
        (
            libpq_error("Connection refused\n\tIs the server running on that host and accepting"),
            "connection refused; check the port",
        ),
        (libpq_error('FATAL:  role "poor" does not exist'), 'reports: role "poor" does not exist'),
        (libpq_error("No such file or directory\n\tIs"), "no server listens on its socket"),
        (psycopg.OperationalError("failed to resolve host 'secret': No"), "unknown host"),
        (psycopg.errors.ConnectionTimeout("connection timeout expired"), "no answer in time"),
        (psycopg.OperationalError("the connection is closed"), "it closed the connection"),
        (
            psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably"),
            "it closed the connection",
        ),
        (
            psycopg.errors.UndefinedTable('relation "a" does not exist\nLINE 1: SELECT secret'),
            'the database reports: relation "a" does not exist',
        ),
        (caused(ValueError("https://user:secret@host/"), certificate_error(10)), "has expired"),
        (ValueError("https://user:secret@host/"), "an unexpected error (ValueError)"),
        (StorageError("journal: it cannot be read"), "journal: it cannot be read"),
        (
            caused(StorageError(""), PermissionError("its address is refused")),
            "its address is refused",
        ),
    ],
)
def test_the_reason_of_an_error_is_a_clause_for_users(error: Exception, words: str):
    reason = reason_of(error)
    assert words in reason
    assert not RAW.search(reason)
    assert "secret" not in reason
    assert "\n" not in reason


def ended(run: Callable[[], None]) -> int:
    with pytest.raises(SystemExit) as raised:
        run()
    assert isinstance(raised.value.code, int)
    return raised.value.code


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("--version", 0, ""),
        ("validate {bad}", 1, ""),
        (f"follow {CLOSED} {{copy}} --once --patience 0", 1, "connection refused; check the port"),
        (f"audit {CLOSED} {{copy}}", 2, "there is no folder"),
        (f"inspect {CLOSED}", 2, "connection refused; check the port"),
        (f"validate {CLOSED}", 2, "connection refused; check the port"),
        (f"hub status --url {CLOSED}", 2, "connection refused; check the port"),
        ("validate {copy}", 2, "copy: it does not exist"),
        ("validate {here}", 2, "it is a folder, not a file"),
        ("hub --data {bad}", 2, "a file with this name already exists"),
        ("source {copy}", 2, "copy is not a folder; give an existing one"),
        ("source {data} --data {bad} --port 0", 2, "bad.toml is not a folder"),
        ("source {here} --port {taken}", 2, "another program uses it; choose another"),
        ("source --config {bad}", 2, "bad.toml, line 1, column 8: this is not valid TOML"),
        ("gateway {bad}", 2, "bad.toml, line 1, column 8: this is not valid TOML"),
        ("backup {here} {copy}", 2, "contains no state of rsnotify"),
        (f"follow {CLOSED} {{bad}}", 2, "DEST: it has to be a folder, not a file"),
        ("follow --config {here}", 2, "--config: it has to be a file, not a folder"),
        ("follow --pol 3", 2, "`rsnotify follow` has no option --pol; did you mean --poll?"),
        ("follow --frobnicate", 2, "has no option --frobnicate; `rsnotify follow --help-all`"),
        ("follow a b --poll", 2, "--poll needs a value; write --poll SECONDS"),
        ("follow a b --poll soon", 2, "--poll: it has to be a number of at least 0.1"),
        ("follow a b --via pigeon", 2, "--via: it has to be one of auto, websocket, mqtt"),
        ("follow a b --change x", 2, "--change: it has to be one of created, updated, deleted"),
        ("follow a b --once=3", 2, "--once takes no value; write only --once"),
        ("follow a b c", 2, "unexpected argument 'c'; write `rsnotify follow [URL] [DEST]`"),
        ("relay a", 2, "DIR is missing; write `rsnotify relay URL DIR`"),
        (
            "gateway --config a.toml",
            2,
            "`rsnotify gateway` has no option --config; write `rsnotify gateway FILE`",
        ),
        ("folow", 2, "`rsnotify` has no command folow; did you mean follow?"),
        ("hub statu", 2, "`rsnotify hub` has no command statu; did you mean status?"),
        ("hub frobnicate", 2, "`rsnotify hub --help` lists them"),
        ("--verbose", 2, "a command is missing; `rsnotify --help` lists them"),
    ],
)
def test_each_wrong_call_ends_with_one_sentence_and_the_same_exit_code(
    arguments: str,
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    bad = tmp_path / "bad.toml"
    bad.write_text("port = = 1\n")
    (tmp_path / "data").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {
            "bad": bad,
            "copy": tmp_path / "copy",
            "here": tmp_path,
            "data": tmp_path / "data",
        }
        words = arguments.format(**places, taken=taken.getsockname()[1]).split()
        monkeypatch.setattr(sys, "argv", ["rsnotify", *words])
        assert ended(main) == code
    assert code in EXIT_CODES
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.count("rsnotify: ") == (1 if sentence else 0)
    assert not RAW.search(errors)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (StorageError("journal: it is damaged"), 2, "rsnotify: journal: it is damaged\n"),
        (OSError(errno.ENOSPC, "No space", "a.ttl"), 2, "rsnotify: a.ttl: the disk is full"),
        (ExceptionGroup("", [OSError(errno.EIO, "raw")]), 2, "rsnotify: the disk failed"),
        (ZeroDivisionError(), 3, "ZeroDivisionError\nrsnotify: this is a bug in rsnotify"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_each_error_that_ends_a_command_has_its_exit_code(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def command() -> None:
        raise error

    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    monkeypatch.setattr(sys, "argv", ["rsnotify"])
    assert ended(lambda: run_application(app, "rsnotify")) == code
    assert sentence in capsys.readouterr().err


def test_the_reference_has_every_exit_code():
    page = reference.command_line()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |\n" in page


FOLLOW = ["RSNOTIFY_FOLLOW_POLL", "RSNOTIFY_FOLLOW_ONLY", "RSNOTIFY_BEARER", "RSNOTIFY_HEADER"]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("RSNOTIFY_FOLLOW_POL", "RSNOTIFY_FOLLOW_POLL"),
        ("RSNOTIFY_FOLOW_POLL", "RSNOTIFY_FOLLOW_POLL"),
        ("RSNOTIFY_BEARR", "RSNOTIFY_BEARER"),
        ("RSNOTIFY_POLL", "RSNOTIFY_FOLLOW_POLL"),
        ("RSNOTIFY_HEADER", None),
        ("RSNOTIFY_RELAY_POLL", None),
        ("RSNOTIFY_NODE", None),
        ("RSNOTIFY_REQUIRE_ALL", None),
        ("FOLLOW_POL", None),
    ],
)
def test_a_variable_with_nearly_a_known_name_is_found(variable: str, meant: str | None):
    found = misspelt_variables({variable: "1"}, FOLLOW, "RSNOTIFY_FOLLOW_", ["relay"])
    assert found == ({} if meant is None else {variable: meant})


@pytest.mark.parametrize("words", ["follow {bad} copy", "hub topics --url {bad}"])
def test_a_command_warns_of_a_misspelt_variable(
    words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    command = words.split()[0].upper()
    names = {"FOLLOW": "RSNOTIFY_FOLLOW_POL", "HUB": "RSNOTIFY_ADMIN_TOKN"}
    monkeypatch.setenv(names[command], "1")
    monkeypatch.setenv("RSNOTIFY_SOURCE_PORT", "1")
    monkeypatch.setattr(sys, "argv", ["rsnotify", *words.format(bad="htp://x").split()])
    assert ended(main) == 2
    (record,) = [one for one in caplog.records if one.name == "rsnotify"]
    assert f"the variable {names[command]} is unknown, and ignored; did you" in record.getMessage()
