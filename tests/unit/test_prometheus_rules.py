"""Recording and alert rules as promtool reads them, and the required parts of each alert."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from fleet.http.metric_families import FLEET_FAMILIES
from serving.monitoring.metric_families import FAMILIES
from tests.unit import promtool

DIRECTORY = Path(__file__).parents[2] / "deploy" / "prometheus"
FLEET_RULES = (DIRECTORY / "fleet_rules.yml").read_text()
ALERT_RULES = (DIRECTORY / "alert_rules.yml").read_text() + FLEET_RULES
RECORDING_RULES = (DIRECTORY / "recording_rules.yml").read_text()
TEST_FILES = ("alerts", "request_alerts", "fleet")
TESTS = "".join((DIRECTORY / "tests" / f"{name}.yml").read_text() for name in TEST_FILES)


def alerts() -> dict[str, str]:
    """Returns the text of each alert by its name."""
    first, *others = re.split(r"^ +- alert: ", ALERT_RULES, flags=re.MULTILINE)
    assert "expr" not in first
    return {text.partition("\n")[0]: text for text in others}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "recording_rules.yml", "alert_rules.yml", "fleet_rules.yml"),
        ("check", "config", "prometheus.yml"),
        *(("test", "rules", f"tests/{name}.yml") for name in TEST_FILES),
    ],
    ids=" ".join,
)
def test_promtool_accepts_files(arguments: tuple[str, ...]):
    done = subprocess.run(
        [promtool.tool("promtool"), *arguments],
        cwd=DIRECTORY,
        # A quarter of its time is a search for garbage, of which it has little.
        env={**os.environ, "GOGC": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", alerts())
def test_alert_has_severity_and_annotations(name: str):
    text = alerts()[name]
    assert re.search(r"labels: \{severity: (page|ticket)\}", text)
    for annotation in ("summary", "description", "runbook"):
        assert re.search(rf'^ +{annotation}: ".+"$', text, re.MULTILINE), annotation


@pytest.mark.parametrize("name", alerts())
def test_alert_has_firing_and_silent_tests(name: str):
    asked = re.findall(rf"alertname: {name}\n +eval_time: \w+\n( +exp_alerts:)?", TESTS)
    assert set(asked) >= {" " * 8 + "exp_alerts:"}
    # A test that lists more series than the firing one also covers the silent case.
    assert "" in asked or name == "MillpondSwapHurtTail"


def test_rules_read_only_existing_metrics():
    names = {family.name for family in (*FAMILIES, *FLEET_FAMILIES)}
    known = {f"{name}{suffix}" for name in names for suffix in ("", "_bucket")}
    recorded = re.findall(r"record: (\S+)", RECORDING_RULES)
    text = re.sub(r'"[^"]*"|#.*', "", RECORDING_RULES + ALERT_RULES)
    for name in recorded:
        text = text.replace(name, "")
    assert set(re.findall(r"\b(?:serving|process|fleet)_[a-z_]+\b", text)) <= known
