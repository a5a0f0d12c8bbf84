"""What happens in a run: changes, and faults of machines, clocks and connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractResolver

from tests.harnesses.simulation.history import Wrong
from tests.harnesses.simulation.loop import Machine
from tests.harnesses.simulation.world import BASE, RESOURCES, Hub, HubMachine, Simulated

if TYPE_CHECKING:
    from tests.harnesses.simulation.run import Run

_DAY, _HOUR = 86_400.0, 3_600.0
_FORGED = b"""<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" \
xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="change-notification" \
from="%s" until="%s"/><url><loc>%sr/0</loc><rs:md change="deleted" datetime="%s"/></url></urlset>"""


def change(run: Run) -> None:
    random = run.loop.random
    number, delete = random.randrange(RESOURCES), random.random() < 0.25
    alive = [each for each in run.sources if each.machine is not None and not each.is_paused]
    if alive:
        run.note(f"change {number}{' to nothing' * delete}")
        random.choice(alive).change(number, delete=delete)


def burst(run: Run) -> None:
    for _ in range(run.loop.random.choice((5, 20))):
        change(run)


def kill_or_start(run: Run) -> None:
    each = run.loop.random.choice(run.machines)
    run.note(f"{'start' if each.machine is None else 'kill'} {each.name}")
    if each.machine is None:
        each.start()
    else:
        each.kill()


def pause(run: Run) -> None:
    each = run.loop.random.choice(run.machines)
    if each.machine is not None and not each.is_paused:
        run.note(f"pause {each.name}")
        each.machine.pause()


def resume(run: Run) -> None:
    for each in run.machines:
        if each.machine is not None and each.is_paused:
            run.note(f"resume {each.name}")
            each.machine.resume()


def partition(run: Run) -> None:
    one, other = run.loop.random.sample([each.name for each in run.machines], 2)
    run.note(f"partition {one} {other}")
    run.network.partition(one, other)


def heal(run: Run) -> None:
    run.note("heal")
    run.network.heal()


def reset(run: Run) -> None:
    run.note("reset a connection")
    run.network.reset_one()


def delay(run: Run) -> None:
    seconds = run.loop.random.choice((1.0, 30.0, _HOUR))
    run.note(f"delay a connection by {seconds:.0f} s")
    run.network.delay_one(seconds)


def flood(run: Run) -> None:
    """Delay what the hubs send to a Destination, and change much, so that queues overflow."""
    name = run.loop.random.choice(run.destinations).name
    run.note(f"delay what hubs send to {name}, and change much")
    run.network.delay_from({each.name for each in run.hubs}, name, 30.0)
    for second in range(8):
        run.loop.call_at(run.loop.now + second / 4, change, run)


def be_absent(run: Run) -> None:
    """Stop a Destination, until the lists of what is deleted meanwhile are gone."""
    each = run.loop.random.choice(run.destinations)
    if each.machine is None or each.is_paused:
        return
    run.note(f"{each.name} is absent")
    each.kill()
    for second in range(12):
        run.loop.call_at(run.loop.now + second, _delete_or_change, run)
    run.loop.call_at(run.loop.now + 25, _return, run, each)


def _delete_or_change(run: Run) -> None:
    alive = [each for each in run.sources if each.machine is not None and not each.is_paused]
    if alive:
        random = run.loop.random
        alive[0].change(random.randrange(RESOURCES), delete=random.random() < 0.5)


def _return(run: Run, each: Simulated) -> None:
    if each.machine is None:
        run.note(f"{each.name} returns")
        each.start()


def set_clock(run: Run) -> None:
    """Set the clock of a machine an hour back, a day ahead or right, or stop it."""
    each = run.loop.random.choice(run.machines)
    what = run.loop.random.choice(("back", "ahead", "right", "stop"))
    run.note(f"clock of {each.name}: {what}")
    if what == "stop":
        each.clock.stop(run.loop.now)
    else:
        each.clock.set({"back": -_HOUR, "ahead": _DAY, "right": 0.0}[what])


def cut_power(run: Run) -> None:
    """Cut the power of a machine now, or at one of its next flushes."""
    disk = run.loop.random.choice(sorted(run.loop.disks.values(), key=lambda each: each.folder))
    if not run.world.power or disk.steps is not None:
        return
    steps = run.loop.random.choice((0, 0, 1, 2, 5, 10, 20, 40))
    if steps:
        run.note(f"the power of {disk.folder} will be cut at flush {steps}")
        disk.steps = steps - 1
    else:
        disk.cut()


def lose_log(run: Run) -> None:
    """Delete the data of a hub that is down."""
    for each in run.hubs:
        if each.machine is None and isinstance(each, HubMachine):
            run.note(f"{each.name} loses its data")
            each.lose_data()
            each.disk.settle()
            run.wire.forgotten(each.name)
            return


def back_up_or_restore(run: Run) -> None:
    """Copy the folder of a Source that is down, or replace it by the copy."""
    if any(each.machine is not None for each in run.sources) or not run.app.folder.exists():
        return
    if not run.app.has_backup:
        run.note("back up the Source")
        run.app.back_up()
    elif run.loop.random.random() < 0.5:
        run.note("restore the Source from the backup")
        run.app.restore()
        run.sources[0].disk.settle()


def break_link(run: Run) -> None:
    """Remove a resource that the documents list from the server, or restore it."""
    if run.world.dead and run.links.random() < 0.2:
        uri = f"{BASE}r/{run.links.randrange(RESOURCES)}"
        run.app.dead ^= {uri}
        run.note(f"{uri} is {'dead' if uri in run.app.dead else 'there again'}")


def intrude(run: Run) -> None:
    """I8: publish a forged deletion without a token, which must be refused."""
    for hub in run.hubs:
        run.intruder.spawn(_publish(run, hub))


async def _publish(run: Run, hub: Hub) -> None:
    instants = [f"2026-01-0{day}T00:00:00Z".encode() for day in (1, 2)]
    body = _FORGED % (*instants, BASE.encode(), instants[1])
    link = f'<{BASE}channel.xml>; rel="self"'
    headers = {"Content-Type": "application/xml", "Link": link}
    try:
        async with (
            open_client() as client,
            client.post(hub.url + "websub", data=body, headers=headers) as response,
        ):
            run.note(f"an intruder gets {response.status}")
            if response.status < 400:
                raise Wrong(f"I8: {hub.name} accepts what a stranger publishes")
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass


def open_client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=_Resolver()))


class _Resolver(AbstractResolver):
    async def resolve(self, host: str, port: int = 0, family: object = 0) -> list[object]:  # type: ignore[override]
        return [{"hostname": host, "host": host, "port": port, "family": 2, "proto": 6, "flags": 0}]

    async def close(self) -> None: ...


Actions = Mapping[Callable[[Any], None], float]
#: What may happen, and how often.
ACTIONS: dict[Callable[[Any], None], float] = {
    change: 52,
    burst: 3,
    kill_or_start: 18,
    pause: 2,
    resume: 3,
    partition: 6,
    heal: 5,
    reset: 3,
    delay: 2,
    flood: 2,
    be_absent: 1,
    set_clock: 2,
    cut_power: 4,
    lose_log: 2,
    back_up_or_restore: 2,
    intrude: 1,
}


def act(run: Run) -> None:
    (action,) = run.loop.random.choices(list(run.actions), list(run.actions.values()))
    action(run)


def end(run: Run) -> None:
    run.note("the faults end")
    run.wire.is_faulty = False
    run.app.dead.clear()
    run.network.heal()
    resume(run)
    for disk in run.loop.disks.values():
        disk.steps = None
    each: Simulated
    for each in run.machines:
        each.clock.set(0.0)
        if each.machine is None:
            each.start()


def make_intruder(run: Run) -> Machine:
    machine = Machine(run.loop, "intruder")
    run.network.register(machine)
    return machine
