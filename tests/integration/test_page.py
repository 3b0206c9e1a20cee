"""The live page in a real Chromium, over fake figures."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from serving import ModelServer
from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.base.errors import StatusCode
from serving.core.servable import END, GateVerdict, Health, Routing, ServableId
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures
from serving.data_plane.servables import AcceleratedSignature
from serving.monitoring.swap_record import SwapResult
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.exports import ScaleModel, flip_a_byte
from tests.integration.model_host import ModelHost
from tests.integration.page_server import serve_page
from tests.integration.page_visit import (
    FIND_LOW_CONTRAST,
    FIND_TOUCHING_TEXT,
    OpenPage,
    Visit,
    opened_pages,
    running_browser,
)
from tests.integration.rest_clients import RestClient
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.log_store import used_log
from tests.unit.fakes.monitored import FakeParts
from tests.unit.fakes.page import (
    FakeMethod,
    busy_scene,
    latencies,
    span_latency,
    status,
    swap,
)
from tests.unit.fakes.servables import BUSY_RUNS, busy_batching

MARKUP = '<img src=x onerror="window.hit=1">\'&amp;</script><script>window.hit=1</script>'

# Returns the share of a chart's width that its p50 line spans.
DRAWN_SHARE = """
(selector) => {
  const canvas = document.querySelector(`${selector} canvas`);
  const probe = document.createElement("i");
  probe.style.color = getComputedStyle(document.documentElement).getPropertyValue("--p50");
  document.body.append(probe);
  const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const columns = new Set();
  for (let i = 0; i < data.length; i += 4) {
    const isDrawn = data[i + 3] > 200 && [0, 1, 2].every((c) => Math.abs(data[i + c] - wanted[c]) < 24);
    if (isDrawn) columns.add((i / 4) % width);
  }
  const axis = 78 * devicePixelRatio;
  return (Math.max(...columns) - Math.min(...columns)) / (width - axis);
}
"""


class UpForHours(SystemClock):
    """The clock of a machine that runs for longer than the page's history, whatever this one does."""

    def now_ns(self) -> int:
        return super().now_ns() + 10_000 * NS_PER_SECOND


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with running_browser() as started:
        yield started


@pytest.fixture
def open_page(browser: BrowserContext) -> Iterator[OpenPage]:
    with opened_pages(browser) as open_:
        yield open_


@pytest.fixture(scope="module")
def busy_address() -> Iterator[str]:
    clock = UpForHours()
    with serve_page(busy_scene(clock), clock) as address:
        yield address


@pytest.fixture(scope="module")
def empty_address() -> Iterator[str]:
    with serve_page(FakeParts(), UpForHours()) as address:
        yield address


@pytest.fixture(scope="module")
def open_module_page(browser: BrowserContext) -> Iterator[OpenPage]:
    with opened_pages(browser) as open_:
        yield open_


@pytest.fixture(scope="module")
def busy(open_module_page: OpenPage, busy_address: str) -> Visit:
    """The busy scene. Tests read it and change nothing, as with the next three."""
    return open_module_page(busy_address)


@pytest.fixture(scope="module")
def busy_ctr(open_module_page: OpenPage, busy_address: str) -> Visit:
    """One model of the busy scene."""
    return open_module_page(busy_address, path="/#model=ctr")


@pytest.fixture(scope="module")
def empty(open_module_page: OpenPage, empty_address: str) -> Visit:
    return open_module_page(empty_address)


# Contents of the page


def test_page_shows_phases_and_batches(open_page: OpenPage) -> None:
    on, refused = busy_batching()
    scene = FakeParts(statuses=[status("m", 1)], batching={ServableId("m", 1): [on, refused]})
    phase_us = {"queue": 30, "decode": 6, "batch": 200, "run": 900, "encode": 8}
    latency = LatencyFigures(count=2_000, p99_ns=3_000_000, p999_ns=4_000_000)
    scene.statistics.by_version = [FakeMethod("m", 1, latency_10s=latency, phase_us=phase_us)]
    with serve_page(scene, UpForHours()) as address:
        page = open_page(address).page
        times = page.locator("#phases tr td.number")
        expect(times).to_have_text(["30 µs", "6 µs", "200 µs", "900 µs", "8 µs"])
        expect(page.locator("#batches-count")).to_have_text("1 batched · 1 refused")
        rows = page.locator("#batches tr")
        expect(rows.nth(1)).to_contain_text("refused")
        expect(rows.nth(1)).to_contain_text(refused.refusal)
        # Figures are those of the runs since the page was opened.
        expect(rows.nth(0).locator("td.number")).to_have_text(["–", "–", "–", "0", "64"])
        before = on.figures
        grown = replace(
            before,
            run_count=before.run_count + 10,
            request_count=before.request_count + 34,
            row_count=before.row_count + 1_275,
            wait_ns=before.wait_ns + 34 * 7_000,
        )
        scene.batching[ServableId("m", 1)] = [replace(on, figures=grown), refused]
        figures = rows.nth(0).locator("td.number")
        expect(figures.nth(0)).to_have_text("3.4")
        expect(figures.nth(1)).to_have_text("128")
        expect(figures.nth(2)).to_have_text("7 µs")


def test_page_shows_the_runs_on_the_accelerator(open_page: OpenPage) -> None:
    scene = FakeParts(statuses=[status("m", 1)], runs={ServableId("m", 1): [BUSY_RUNS]})
    with serve_page(scene, UpForHours()) as address:
        figures = open_page(address).page.locator("#accelerator tr td.number")
        expect(figures).to_have_text(["700 B", "8", "4.5", "16 %", "1.00 ms", "3"])


def test_page_shows_the_request_logs(open_page: OpenPage) -> None:
    scene = FakeParts(statuses=[status("m", 1)], request_logs=used_log())
    with serve_page(scene, UpForHours()) as address:
        page = open_page(address).page
        expect(page.locator("#request-logs tr td.number")).to_have_text(["0", "3", "1", "0 B", "0"])
        expect(page.locator("#request-logs td.place")).to_have_text("/no/such/directory/m")
        expect(page.locator("#request-logs td.error")).to_contain_text("No such file")


def test_page_shows_what_runs_on_the_cpu(open_page: OpenPage) -> None:
    scene = FakeParts(statuses=[status("m", 1)], runs={ServableId("m", 1): [BUSY_RUNS]})
    scene.streams.accelerated[ServableId("m", 1)] = [
        AcceleratedSignature("parse", (), "it has no product", (), ()),
        AcceleratedSignature("serving_default", (1, 8), "", (), ()),
    ]
    with serve_page(scene, UpForHours()) as address:
        signatures = open_page(address).page.locator("#accelerator tr td.signature")
        expect(signatures).to_have_text(["parseon the CPU: it has no product", "serving_default"])


def test_page_without_batching_has_no_table_of_batches(empty: Visit) -> None:
    expect(empty.page.locator("#request-logs-section")).to_be_hidden()
    expect(empty.page.locator("#accelerator-section")).to_be_hidden()
    expect(empty.page.locator("#batches-section")).to_be_hidden()
    expect(empty.page.locator("#phases-section")).to_be_hidden()


def test_page_draws_latency_requests_and_marks(busy: Visit) -> None:
    for color in ("p50", "p99", "p999"):
        assert busy.pixels("latency", color) > 300, f"{color} is not drawn"
    assert busy.pixels("latency", "published") > 100
    assert busy.pixels("latency", "failed") > 30
    assert busy.pixels("requests", "rate") > 300


def test_page_of_one_model_marks_no_swap_of_another(busy_ctr: Visit) -> None:
    assert busy_ctr.pixels("latency", "published") > 50
    assert busy_ctr.pixels("latency", "failed") == 0


def test_page_shows_few_failures_among_thousands(busy_ctr: Visit) -> None:
    # The model without a failed load has a mark of the same colour.
    assert busy_ctr.pixels("requests", "failed") > 30


def test_page_shows_figures_of_the_last_second(busy: Visit) -> None:
    expect(busy.page.locator("[data-tile=p999] dd")).to_have_text(re.compile(r"^\d+\.\d+ ms$"))
    expect(busy.page.locator("[data-tile=rate] dd")).to_have_text(re.compile(r"^\d,\d{3}$"))
    expect(busy.page.locator("#codes")).to_contain_text("37 DEADLINE_EXCEEDED")


def test_page_lists_swaps_with_stages_and_tail(busy: Visit) -> None:
    rows = busy.page.get_by_role("table", name="Swaps").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(6)
    expect(rows.nth(0)).to_contain_text("in progress")
    expect(rows.nth(5)).to_contain_text("v7 → v8")
    expect(rows.nth(5).locator(".during")).to_have_text("14.2 ms ×2.33")
    expect(rows.nth(5).get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("restore 810 ms")
    )
    widths = (
        rows.nth(5)
        .locator(".bar .part")
        .evaluate_all("parts => parts.map((part) => part.getBoundingClientRect().width)")
    )
    assert len(widths) == 14
    assert max(widths) == widths[0] > 80, "settle took longest"


def test_page_lists_versions_and_why_one_failed(busy: Visit) -> None:
    table = busy.page.get_by_role("table", name="Versions")
    failed = table.get_by_role("row").filter(has_text="spelling v4")
    expect(failed).to_contain_text("failed")
    expect(failed).to_contain_text("DATA_LOSS spelling/4: restore: dense_3/kernel: crc32c")
    loading = table.get_by_role("row").filter(has_text="ctr v43")
    expect(loading).to_contain_text("loading self warm up")
    canary = table.get_by_role("row").filter(has_text="ranker v8")
    expect(canary).to_contain_text("canary 5 %")
    expect(canary).to_contain_text("142 of 1,000 requests, rule: p90 to p999 at most 2 times")


def test_page_hides_unloaded_versions_until_click(open_page: OpenPage, busy_address: str) -> None:
    page = open_page(busy_address).page
    table = page.get_by_role("table", name="Versions")
    unloaded = table.get_by_role("row").filter(has_text="ctr v41")
    expect(unloaded).to_have_count(0)
    page.get_by_role("button", name="Show 1 unloaded version").click()
    expect(unloaded).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate(FIND_LOW_CONTRAST)
        assert result["seen"] > 150
        assert result["found"] == [], scheme


def test_page_shows_no_bare_p999_of_few_requests(open_page: OpenPage) -> None:
    # The clock stands still: the tiles' figures do not age while a slow page opens.
    clock = FakeClock()
    few = latencies(999, 1_000_000, 2_000_000, 3_000_000)
    tail = {name: span_latency(999, 0.0061) for name in ("before", "during", "after")}
    scene = FakeParts(
        statuses=[status("ctr", 2)],
        swaps=[swap("ctr", 2, clock.now_ns() - 60 * NS_PER_SECOND, **tail)],
    )
    scene.statistics.by_version = [FakeMethod("ctr", 2, latency_10s=few)]
    now = clock.now_ns() // NS_PER_SECOND
    scene.statistics.points[None] = [
        HistoryPoint((now - i) * NS_PER_SECOND, 100, 0, few) for i in range(60, 0, -1)
    ]
    with serve_page(scene, clock) as address:
        visit = open_page(address)
        expect(visit.page.locator("[data-tile=p999] dd")).to_have_text(
            "3.00 msfrom only 999 requests"
        )
        version = visit.page.get_by_role("table", name="Versions").locator("tbody tr")
        expect(version.locator("td.weak")).to_have_text("3.00 msfrom only 999 requests")
        swaps = visit.page.get_by_role("table", name="Swaps").locator("td.weak")
        expect(swaps).to_have_text(["6.10 msfrom only 999 requests"] * 3)
        assert visit.pixels("latency", "p999") == 0


def test_page_of_idle_server_shows_no_old_figures(open_page: OpenPage) -> None:
    clock, scene = UpForHours(), FakeParts()
    latency = latencies(5_000, 1_000_000, 2_000_000, 3_000_000)
    now = clock.now_ns() // NS_PER_SECOND
    scene.statistics.points[None] = [
        HistoryPoint((now - seconds) * NS_PER_SECOND, 500, 1, latency)
        for seconds in (600, 599, 60, 59)
    ]
    with serve_page(scene, clock) as address:
        visit = open_page(address)
        for tile, text in (("p999", "–"), ("rate", "0"), ("failed", "0")):
            expect(visit.page.locator(f"[data-tile={tile}] dd")).to_have_text(text)
        visit.page.locator("#latency").focus()
        visit.page.keyboard.press("End")
        expect(visit.page.locator("[data-tile=p999] dd")).to_have_text("3.00 ms")
        # Two short strokes, and a gap for the nine idle minutes between them.
        assert 0 < visit.pixels("latency", "p999") < 100


@pytest.fixture(scope="module")
def swaps(open_module_page: OpenPage) -> Iterator[Page]:
    """A page of three swaps, each of a model of its own."""
    clock, scene = UpForHours(), FakeParts()
    during = replace(span_latency(2_000, 0.004), failed_count=39, unmatched_count=7)
    other = replace(span_latency(2_000, 0.004), unmatched_count=7)
    figures = {"self_warm_up_request_count": 12, "self_warm_up_failed_count": 3}
    verdict = GateVerdict(gate="drift", mode="warn", is_passed=False, reason="NaN")
    now_ns = clock.now_ns()
    scene.swaps.shown = [
        swap("team/ctr %1?", 7, now_ns, id="team/ctr %1?-7-1763769600"),
        swap("hurt", 7, now_ns, during=during, after=other),
        swap("replayed", 7, now_ns, figures=figures, verdicts=(verdict,)),
    ]
    with serve_page(scene, clock) as address:
        yield open_module_page(address).page


def row_of_swap(page: Page, model: str) -> Locator:
    rows = page.get_by_role("table", name="Swaps").locator("tbody tr")
    return rows.filter(has_text=model)


def test_page_swap_leads_to_its_trace(swaps: Page) -> None:
    link = swaps.get_by_role("link", name="trace of team/ctr %1? v7")
    path = "v1/swaps/team/ctr%20%251%3F-7-1763769600/trace"
    expect(link).to_have_attribute("href", path)


def test_page_swap_shows_failures_of_its_own_model(swaps: Page) -> None:
    row = row_of_swap(swaps, "hurt")
    expect(row.locator(".during .failures")).to_have_text("39 failed")
    expect(row.locator(".after")).not_to_contain_text("failed")


def test_page_swap_with_failed_replays_is_not_green(swaps: Page) -> None:
    row = row_of_swap(swaps, "replayed")
    expect(row.locator(".badge.problem")).to_contain_text("published with problem")
    expect(row.locator(".reason")).to_have_text(
        "3 of 12 replayed live requests failed; gate 'drift' (warn): NaN"
    )
    expect(row.locator(".badge.published")).to_have_count(0)


def test_page_shows_models_without_a_version(open_page: OpenPage) -> None:
    reason = "no version has been found in its base path"
    scene = FakeParts(
        statuses=[
            status("broken", 4, END, health=Health(StatusCode.DATA_LOSS, "a crc32c")),
            status("ctr", 1),
        ],
        configured=["broken", "ctr", "empty"],
    )
    with serve_page(scene, UpForHours()) as address:
        page = open_page(address).page
        rows = page.get_by_role("table", name="Versions").locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("DATA_LOSS a crc32c")
        expect(rows.nth(2)).to_contain_text("empty")
        expect(rows.nth(2)).to_contain_text(f"no version{reason}base path /models/empty")
        expect(page.locator("#versions-count")).to_have_text(
            "1 available · 2 models without an available version"
        )
        scene.monitor.shown.append(status("empty", 1))
        expect(rows.nth(2)).to_contain_text("v1")


@pytest.mark.parametrize("seconds", [3, 40])
def test_page_chart_shows_the_time_the_server_has(open_page: OpenPage, seconds: int) -> None:
    # The clock stands still: the line's share of the chart shrinks while a slow page opens.
    clock, scene = FakeClock(), FakeParts()
    latency = latencies(5_000, 1_000_000, 2_000_000, 3_000_000)
    now = clock.now_ns() // NS_PER_SECOND
    scene.statistics.points[None] = [
        HistoryPoint((now - i) * NS_PER_SECOND, 500, 0, latency) for i in range(seconds, -1, -1)
    ]
    with serve_page(scene, clock, started_seconds_ago=seconds) as address:
        page = open_page(address).page
        drawn = page.evaluate(DRAWN_SHARE, "#latency")
        assert drawn > 0.8 * min(1, seconds / 10), "the line takes the chart's width"


def test_page_view_is_in_its_url(open_page: OpenPage, busy_address: str) -> None:
    page = open_page(busy_address).page
    models = page.get_by_role("combobox", name="Model")
    minute, quarter = (page.get_by_role("radio", name=name) for name in ("1 min", "15 min"))
    rows = page.get_by_role("table", name="Versions").locator("tbody tr")
    models.select_option("ranker")
    expect(rows).to_have_count(2)
    expect(page).to_have_url(re.compile(r"#model=ranker$"))
    page.locator("#range span").first.click()
    expect(page).to_have_url(re.compile(r"#model=ranker&range=60$"))
    page.reload()
    expect(minute).to_be_checked()
    expect(models).to_have_value("ranker")
    expect(rows).to_have_count(2)
    page.go_back()
    expect(quarter).to_be_checked()
    expect(models).to_have_value("ranker")
    page.go_back()
    expect(models).to_have_value("")
    expect(rows).to_have_count(9)
    page.go_forward()
    expect(models).to_have_value("ranker")
    expect(rows).to_have_count(2)


def test_page_of_empty_server_shows_hints(empty: Visit) -> None:
    for text in ("No requests in the last 15 min", "No version yet", "No swap yet"):
        expect(empty.page.get_by_text(text)).to_be_visible()


# Updates of the page


def test_page_fetches_only_new_data(busy: Visit) -> None:
    with busy.page.expect_response("**/v1/page?*"):
        pass
    with busy.page.expect_response("**/v1/page?*"):
        pass
    expect(busy.page.locator("#connection")).to_have_text("live")
    first, *later = [response.json() for response in busy.polls]
    assert len(first["points"]["at"]) >= 899
    assert later
    assert all(len(poll["points"]["at"]) < 450 for poll in later)
    assert not any("swaps" in poll for poll in later)


def test_page_shows_a_new_version_without_reload(open_page: OpenPage) -> None:
    scene = FakeParts(statuses=[status("ctr", 1)])
    with serve_page(scene, UpForHours()) as address:
        page = open_page(address).page
        expect(page.get_by_text("ctr v1")).to_be_visible()
        scene.monitor.shown = [
            status("ctr", 1, END),
            status("ctr", 2, END, health=Health(StatusCode.INTERNAL, "no such op")),
        ]
        expect(page.get_by_text("no such op")).to_be_visible()
        expect(page.get_by_text("ctr v1")).to_have_count(0)


def test_hidden_page_does_not_poll(open_page: OpenPage, busy_address: str) -> None:
    visit = open_page(busy_address)
    set_hidden = """(is_hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => is_hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    visit.page.evaluate(set_hidden, True)
    count = len(visit.polls)
    # The page polls each second, and one poll may have been under way.
    visit.page.wait_for_timeout(2_500)
    assert len(visit.polls) <= count + 1
    with visit.page.expect_response("**/v1/page?*"):
        visit.page.evaluate(set_hidden, False)


def test_page_reports_lost_server_and_recovers(browser: BrowserContext) -> None:
    clock = UpForHours()
    page = browser.new_page()
    lost = page.get_by_role("alert")
    with serve_page(busy_scene(clock), clock) as address:
        page.goto(address)
        expect(page.locator("#connection")).to_have_text("live")
        expect(lost).to_be_hidden()
    expect(lost).to_contain_text("Connection to the server lost")
    # The old data is still there.
    expect(page.get_by_role("table", name="Swaps").locator("tbody tr")).to_have_count(6)
    with serve_page(FakeParts(), clock, urlparse(address).port or 0):
        expect(lost).to_be_hidden()
        # Another process starts without the data of the one before.
        expect(page.get_by_text("No swap yet")).to_be_visible()
        expect(page.get_by_text("No requests in the last")).to_be_visible()
        page.close()


# Names of the server


def test_page_names_with_markup_are_inert(open_page: OpenPage) -> None:
    failed = status(MARKUP, 2, END, health=Health(StatusCode.INTERNAL, MARKUP))
    refused = swap(MARKUP, 2, NS_PER_SECOND, result=SwapResult.REFUSED, reason=MARKUP)
    refused = replace(refused, stages=(replace(refused.stages[0], name=MARKUP),))
    scene = FakeParts(
        statuses=[status(MARKUP, 1), failed],
        routings={MARKUP: Routing(labels={MARKUP: 1})},
        swaps=[refused],
    )
    with serve_page(scene, UpForHours()) as address:
        page = open_page(address).page
        page.get_by_role("combobox", name="Model").select_option(MARKUP)
        page.reload()
        expect(page.get_by_role("combobox", name="Model")).to_have_value(MARKUP)
        expect(page.locator("#versions .model").first).to_have_text(MARKUP)
        expect(page.locator("#versions .reason")).to_contain_text(MARKUP)
        expect(page.locator("#versions .tag").last).to_have_text(MARKUP)
        expect(page.locator("#swaps .reason")).to_have_text(MARKUP)
        assert page.locator("main img, main script").count() == 0
        assert page.evaluate("window.hit") is None


# Accessibility


def test_page_turns_dark_with_its_charts(open_page: OpenPage, busy_address: str) -> None:
    visit = open_page(busy_address)
    background = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(background)
    visit.page.emulate_media(color_scheme="dark")
    assert (light, visit.page.evaluate(background)) == ("rgb(244, 246, 248)", "rgb(16, 21, 26)")
    # The browser tells the charts with its next frame.
    wait_until(lambda: visit.pixels("latency", "p999") > 300, "a chart in dark colours")
    assert visit.page.locator("#latency canvas").count() == 1


def test_page_never_scrolls_sideways(open_page: OpenPage) -> None:
    clock = UpForHours()
    scene = busy_scene(clock)
    name = "x" * 120
    reason = f"/models/{'y' * 200}: not found"
    scene.monitor.shown += [
        status(name, 1),
        status(name, 2, END, health=Health(StatusCode.NOT_FOUND, reason)),
    ]
    scene.streams.routings[name] = Routing(labels={"z" * 80: 1})
    scene.swaps.shown.insert(0, swap(name, 2, clock.now_ns() - 9 * NS_PER_SECOND, reason=reason))
    with serve_page(scene, clock) as address:
        visit = open_page(address)
        for width in (320, 400, 760, 1024):
            visit.resize(width)
            page = visit.page
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            cut = page.locator("td").evaluate_all(
                "cells => cells.filter((cell) => cell.getBoundingClientRect().right > innerWidth)"
                ".map((cell) => cell.textContent)"
            )
            assert cut == [], width
            default = page.locator(".tag.default").first
            assert default.evaluate("(tag) => tag.scrollWidth <= tag.clientWidth"), "cut short"


def test_page_columns_do_not_run_together(open_page: OpenPage) -> None:
    clock = UpForHours()
    scene = busy_scene(clock)
    few = {
        name: replace(span_latency(count, 0.00852), failed_count=failed)
        for name, count, failed in (("before", 6, 6), ("during", 169, 12_345), ("after", 6, 66))
    }
    began_at_ns = clock.now_ns() - 9 * NS_PER_SECOND
    scene.swaps.shown.insert(0, swap("ctr", 44, began_at_ns, wall_offset_ns=0, **few))
    scene.statistics.by_version.append(
        FakeMethod(
            "ctr", 43, in_flight_count=88_888, latency_10s=latencies(999, 10**9, 10**10, 10**11)
        )
    )
    with serve_page(scene, clock) as address:
        visit = open_page(address)
        for width in (320, 400, 760, 1280):
            visit.resize(width)
            assert visit.page.evaluate(FIND_TOUCHING_TEXT) == [], width


def test_page_chart_is_read_by_keyboard(open_page: OpenPage, busy_address: str) -> None:
    page = open_page(busy_address).page
    chart = page.locator("#latency")
    moment = page.locator("#moment")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(moment).to_have_text(re.compile(r"^at \d\d:\d\d:\d\d$"))
    label = chart.get_attribute("aria-label") or ""
    assert re.match(r"Latency at .*: p50 .* ms, p99 .* ms, p999 .* ms", label)
    before = moment.text_content()
    page.keyboard.press("PageUp")
    expect(moment).not_to_have_text(before or "")
    page.keyboard.press("Escape")
    expect(moment).to_have_text("")


def test_page_range_is_chosen_by_keyboard(open_page: OpenPage, empty_address: str) -> None:
    page = open_page(empty_address).page
    page.get_by_role("radio", name="15 min").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("radio", name="5 min", exact=True)).to_be_checked()
    expect(page.get_by_text("No requests in the last 5 min")).to_be_visible()


FORMATS = {
    "latency(null)": "–",
    "latency(0)": "0 µs",
    "latency(999)": "999 µs",
    "latency(1234)": "1.23 ms",
    "latency(99960)": "100 ms",
    "latency(9996)": "10.0 ms",
    "latency(999600)": "1.00 s",
    "duration(0.0042)": "4.2 ms",
    "duration(0.9996)": "1.00 s",
    "duration(59.96)": "1 min 0 s",
    "duration(125)": "2 min 5 s",
    "age(59)": "59 s",
    "age(-3)": "0 s",
    "age(7300)": "2 h",
    "age(200000)": "2 d",
    "bytes(999)": "999 B",
    "bytes(999999)": "1.00 MB",
    "bytes(1210000000)": "1.21 GB",
    "rate(0)": "0",
    "rate(0.1)": "0.1",
    "rate(4210.4)": "4,210",
}


def test_page_writes_values_as_people_read_them(empty: Visit) -> None:
    module = "import('./static/format.js')"
    written = {call: empty.page.evaluate(f"{module}.then((m) => m.{call})") for call in FORMATS}
    assert written == FORMATS


# Over a real server


def test_page_shows_swap_and_failed_load(
    host: ModelHost, scale_model: ScaleModel, open_page: OpenPage
) -> None:
    model = host.model(name="scale")
    server, base_path = model.server, model.base_path
    scale_model.write(base_path, 1)
    model.wait_until_available(1)
    page = open_page(server.url).page
    versions = page.get_by_role("table", name="Versions").locator("tbody tr")
    swaps = page.get_by_role("table", name="Swaps").locator("tbody tr")
    expect(versions).to_have_count(1)
    expect(versions).to_contain_text("available")

    request = predict_request("scale", {"x": np.array([1.0], np.float32)})
    tile, second = page.locator("[data-tile=p999] dd"), swaps.filter(has_text="v1 → v2")
    sent_count = 0
    with caller_to(server.target) as caller:
        # A request at each look of `wait_until`: enough of them for any window, and few in each.
        def sent_shows_few(place: Locator) -> bool:
            nonlocal sent_count
            caller.predict(request)
            sent_count += 1
            return bool(counts_of_few(place))

        wait_until(lambda: sent_shows_few(tile), "few requests of the last ten seconds")
        expect(page.locator("#codes")).to_have_text(f"since server start: {sent_count:,} OK")
        scale_model.write(base_path, 2)
        expect(second).to_contain_text("published")
        wait_until(lambda: sent_shows_few(second), "few requests of the second swap")
    expect(versions.filter(has_text="v2")).to_contain_text("default")
    scale_model.write(base_path, 3, prepare=damage)
    expect(versions.filter(has_text="v3")).to_contain_text("DATA_LOSS")
    expect(swaps.first).to_contain_text("load failed")
    wait_until(
        lambda: counts_of_few(second) == counts_of_swap(server, 2), "the counts of the second swap"
    )
    with page.expect_download() as download:
        page.get_by_role("link", name="trace of scale v2").click()
    events = json.loads(download.value.path().read_text())["traceEvents"]
    assert "restore" in [event["name"] for event in events]


def counts_of_few(place: Locator) -> list[int]:
    """Returns the counts of requests that the page calls few, in their order."""
    texts = " ".join(place.all_inner_texts())
    return [int(count) for count in re.findall(r"from only (\d+) requests?", texts)]


def counts_of_swap(server: ModelServer, version: int) -> list[int]:
    """Returns the counts of requests before, during and after a swap, without zeros."""
    _, document, _ = RestClient(server).ask("GET", "/v1/swaps")
    (swap,) = (swap for swap in document["swaps"] if swap["version"] == version)
    parts = [swap["latency"][name] for name in ("before", "during", "after")]
    return [part["request_count"] for part in parts if part and part["request_count"]]


def damage(directory: Path) -> None:
    shard = max((directory / "variables").glob("*.data-*"), key=lambda path: path.stat().st_size)
    flip_a_byte(shard, 0)
