"""Whatever arrives at a surface is accepted or refused, at a cost in proportion to its length.

`make fuzz` looks for more; what it finds is in `tests/harnesses/fuzzing/found/`, and is tried here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings

from tests.examples_count import examples
from tests.growth import TIMES, check_growth
from tests.harnesses.fuzzing import fuzz, memory
from tests.harnesses.fuzzing.mutations import mutated
from tests.harnesses.fuzzing.surface import Surface
from tests.harnesses.fuzzing.surfaces import SURFACES

#: What a library does that opens a file, connects, or resolves a name.
OPENING = ("open", "os.open", "socket.connect", "socket.getaddrinfo", "urllib.Request")
FOUND = sorted(fuzz.FOUND.glob("*/*"))
#: The calls that any input may cost, and those for each of its bytes.
CALLS, CALLS_PER_BYTE = 30_000, 60
#: The smaller of the sizes at which calls are counted, and time is measured.
COUNTED, MEASURED = 2_500, 16_000
#: Calls that need not be in proportion, such as those for the first of several buffers.
UNEVEN = 2_000
#: Seconds of processor time for `TIMES * MEASURED` bytes that are too few to be quadratic: the
#: longest input of all would then take less than a second.
FAST = 0.004

every_surface = pytest.mark.parametrize("name", SURFACES)


@every_surface
def test_no_input_raises_another_exception_or_costs_too_much(name: str):
    surface = SURFACES[name]
    for seed in surface.seeds:  # which also imports what is needed
        surface.attempt(seed)

    @settings(max_examples=examples(40), database=None)
    @given(mutated(surface))
    def run(data: bytes) -> None:
        assert calls(partial(surface.attempt, data)) <= CALLS + CALLS_PER_BYTE * len(data)

    run()


@every_surface
def test_input_that_ends_at_any_byte_raises_no_other_exception(name: str):
    seed = SURFACES[name].seeds[0]
    for end in range(len(seed)):
        SURFACES[name].attempt(seed[:end])


@every_surface
def test_input_that_names_a_file_or_a_server_opens_neither(name: str, tmp_path: Path):
    surface = SURFACES[name]
    surface.attempt(surface.seeds[0])  # imports what it needs
    file = tmp_path / "file"
    file.write_bytes(surface.seeds[0])
    for form in ("{}", "file://{}", "file:{}", "http://127.0.0.1:1{}"):
        with opened(str(file)) as found:
            surface.attempt(form.format(file).encode())
        assert found == [], form


@contextmanager
def opened(path: str) -> Iterator[list[str]]:
    """Note which events of a path, or of connections, this thread causes within the context."""
    found: list[str] = []
    thread, is_on = threading.get_ident(), True

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if is_on and event in OPENING and threading.get_ident() == thread:
            is_other_file = "open" in event and path not in repr(arguments[0])
            if not is_other_file:
                found.append(f"{event} {arguments!r}")

    sys.addaudithook(note)  # which cannot be removed
    try:
        yield found
    finally:
        is_on = False


@pytest.mark.parametrize("path", FOUND, ids=[f"{path.parent.name}-{path.name}" for path in FOUND])
def test_what_was_found_is_handled(path: Path):
    data = path.read_bytes()
    surface = SURFACES[path.parent.name]
    surface.attempt(surface.seeds[0])  # imports what it needs
    assert calls(partial(surface.attempt, data)) <= CALLS + CALLS_PER_BYTE * len(data)


@every_surface
def test_steps_and_time_grow_as_the_input(name: str):
    surface = SURFACES[name]
    for shape in surface.shapes:

        def work(size: int, read: Callable[[bytes], None] = surface.attempt) -> None:
            read(shape.of(size))  # noqa: B023

        small, large = (calls(partial(work, size)) for size in (COUNTED, TIMES * COUNTED))
        assert large <= 1.5 * TIMES * small + UNEVEN, shape
        begun = time.thread_time()
        work(TIMES * MEASURED)
        if time.thread_time() - begun > FAST:
            check_growth(work, MEASURED)


def calls(work: Callable[[], object]) -> int:
    """Return the number of functions that a work calls, in Python and in C."""
    count = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_memory_is_bounded_by_the_length_of_the_input():
    command = [sys.executable, "-m", memory.__name__]
    root = Path(__file__).parents[2]
    measured = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    peaks = dict(line.rsplit(maxsplit=1) for line in measured.stdout.splitlines())
    print(peaks)
    assert {*peaks} == {*SURFACES}
    excessive = {name: peak for name, peak in peaks.items() if int(peak) > memory.MOST}
    assert not excessive


def _quadratic(data: bytes) -> None:
    for end in range(0, len(data), 20):
        data[:end].count(b"b")


@pytest.mark.parametrize("read", [_quadratic, bytes.fromhex], ids=["quadratic", "raising"])
def test_a_surface_that_is_quadratic_or_raises_is_noticed(
    read: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SURFACES, "bad", Surface(read, (b"a",), ()))
    with pytest.raises((AssertionError, TypeError)):
        test_steps_and_time_grow_as_the_input("bad")
