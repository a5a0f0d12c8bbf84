"""Cut the power of a Source, a hub and a Destination at thousands of instants.

python -m tests.harnesses.power_cuts --cuts 10000 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.harnesses.power_cuts.destination import traced_destination
from tests.harnesses.power_cuts.hub import traced_hub
from tests.harnesses.power_cuts.source import traced_source
from tests.harnesses.power_cuts.trace import why_untraceable

EXPERIMENTS = {"source": traced_source, "hub": traced_hub, "destination": traced_destination}
#: Only memory is fast enough, and it need not be a disk: nothing of it is flushed.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


async def cut(name: str, cuts: int, seed: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="rsnotify-power-cuts-", dir=MEMORY) as folder:
        async with EXPERIMENTS[name](Path(folder)) as experiment:
            begun = time.monotonic()
            findings = await experiment.run(cuts, seed, most=10)
    seconds = time.monotonic() - begun
    print(f"{name}: {findings.cuts} power cuts in {seconds:.0f} s, {len(findings.wrong)} wrong")
    return findings.wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=10_000, help="how often the power is cut")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", choices=EXPERIMENTS, help="one of them alone")
    arguments = parser.parse_args()
    if (reason := why_untraceable()) is not None:
        print(reason, file=sys.stderr)
        return 2
    print(f"seed {arguments.seed}", flush=True)
    logging.disable()
    names = [arguments.only] if arguments.only else list(EXPERIMENTS)
    each = -(-arguments.cuts // len(names))
    wrong = [line for name in names for line in asyncio.run(cut(name, each, arguments.seed))]
    print("\n".join(wrong) or "nothing was lost")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
