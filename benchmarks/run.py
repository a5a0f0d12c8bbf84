"""Every benchmark, one after the other: `make bench`, or `make bench ARGS=latency`."""

from __future__ import annotations

import sys
import traceback

import backlog
import callbacks
import cluster
import copy_check
import documents
import fanout
import first_copy
import inline
import large_sets
import latency
import recording
import restart
import scale
import source
import targets

BENCHMARKS = {
    "documents": documents.main,
    "latency": latency.main,
    "recording": recording.main,
    "source": source.main,
    "inline": inline.main,
    "first-copy": first_copy.main,
    "backlog": backlog.main,
    "copy-check": copy_check.main,
    "large-sets": large_sets.main,
    "fanout": fanout.main,
    "callbacks": callbacks.main,
    "restart": restart.main,
    "scale": scale.main,
    "cluster": cluster.main,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all; those after one that fails, too."""
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"there is no benchmark {name}; there are: {', '.join(BENCHMARKS)}")
    failed = []
    for name in names or BENCHMARKS:
        try:
            BENCHMARKS[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
    targets.show()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
