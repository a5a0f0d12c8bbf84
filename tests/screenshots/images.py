"""What a browser shows, as WebP: a picture of a page in light and dark, or a film of it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image

from tests.browser import Browser, Page

#: Pixels for each pixel of CSS, so that text is sharp on most screens.
_DENSITY = 1.5
_MOST_BYTES = 250_000
_MOST_FILM_BYTES = 2_000_000
_FORMS = ("light", "dark")


@asynccontextmanager
async def both(browser: Browser, url: str, width: int, height: int) -> AsyncIterator[list[Page]]:
    """Open a page twice: in light and in dark."""
    async with AsyncExitStack() as stack:
        pages = []
        for form in _FORMS:
            page = await stack.enter_async_context(browser.open(url, dark=form == "dark"))
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=_DENSITY,
                mobile=False,
            )
            pages.append(page)
        yield pages


async def take(pages: list[Page], folder: Path, name: str) -> None:
    """Write what both pages show."""
    shown = await asyncio.gather(*map(_image, pages))
    for form, image in zip(_FORMS, shown, strict=True):
        # In a thread, so that what is shown goes on meanwhile.
        await asyncio.to_thread(_write, folder / f"{name}-{form}.webp", image)


async def _image(page: Page) -> Image.Image:
    answer = await page.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)
    return Image.open(BytesIO(base64.b64decode(answer["data"]))).convert("RGB")


def _write(file: Path, image: Image.Image) -> None:
    image.save(file, lossless=True, method=6, quality=100)
    if file.stat().st_size > _MOST_BYTES:
        image.save(file, quality=85, method=6)
    _check(file, _MOST_BYTES)


def _check(file: Path, most: int) -> None:
    size = file.stat().st_size
    print(f"{file}: {size / 1000:.0f} kB")
    assert size <= most, f"{file} has {size} bytes, more than {most}"


class Film:
    """Frames of both pages at the pace at which they came, and pauses to read a caption."""

    def __init__(self, pages: list[Page]) -> None:
        self._pages = pages
        self._frames: list[list[Image.Image]] = []
        self._milliseconds: list[int] = []

    async def take(self, seconds: float) -> None:
        """Add a frame that stays for so long."""
        self._frames.append(await asyncio.gather(*map(_image, self._pages)))
        self._milliseconds.append(round(1000 * seconds))

    async def roll(self, seconds: float, pace: float = 0.3) -> None:
        """Add frames for so long."""
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            await self.take(0)
            await asyncio.sleep(begun + pace - time.monotonic())
            self._milliseconds[-1] = round(1000 * (time.monotonic() - begun))

    def hold(self, seconds: float) -> None:
        """Show the last frame for longer."""
        self._milliseconds[-1] += round(1000 * seconds)

    def write(self, folder: Path, name: str) -> None:
        for form, (first, *others) in zip(_FORMS, zip(*self._frames, strict=True), strict=True):
            file = folder / f"{name}-{form}.webp"
            first.save(
                file,
                save_all=True,
                append_images=others,
                duration=self._milliseconds,
                loop=0,
                lossless=True,
                method=4,
                minimize_size=True,
            )
            _check(file, _MOST_FILM_BYTES)
