"""Every metric of a coordinator: name, kind, unit, labels and meaning.

A test compares them with the exposition and with the table in docs/fleet.md, which
`python -m fleet.http.metric_families` prints. Counters begin at 0 with the coordinator's process. The
metrics of the process itself come from prometheus-client, under its names.
"""

from serving.monitoring.metric_families import MetricFamily, markdown_table

_ROLLOUT = ("model", "version")

LEADS = MetricFamily(
    name="fleet_leads",
    kind="gauge",
    help="1 if this process decides for the fleet, else 0: it waits, or cannot take over the state.",
)
SERVERS = MetricFamily(
    name="fleet_servers",
    kind="gauge",
    labels=("state",),
    help="Servers of the fleet, by state: live, draining, unknown until the first report, or lost.",
)
MODEL_SERVERS = MetricFamily(
    name="fleet_model_servers",
    kind="gauge",
    labels=_ROLLOUT,
    help="Live servers on which the version answers requests that name none.",
)
STABLE_VERSION = MetricFamily(
    name="fleet_stable_version",
    kind="gauge",
    labels=("model",),
    help="The number of the version that all servers outside a rollout have.",
)
IS_PAUSED = MetricFamily(
    name="fleet_model_paused",
    kind="gauge",
    labels=("model",),
    help="1 if an operator has paused the model, else 0.",
)
BLOCKED = MetricFamily(
    name="fleet_blocked_versions",
    kind="gauge",
    labels=("model",),
    help="Versions of the model that are blocked in the fleet.",
)
WAVE = MetricFamily(
    name="fleet_wave",
    kind="gauge",
    labels=_ROLLOUT,
    help="The wave of the version on its way, from 1 on. No series without a rollout.",
)
WAVE_SERVING = MetricFamily(
    name="fleet_wave_serving_servers",
    kind="gauge",
    labels=_ROLLOUT,
    help="Servers that serve the version on its way.",
)
WAVE_NEEDED = MetricFamily(
    name="fleet_wave_needed_servers",
    kind="gauge",
    labels=_ROLLOUT,
    help="Servers that must serve the version, so that its wave is complete.",
)
FAILED_SERVERS = MetricFamily(
    name="fleet_setbacks",
    kind="gauge",
    labels=_ROLLOUT,
    help="Servers on which the version on its way has failed.",
)
WARNED = MetricFamily(
    name="fleet_warned_servers",
    kind="gauge",
    labels=_ROLLOUT,
    help="Servers on which a gate has warned about the version on its way, up to 10. It waits for an operator then, "
    'unless warned_gates is "pass" or the gate holds none.',
)
IDLE = MetricFamily(
    name="fleet_rollout_idle_seconds",
    kind="gauge",
    unit="seconds",
    labels=_ROLLOUT,
    help="Time since the rollout has last changed: a wave, a load, a server on which it failed.",
)
WAVE_P99 = MetricFamily(
    name="fleet_wave_p99_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_ROLLOUT, "role"),
    help="p99 of the wave's requests, and of the control's: the old version on other servers, at the "
    "same time. No series without requests.",
)
WAVE_P999 = MetricFamily(
    name="fleet_wave_p999_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_ROLLOUT, "role"),
    help="p999 of the wave's requests, and of the control's.",
)
WAVE_REQUESTS = MetricFamily(
    name="fleet_wave_requests",
    kind="gauge",
    labels=(*_ROLLOUT, "role"),
    help="Requests that are compared in the present wave. It begins again with each wave.",
)
WAVE_FAILED = MetricFamily(
    name="fleet_wave_failed_requests",
    kind="gauge",
    labels=(*_ROLLOUT, "role"),
    help="Failed requests among those that are compared.",
)
REPORT_AGE = MetricFamily(
    name="fleet_report_age_seconds_max",
    kind="gauge",
    unit="seconds",
    help="Time since the last report of the server that has been silent longest.",
)
PROBLEMS = MetricFamily(
    name="fleet_problems",
    kind="gauge",
    help="Problems in the status: a file that is not written, on Ray servers without room or that do not start.",
)
VERDICTS = MetricFamily(
    name="fleet_verdicts_total",
    kind="counter",
    labels=("model", "gate", "result"),
    help="Verdicts by gate, loads or a wave, and result, passed or failed.",
)
ROLLBACKS = MetricFamily(
    name="fleet_rollbacks_total",
    kind="counter",
    labels=("model", "by"),
    help="Versions that were blocked in the fleet, by the judgement (canary) or an operator.",
)
DECISIONS = MetricFamily(
    name="fleet_decision_seconds",
    kind="histogram",
    unit="seconds",
    help="Time of a decision, with the write of a state that has changed.",
)
CALLS = MetricFamily(
    name="fleet_calls_total",
    kind="counter",
    labels=("call",),
    help="Calls to servers that ended, by kind: report or grant.",
)
CALLS_FAILED = MetricFamily(
    name="fleet_calls_failed_total",
    kind="counter",
    labels=("call",),
    help="Calls to servers that failed, by kind. The coordinator repeats them.",
)
STATE_WRITES = MetricFamily(
    name="fleet_state_writes_total",
    kind="counter",
    help="Writes of the state that succeeded.",
)
STATE_WRITES_FAILED = MetricFamily(
    name="fleet_state_writes_failed_total",
    kind="counter",
    help="Writes of the state that failed. Nothing is sent until one succeeds.",
)

FLEET_FAMILIES: tuple[MetricFamily, ...] = (
    LEADS,
    SERVERS,
    MODEL_SERVERS,
    STABLE_VERSION,
    IS_PAUSED,
    BLOCKED,
    WAVE,
    WAVE_SERVING,
    WAVE_NEEDED,
    FAILED_SERVERS,
    WARNED,
    IDLE,
    WAVE_P99,
    WAVE_P999,
    WAVE_REQUESTS,
    WAVE_FAILED,
    REPORT_AGE,
    PROBLEMS,
    VERDICTS,
    ROLLBACKS,
    DECISIONS,
    CALLS,
    CALLS_FAILED,
    STATE_WRITES,
    STATE_WRITES_FAILED,
)

if __name__ == "__main__":
    print(markdown_table(FLEET_FAMILIES), end="")
