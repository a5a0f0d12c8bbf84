"""No regular expression of the project takes more than linear time, whatever it is given.

The expressions are found in the source, with the methods by which they are used. Each gets texts
that begin in some way, repeat something many times, and end in a way that no expression matches.

None is affected by a defect of possessive groups in Python before 3.11.5, either.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import product, starmap
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import pytest

from tests.cases import case
from tests.growth import check_growth, limited, timed
from tests.packages import PACKAGES

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
ENDINGS = ["", "\x00\n!"]
#: A length for which an expression ends at once, unless it takes exponential time.
SHORT = 18
#: The length of long texts.
LENGTH = 1_000
#: Compared with the time that a quadratic expression takes for a long text, the growth of what
#: takes less than this part is not measured.
SUSPICIOUS = 0.25
#: Texts whose time is measured together first, since hardly any takes long.
AT_ONCE = 20
#: What may be repeated possessively: an atomic group, or one character.
NOT_AFFECTED = {
    _constants.ATOMIC_GROUP, _constants.LITERAL, _constants.NOT_LITERAL, _constants.IN,
    _constants.ANY,
}  # fmt: skip

AnyPattern = re.Pattern[str] | re.Pattern[bytes]
Use = tuple[str, AnyPattern, str]
#: A text, and its bytes.
Both = tuple[str, bytes]


class Text(NamedTuple):
    """How a text begins, what is repeated, and how it ends."""

    beginning: str
    repeated: str
    ending: str

    def of(self, length: int) -> Both:
        text = self.beginning + self.repeated * (length // len(self.repeated)) + self.ending
        return text, text.encode("latin-1", "replace")


TEXTS = list(starmap(Text, product(BEGINNINGS, REPEATED, ENDINGS)))


def expressions(package: str) -> Iterator[Use]:
    """Yield every expression with its place and each method by which it is used."""
    folder = PACKAGES[package]
    for path in sorted((folder / package).rglob("*.py")):
        source = path.read_text()
        if not re.search(r"\bre\.", source):
            continue
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        yield from _used(name, module, ast.parse(source))


def _used(module_name: str, module: object, tree: ast.Module) -> Iterator[Use]:
    found: dict[tuple[str, str], AnyPattern] = {}
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
    # Those in tables, in classes and in functions, whose use no name shows.
    known = {id(pattern) for pattern in found.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
            with suppress(NameError):  # of an argument: the module has a name for the result
                pattern = eval(ast.unparse(node), vars(module))
                if id(pattern) not in known:  # `re` returns one object for one expression
                    found[f"without a name, {len(found)}", "fullmatch"] = pattern
    for (name, method), pattern in found.items():
        yield f"{module_name} {name}.{method}", pattern, method


@pytest.fixture(scope="module")
def short() -> list[Both]:
    return [text.of(SHORT) for text in TEXTS]


@pytest.fixture(scope="module")
def long() -> list[Both]:
    return [text.of(LENGTH) for text in TEXTS]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_expression_takes_linear_time(package: str, short: list[Both], long: list[Both]):
    for place, pattern, method in expressions(package):
        with case(place):
            check_linear(pattern, method, short, long)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_possessive_group_is_atomic(package: str):
    """Before Python 3.11.5, a match continues where the last, failed repetition ended.

    See python/cpython#106052. An atomic group ends where it began if it fails.
    """
    for place, pattern, _ in expressions(package):
        with case(place):
            assert not list(possessive_groups(pattern))


def test_a_possessive_group_is_found():
    for expression, count in {r"(?:a[b]*+c)*+": 1, r"x|(?>(a|(b.)?+)++)": 2, "(?>ab)*+": 0}.items():
        assert len(list(possessive_groups(re.compile(expression)))) == count, expression


def possessive_groups(pattern: AnyPattern) -> Iterator[object]:
    """Yield what is repeated possessively, longer than one character, and not atomic."""
    # `re.compile` adds this flag to expressions of text, and `parse` refuses it with bytes.
    return _possessive_groups(_parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))


def _possessive_groups(part: Any) -> Iterator[object]:
    if isinstance(part, tuple) and part[0] is _constants.POSSESSIVE_REPEAT:
        repeated = part[1][2]
        if len(repeated) > 1 or repeated[0][0] not in NOT_AFFECTED:
            yield repeated
    if isinstance(part, _parser.SubPattern | list | tuple):
        for each in part:
            yield from _possessive_groups(each)


def check_linear(pattern: AnyPattern, method: str, short: list[Both], long: list[Both]) -> None:
    work = partial(_apply, pattern, method)
    with limited(60):
        assert next(slow(work, short), None) is None, "it takes exponential time"
        for text in slow(work, long):
            repeat = partial(_repeat, work, text)
            check_growth(repeat, LENGTH // 2, longest=32 * LENGTH)


def _repeat(work: Callable[[Both], None], text: Text, length: int) -> None:
    work(text.of(length))


def slow(work: Callable[[Both], None], texts: list[Both]) -> Iterator[Text]:
    """Yield the texts that take suspiciously long on this machine."""

    def work_on(some: list[Both]) -> None:
        for given in some:
            work(given)

    longest = _suspicious_time()
    for first in range(0, len(TEXTS), AT_ONCE):
        some = texts[first : first + AT_ONCE]
        if timed(work_on, some) <= longest:
            continue  # so does each of them
        for text, given in zip(TEXTS[first : first + AT_ONCE], some, strict=True):
            if timed(work, given) > longest and timed(work, given) > longest:
                yield text


@cache
def _suspicious_time() -> float:
    quadratic = partial(_apply, re.compile("a+b"), "search")
    return SUSPICIOUS * min(timed(quadratic, ("a" * LENGTH, b"")) for _ in range(10))


@pytest.mark.parametrize("expression", ["(a|a)*b", r"(\w+\s?)*!"])
def test_an_exponential_expression_is_found(expression: str, short: list[Both], long: list[Both]):
    with pytest.raises(AssertionError, match="exponential"):
        check_linear(re.compile(expression), "match", short, long)


@pytest.mark.parametrize("expression", [r"a+b"])
def test_a_quadratic_expression_is_found(expression: str, short: list[Both], long: list[Both]):
    with pytest.raises(AssertionError, match="times as long"):
        check_linear(re.compile(expression), "search", short, long)


def _apply(pattern: AnyPattern, method: str, text: Both) -> None:
    given = text[isinstance(pattern.pattern, bytes)]
    # `sub` and `finditer` look for all matches, too.
    getattr(pattern, "findall" if method in ("sub", "finditer") else method)(given)
