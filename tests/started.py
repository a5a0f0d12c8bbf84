"""Prints what a process sees that was just started, apart from what is of each process."""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from pathlib import Path


def stream(name: str) -> dict[str, object]:
    found = getattr(sys, name)
    assert found is getattr(sys, f"__{name}__")
    attributes = ("encoding", "errors", "line_buffering", "write_through", "newlines", "name")
    return {name: getattr(found, name) for name in attributes} | {
        "fileno": found.fileno(),
        "tty": found.isatty(),
        "mode": found.mode,
        "readable": found.readable(),
    }


def facts() -> dict[str, object]:
    status = Path("/proc/self/status").read_text().splitlines()
    main = sys.modules["__main__"]
    return {
        "arguments": sys.argv,
        "main": (main.__spec__.name, main.__package__, main.__file__),  # type: ignore[union-attr]
        "path": sys.path,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "files": sorted(os.listdir("/proc/self/fd"))[:4],
        "parent": os.getppid(),
        "same session": os.getsid(0) != os.getpid() and os.getsid(0),
        "same group": os.getpgid(0) != os.getpid() and os.getpgid(0),
        "signals": [str(signal.getsignal(number)).partition(" at ")[0] for number in range(1, 32)],
        "status": [line for line in status if line.startswith(("SigB", "SigC", "SigI", "Umask"))],
        "limits": [resource.getrlimit(limit) for limit in range(10)],
        "streams": [stream(name) for name in ("stdin", "stdout", "stderr")],
        "flags": str(sys.flags),
        "warnings": [str(one) for one in warnings.filters if "aiohttp" not in str(one)],
        "threads": [one.name for one in threading.enumerate()],
        "garbage": [gc.isenabled(), gc.get_threshold()],
        "recursion": sys.getrecursionlimit(),
    }


class Garbage:
    """What only the collector destroys."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        print("destroyed", file=sys.stderr)


print(json.dumps(facts()))
print(json.dumps([os.getpid(), random.random()]))
if "fail" in sys.argv:
    raise ValueError("as asked")
if "text" in sys.argv:
    sys.exit("as asked")
if "late" in sys.argv:
    sys.stderr.write("\n")
    main = threading.main_thread()
    atexit.register(lambda: print("at the end", threading.enumerate() == [main], file=sys.stderr))
    threading.Thread(target=lambda: (main.join(), print("after all", file=sys.stderr))).start()
    garbage = Garbage()
    del garbage
    sys.exit(3)
if "wait" in sys.argv:
    sys.stdout.flush()
    while True:  # a signal that arrives just before it would not end `signal.pause`
        time.sleep(0.05)
