"""Pages in a real Chromium: an open page, and its checks."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlparse

from playwright.sync_api import BrowserContext, Page, Response, expect, sync_playwright

from tests.integration.clients import TIMEOUT_SECONDS

# An expectation waits as long as any other test.
expect.set_options(timeout=1_000 * TIMEOUT_SECONDS)

CHROMIUM = shutil.which("chromium")

# Counts the pixels of a canvas in one of the page's colours, with a tolerance for antialiasing.
COUNT_PIXELS = """
([selector, name]) => {
  const probe = document.createElement("i");
  probe.style.color = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  document.body.append(probe);
  const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  const canvas = document.querySelector(`${selector} canvas`);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 200 && [0, 1, 2].every((c) => Math.abs(data[i + c] - wanted[c]) < 24)) count += 1;
  }
  return count;
}
"""

# Returns all visible text with its contrast to the background (WCAG 2).
FIND_LOW_CONTRAST = """
() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => {
    const alpha = top[3] ?? 1;
    return [0, 1, 2].map((c) => top[c] * alpha + below[c] * (1 - alpha));
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const color = numbers(getComputedStyle(element).backgroundColor);
    return (color[3] ?? 1) === 1 ? color : over(color, behind(element.parentElement));
  };
  const found = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    seen += 1;
    const below = behind(element);
    const text = over(numbers(getComputedStyle(element).color), below);
    const [low, high] = [luminance(text), luminance(below)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return { seen, found };
}
"""


# Returns pieces of text of two cells, or tiles, that touch or overlap on one line.
FIND_TOUCHING_TEXT = """
() => {
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const cell = element.closest("td, th, .tiles div");
    if (!cell || !walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects()) texts.push({ cell, element, box, text: walker.currentNode.data });
  }
  const found = [];
  for (const one of texts) {
    for (const other of texts) {
      if (one === other || one.text === other.text && one.element === other.element) continue;
      const isOnLine = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top) > 2;
      if (!isOnLine || one.box.left > other.box.left) continue;
      const gap = other.box.left - one.box.right;
      const isOfOneCell = one.cell === other.cell;
      const isGlued = gap < 2 && /[0-9]$/.test(one.text) && /^[0-9]/.test(other.text);
      if (isOfOneCell ? isGlued : gap < 4) found.push(`${one.text} | ${other.text}: ${gap.toFixed(1)}`);
    }
  }
  return found;
}
"""


@dataclass
class Visit:
    """An open page and the messages of the browser."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    polls: list[Response] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", lambda message: self._console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlparse(request.url).netloc))
        self.page.on("response", self._response)

    def _console(self, kind: str, text: str) -> None:
        # The page polls until its test has stopped the server.
        is_of_stopped_server = "ERR_CONNECTION_REFUSED" in text
        if kind in ("error", "warning") and not is_of_stopped_server:
            self.complaints.append(text)

    def _response(self, response: Response) -> None:
        if response.url.partition("?")[0].endswith("/page"):
            self.polls.append(response)

    def resize(self, width: int) -> None:
        """Gives the window this width, and waits until the page is drawn anew."""
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def pixels(self, chart: str, color: str) -> int:
        count: int = self.page.evaluate(COUNT_PIXELS, [f"#{chart}", color])
        return count


OpenPage = Callable[..., Visit]


@contextmanager
def running_browser() -> Iterator[BrowserContext]:
    """A Chromium with one context for all pages: they store nothing, and a context takes a second of its own."""
    assert CHROMIUM, "no chromium: scripts/install_packages.sh test"
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root; the pages that it opens here are ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(locale="en-GB")
        context.set_default_timeout(1_000 * TIMEOUT_SECONDS)
        yield context


@contextmanager
def opened_pages(browser: BrowserContext) -> Iterator[OpenPage]:
    """Opens pages and waits for their first data. The browser must log no error."""
    visits: list[Visit] = []

    def open_(address: str, *, width: int = 1280, scheme: str = "light", path: str = "/") -> Visit:
        page = browser.new_page()
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        visit = Visit(page, address)
        visits.append(visit)
        visit.watch()
        page.goto(address + path)
        expect(page.locator("#connection")).to_have_text("live")
        return visit

    yield open_
    for visit in visits:
        visit.page.close()
    for visit in visits:
        assert visit.complaints == []
        assert visit.hosts == {urlparse(visit.address).netloc}
