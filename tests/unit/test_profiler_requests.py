"""The fields of a request for a trace and their effect."""

import pytest

from serving.base.compiled_protos import message_class
from serving.base.errors import InvalidArgument
from serving.data_plane.traces import EventTotal
from serving.rpc.profiler_requests import (
    DELAY_MS_MAX,
    DURATION_MS_MAX,
    HOST_LEVEL_DEFAULT,
    HOST_LEVEL_MAX,
    TracePlan,
    describe_totals,
    early_end,
    profile_response,
    read_monitor_request,
    read_profile_request,
    read_terminate_request,
)

NOW_NS = 1_700_000_000_000_000_000

# The request of TensorFlow 2.21's client for trace('grpc://127.0.0.1:17662', '/tmp/logs', 1000),
# without its tools.
OPTIONS = bytes.fromhex("0801 1002 1801 2801 3801 48e807")
STOCK_REQUEST = (
    bytes.fromhex("08e807 10c0843d")
    + b"\x22\x0d"
    + OPTIONS
    + b"\x2a\x09/tmp/logs"
    + b"\x32\x13"
    + b"2026_11_22_18_53_37"
)


def request(**fields: object) -> bytes:
    serialized: bytes = message_class("tensorflow.ProfileRequest")(**fields).SerializeToString()
    return serialized


def plan(**fields: object) -> TracePlan:
    return read_profile_request(request(**fields), NOW_NS).plan


def test_request_of_the_stock_client_is_understood():
    question = read_profile_request(STOCK_REQUEST, NOW_NS)
    assert question.plan == TracePlan(
        duration_ms=1000, host_level=2, includes_dataset_ops=True, session_id="2026_11_22_18_53_37"
    )
    assert not question.is_message_wanted


def test_duration_of_the_options_comes_first():
    assert plan(duration_ms=5, opts={"version": 1, "duration_ms": 7}).duration_ms == 7


def test_request_without_options_has_tensorflows():
    assert plan(duration_ms=5) == TracePlan(
        duration_ms=5, host_level=HOST_LEVEL_DEFAULT, includes_dataset_ops=True
    )


def test_host_level_is_the_clients_up_to_the_highest():
    levels = [
        plan(duration_ms=5, opts={"version": 1, "host_tracer_level": level}).host_level
        for level in (0, 1, 3, 900)
    ]
    assert levels == [0, 1, 3, HOST_LEVEL_MAX]


@pytest.mark.parametrize("duration_ms", [0, DURATION_MS_MAX + 1, 2**63])
def test_invalid_or_too_long_duration_is_refused(duration_ms: int):
    with pytest.raises(InvalidArgument, match=f"duration_ms {duration_ms}: give 1 to"):
        plan(duration_ms=duration_ms)
    monitor = message_class("tensorflow.MonitorRequest")(duration_ms=duration_ms)
    with pytest.raises(InvalidArgument, match=f"duration_ms {duration_ms}: give 1 to"):
        read_monitor_request(monitor.SerializeToString())


@pytest.mark.parametrize(("start_ns", "delay_ns"), [(0, 0), (NOW_NS - 5, 0), (NOW_NS + 5, 5)])
def test_trace_starts_at_the_clients_instant(start_ns: int, delay_ns: int):
    assert plan(duration_ms=5, opts={"start_timestamp_ns": start_ns}).delay_ns == delay_ns


def test_start_far_in_the_future_is_refused():
    start_ns = NOW_NS + (DELAY_MS_MAX + 1) * 1_000_000
    with pytest.raises(InvalidArgument, match=f"{start_ns} is 60 s after this server's time"):
        plan(duration_ms=5, opts={"start_timestamp_ns": start_ns})


@pytest.mark.parametrize(
    "read", [lambda data: read_profile_request(data, NOW_NS), read_monitor_request]
)
def test_unparsable_request_is_refused(read):
    with pytest.raises(InvalidArgument, match="the request is not a valid tensorflow"):
        read(b"\xff\xff")
    with pytest.raises(InvalidArgument, match=r"valid tensorflow\.TerminateRequest"):
        read_terminate_request(b"\xff\xff")


def test_response_holds_trace_as_file():
    response = message_class("tensorflow.ProfileResponse").FromString(
        profile_response(b"planes", 3, is_message_wanted=False)
    )
    assert [(tool.name, tool.data) for tool in response.tool_data] == [("xplane.pb", b"planes")]
    assert (response.empty_trace, response.xspace) == (False, b"")


def test_response_holds_trace_as_message_if_requested():
    response = message_class("tensorflow.ProfileResponse").FromString(
        profile_response(b"planes", 3, is_message_wanted=True)
    )
    assert (response.xspace, list(response.tool_data)) == (b"planes", [])


def test_response_without_events_is_an_empty_trace():
    response = message_class("tensorflow.ProfileResponse").FromString(
        profile_response(b"planes", 0, is_message_wanted=False)
    )
    assert (response.empty_trace, list(response.tool_data)) == (True, [])


def test_monitor_level_2_sums_up_every_op():
    levels = [
        read_monitor_request(
            message_class("tensorflow.MonitorRequest")(
                duration_ms=5, monitoring_level=level
            ).SerializeToString()
        ).plan.host_level
        for level in (0, 1, 2)
    ]
    assert levels == [HOST_LEVEL_DEFAULT, HOST_LEVEL_DEFAULT, HOST_LEVEL_MAX]


def test_totals_are_a_table():
    text = describe_totals([EventTotal("MatMul", 4, 2_000_000)], 9, 500, time_text="noon")
    assert text.splitlines() == [
        "noon",
        "9 events in 500 ms; nested events count for their parents too",
        "  total ms    count    mean us  name",
        "     2.000        4      500.0  MatMul",
    ]


def test_trace_ends_early_at_quarter_of_memory():
    assert early_end(1000, 1200) == ""
    assert early_end(1000, 750) == ""
    assert early_end(1000, 749).startswith("the trace ended early: free memory fell by 251 bytes")
