"""Two hubs as real processes, one of which is killed."""

from __future__ import annotations

from pathlib import Path

from rsnotify.commands.processes import free_port
from tests.subscriber.processes import running, until_reported


async def test_a_killed_hub_is_followed_by_the_other_within_seconds(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    first, second = (f"ws://127.0.0.1:{port}/ws" for port in ports)
    hubs = [("hub", "--port", port, "--data", tmp_path / str(port)) for port in ports]
    data, base = tmp_path / "data", f"http://127.0.0.1:{free_port()}/"
    data.mkdir()
    (data / "one").write_text("1")
    source = ("source", data, "--base-url", base, "--port", base.split(":")[2][:-1])
    follow = ("follow", base, tmp_path / "mirror", "--json", "--poll", 600)
    async with (
        running(*hubs[0]) as better,
        running(*hubs[1]),
        running(*source, "--hub", first, "--hub", second),
        running(*follow, "--allow-private-addresses") as follower,
    ):
        await until_reported(follower, way=[first], resources=1, level=True)
        better.kill()
        await until_reported(follower, way=[second], push="up")
        (data / "two").write_text("2")
        await until_reported(follower, resources=2, level=True)
    assert (tmp_path / "mirror/two").read_text() == "2"
