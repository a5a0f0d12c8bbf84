"""No regular expression of the project takes more than linear time, whatever it is given.

The expressions are found in the source, with the methods by which they are used. Each gets texts
that begin in some way, repeat something many times, and end in a way that no expression matches.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.growth import check_growth

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "rsnotify",
    "demo/rsnotify_demo",
    "gateway/rsnotify_gateway",
    "hub/rsnotify_hub",
    "publisher/rsnotify_publisher",
    "relay/rsnotify_relay",
    "subscriber/rsnotify_subscriber",
]
METHODS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
BEGINNINGS = [
    "", "<url>", "<url><loc>a:b</loc>", '<url><loc>a:b</loc><rs:md type="', "<rs:ln ", "<rs:ln a=",
    '<?xml version="1.0" ', "<?xml ", "<a>", '<a>; rel="', "<a>; a", "<a>;", "a/b", 'a/b; c="',
    "a/b; c", "a:", "https://", "//", "[", "[[ a", "[1]", "a[", "a['", "*", "text()", '"a":',
    "bytes = 1", "gzip;q=", "for=", ";for=", "2013-01-03T09:00:00.", "sha-256:", "@@http/a",
    ",", "1", "1,000", "con.", "{\n", "=",
]  # fmt: skip
REPEATED = [
    " ", "\t", "\n", "\r\n", "a", "A", "0", "-", ".", "_", "/", ":", ";", ",", "=", '"', "'", "\\",
    "<", ">", "%", "%41", "[", "]", "(", ")", "{", "@", "#", "?", "&", "+", "é", "\x00", "//", "a.",
    "a;", "; a", "a=", '=""', '; a="b"', "; a=b", "\\a", '\\"', "a,", " , ", "[1]", "[a='b']",
    "a b", "1.", "000,", " or ", "<a>", "<a>;", "<rs:md />",
    '<rs:ln a="b"/>', ' a="b"', "<loc></loc>",
    "\n  ", "[\n", "//@", "/..", "a: b",
]  # fmt: skip
ENDINGS = ["", "\x00", "\x00\n!"]
LENGTH = 6_000
#: How often something is repeated first: an exponential expression takes half a second.
FEW = 24
#: Seconds that no linear expression takes for so many characters, and all others take.
SUSPICIOUS = 0.02

Use = tuple[str, re.Pattern[str] | re.Pattern[bytes], str]


def expressions() -> Iterator[Use]:
    """Yield every expression with its place and each method by which it is used."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text()
            if not re.search(r"\bre\.", source):
                continue
            name = ".".join(path.relative_to((ROOT / package).parent).with_suffix("").parts)
            module = importlib.import_module(name.removesuffix(".__init__"))
            yield from _used(name, module, ast.parse(source))


def _used(module_name: str, module: object, tree: ast.Module) -> Iterator[Use]:
    found: dict[tuple[str, str], re.Pattern[str] | re.Pattern[bytes]] = {}
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            found[name, "fullmatch"] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            pattern = vars(module).get(getattr(node.value, "id", ""))
            if isinstance(pattern, re.Pattern):
                found[node.value.id, node.attr] = pattern  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("re.") in METHODS:
            literal = node.args[0] if node.args else None
            if ast.unparse(node.func).startswith("re.") and isinstance(literal, ast.Constant):
                found[repr(literal.value), node.func.attr] = re.compile(literal.value)  # type: ignore[attr-defined]
    # Those in tables, in classes and in functions, of which no name shows how they are used.
    known = {id(pattern) for pattern in found.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
            with suppress(NameError):  # of an argument: the module has a name for the result
                pattern = eval(ast.unparse(node), vars(module))
                if id(pattern) not in known:  # `re` returns one object for one expression
                    found[f"without a name, {len(found)}", "fullmatch"] = pattern
    for (name, method), pattern in found.items():
        yield f"{module_name} {name}.{method}", pattern, method


USES = list(expressions())


@pytest.mark.parametrize("use", USES, ids=[place for place, *_ in USES])
def test_an_expression_takes_linear_time(use: Use) -> None:
    _, pattern, method = use
    for beginning in BEGINNINGS:
        for repeated in REPEATED:
            for ending in ENDINGS:

                def work(
                    length: int,
                    beginning: str = beginning,
                    repeated: str = repeated,
                    ending: str = ending,
                ) -> None:
                    text = beginning + repeated * (length // len(repeated)) + ending
                    _apply(pattern, method, text)

                # So short at first that even an exponential one ends.
                for length in (FEW * len(repeated), 500):
                    begun = time.thread_time()
                    work(length)
                    if time.thread_time() - begun > SUSPICIOUS:
                        pytest.fail(f"{beginning!r}, {repeated!r} ..., {ending!r}")
                begun = time.thread_time()
                work(LENGTH)
                if time.thread_time() - begun > SUSPICIOUS:
                    check_growth(work, LENGTH // 8)


def _apply(pattern: re.Pattern[str] | re.Pattern[bytes], method: str, text: str) -> None:
    given = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    call = getattr(pattern, method)
    result = call("", given) if method == "sub" and isinstance(given, str) else (
        call(b"", given) if method == "sub" else call(given)
    )  # fmt: skip
    if method == "finditer":
        list(result)
