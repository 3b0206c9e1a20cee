"""Draws docs/images/live-page-*.png: the live page in Chromium.

The pictures of the documents are of a real server under load:

    .venv/bin/python -m scripts.draw_page_pictures docs/images --address http://localhost:8501/

Without --address it draws the fake busy scene of the page's tests.
"""

import argparse
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from serving.base.clock import SystemClock
from tests.integration.page_server import serve_page
from tests.unit.fakes.page import busy_scene

COLOR_COUNT = 128
"""The size of a picture's palette: enough for flat colours and smooth text, and a third of the bytes."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--address", default="", metavar="URL", help="page of a server that runs")
    parsed = parser.parse_args()
    directory = parsed.directory
    with _address(parsed.address) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 400)):
            path = directory / f"live-page-{scheme}-{width}.png"
            path.write_bytes(_draw(browser, address, scheme, width))
            print(f"{path}: {path.stat().st_size} bytes")


@contextmanager
def _address(given: str) -> Iterator[str]:
    """Yields the address given, or that of the faked scene while it is served."""
    if given:
        yield given
        return
    clock = SystemClock()
    with serve_page(busy_scene(clock), clock) as address:
        yield address


def _draw(browser: Browser, address: str, scheme: str, width: int) -> bytes:
    page = browser.new_page(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
        locale="en-GB",
    )
    page.goto(address)
    expect(page.locator("#connection")).to_have_text("live")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    page.close()
    content = io.BytesIO()
    picture.quantize(COLOR_COUNT).save(content, "PNG", optimize=True)
    return content.getvalue()


if __name__ == "__main__":
    main()
