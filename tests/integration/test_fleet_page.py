"""The page of a fleet in a real Chromium, over a coordinator whose servers are values."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import BrowserContext, expect

from fleet.http.api import FleetApi
from fleet.lead.coordinator import Coordinator
from fleet.rollout.figures import VersionFigures
from fleet.rollout.reports import ModelReport, ServerReport
from serving.base.clock import SystemClock
from tests.fleet.fakes.state_stores import MemoryStore
from tests.fleet.worlds.fleet import SETTINGS, requests, serving
from tests.fleet.worlds.leads import lead_of
from tests.integration.page_server import serve_routes
from tests.integration.page_visit import (
    FIND_LOW_CONTRAST,
    FIND_TOUCHING_TEXT,
    OpenPage,
    opened_pages,
    running_browser,
)

FOUND = frozenset({1, 2})
SERVERS = ("a", "b", "c")
MARKUP = '<img src=x onerror="window.hit=1">\'&amp;</script><script>window.hit=1</script>'


class Fleet:
    """A coordinator, and the reports of its servers."""

    def __init__(self, model: str = "ctr") -> None:
        clock = SystemClock()
        self.model = model
        self.coordinator = Coordinator(MemoryStore(), lambda grants: None, SETTINGS, clock)
        self.coordinator.set_servers([*SERVERS, "silent"])
        self.routes = FleetApi(lead_of(self.coordinator), SETTINGS, clock).routes
        self.reports = {name: serving(1, found=FOUND) for name in SERVERS}

    def report(self, name: str, model: ModelReport, *, is_draining: bool = False) -> None:
        self.reports[name] = model
        report = ServerReport(models={self.model: model}, is_draining=is_draining)
        self.coordinator.receive(name, report)

    def begin_rollout(self) -> str:
        """Lets every server report, and returns the first server of version 2, which serves it."""
        for name in SERVERS:
            self.report(name, self.reports[name])
        self.report("silent", serving(1, found=FOUND), is_draining=True)
        self.coordinator.step()
        (member,) = self.coordinator.state.models[self.model].loading
        order = self.coordinator.state.order
        self.report(member, serving(2, found=FOUND, order=order))
        self.coordinator.step()
        return member

    def answer(self, name: str, version: int, figures: VersionFigures) -> None:
        report = self.reports[name]
        row = replace(report.versions[version], figures=figures)
        self.report(name, replace(report, versions={version: row}))


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with running_browser() as started:
        yield started


@pytest.fixture
def open_page(browser: BrowserContext) -> Iterator[OpenPage]:
    with opened_pages(browser) as open_:
        yield open_


def test_page_follows_a_rollout_live(open_page: OpenPage) -> None:
    fleet = Fleet()
    with serve_routes(fleet.routes) as address:
        page = open_page(address).page
        expect(page.locator("#models-empty")).to_be_visible()
        expect(page.locator("[data-tile=unknown] dd")).to_have_text("4")
        member = fleet.begin_rollout()
        expect(page.locator("[data-tile=live] dd")).to_have_text("3")
        expect(page.locator("[data-tile=draining] dd")).to_have_text("1")
        model = page.locator("[data-model=ctr]")
        expect(model.locator("h2")).to_have_text("ctr")
        rollout = model.locator("[data-part=rollout]")
        expect(rollout).to_contain_text("version 2 is in wave 1 of 3: 1 of 1 servers serve it")
        for name in SERVERS:
            version, latency_ns = (2, 9_000_000) if name == member else (1, 2_000_000)
            fleet.answer(name, version, requests(990, latency_ns=latency_ns))
        compared = model.locator(".compared tbody tr")
        expect(compared.nth(0)).to_contain_text("version 2 in the wave")
        expect(compared.nth(0).locator("td.number")).to_have_text(
            ["990", "0", "9.05 ms", "9.05 msfrom only 990 requests"]
        )
        expect(compared.nth(1).locator("td.number").nth(0)).to_have_text("1,980")
        expect(model.locator(".versions-of tbody tr")).to_have_count(2)
        expect(page.locator("#servers tr").first).to_contain_text("silent")


def test_page_shows_a_verdict_and_what_it_blocks(open_page: OpenPage) -> None:
    fleet = Fleet()
    member = fleet.begin_rollout()

    def answer(count: int) -> None:
        for name in SERVERS:
            version, latency_ns = (2, 9_000_000) if name == member else (1, 2_000_000)
            fleet.answer(name, version, requests(count, latency_ns=latency_ns))
        fleet.coordinator.step()

    answer(2_000)
    with serve_routes(fleet.routes) as address:
        model = open_page(address).page.locator("[data-model=ctr]")
        expect(model.locator("[data-part=rollout]")).to_contain_text(
            "It is compared once more: 20.0%"
        )
        answer(4_000)
        verdict = model.locator(".verdicts tbody tr")
        expect(verdict).to_contain_text("version 2, wave 1")
        expect(verdict.locator(".badge")).to_have_text("failed")
        expect(verdict.locator("td.reason")).to_contain_text("times the stable version's")
        expect(verdict.locator("td.number")).to_have_text(
            ["2,000", "9.05 ms2.02 ms", "9.05 ms2.02 ms"]
        )
        expect(model.locator(".blocked tbody tr")).to_contain_text("blocked by its judgement")
        expect(model.locator("[data-part=rollout]")).to_have_count(0)


def test_page_reads_no_name_as_markup(open_page: OpenPage) -> None:
    fleet = Fleet(MARKUP)
    fleet.begin_rollout()
    with serve_routes(fleet.routes) as address:
        page = open_page(address).page
        expect(page.locator(".model h2")).to_have_text(MARKUP)
        assert page.evaluate("window.hit") is None


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (380, "light")])
def test_page_is_readable(open_page: OpenPage, width: int, scheme: str) -> None:
    fleet = Fleet()
    member = fleet.begin_rollout()
    fleet.answer(member, 2, requests(2_000, failed=2_000))
    fleet.coordinator.step()
    with serve_routes(fleet.routes) as address:
        page = open_page(address, width=width, scheme=scheme).page
        expect(page.locator(".verdicts")).to_be_visible()
        contrast = page.evaluate(FIND_LOW_CONTRAST)
        assert contrast["seen"] > 30
        assert contrast["found"] == []
        assert page.evaluate(FIND_TOUCHING_TEXT) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_page_notices_that_its_coordinator_ends(open_page: OpenPage) -> None:
    fleet = Fleet()
    fleet.begin_rollout()
    with serve_routes(fleet.routes) as address:
        page = open_page(address).page
    expect(page.locator("#connection")).to_have_text("no connection")
    expect(page.locator("#lost")).to_contain_text("Servers serve on without it")
