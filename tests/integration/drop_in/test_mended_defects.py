"""Links each defect of TensorFlow Serving that Millpond mends to its proof.

A proof is a row of the tables beside this file, or a test by its name. If a test is renamed, its
name here changes too.
"""

from pathlib import Path

import pytest

from tests.integration.drop_in import grpc_rows, rest_rows

TESTS = Path(__file__).parents[2]

# The behaviour of TensorFlow Serving, and the file with the test that Millpond behaves otherwise.
PROVEN_BY_TESTS = [
    (
        "GetModelStatus ignores a label",
        "integration/test_config_reload.py",
        "test_reload_label_is_honoured_by_model_status",
    ),
    (
        "a version that ended is listed for ever (TFS#1488)",
        "unit/test_state_monitor.py",
        "test_monitor_forgets_failure_of_removed_files",
    ),
    (
        "work goes on past the deadline (TFS#1265)",
        "integration/test_life_of_server.py",
        "test_expired_request_stops_computing",
    ),
    (
        "REST looks the version up twice",
        "integration/test_rest.py",
        "test_rest_requests_during_swaps_never_fail",
    ),
    (
        "no list of models over REST (TFS#795)",
        "integration/drop_in/test_rest.py",
        "test_list_of_models_has_each_with_its_versions",
    ),
    (
        "health never changes and knows no model (TFS#671, TFS#1754)",
        "integration/drop_in/test_grpc.py",
        "test_health_of_loaded_model_is_serving",
    ),
    (
        "only requests that succeed are recorded",
        "integration/test_request_counts.py",
        "test_cancelled_answers_count_once_during_swaps",
    ),
    (
        "SIGTERM ends the process at once (TFS#1853)",
        "integration/test_drain.py",
        "test_sigterm_answers_requests_waiting_for_thread",
    ),
    (
        "a slow request of one model delays another's swap",
        "integration/test_life_of_server.py",
        "test_slow_requests_delay_nothing_else",
    ),
    (
        "a half-copied version is served",
        "integration/test_directories.py",
        "test_half_copied_version_waits_until_complete",
    ),
    (
        "a label and its version cannot come in one change (TFS#1608, TFS#1230)",
        "integration/test_config_reload.py",
        "test_reload_moves_label_with_its_version_and_back",
    ),
    (
        "a reload without polling hangs (TFS#1519)",
        "integration/test_config_reload.py",
        "test_reload_changes_version_policy_without_polling",
    ),
    (
        "a reload of a model that does not come hangs (TFS#1565, TFS#1786)",
        "integration/test_config_reload.py",
        "test_reload_answers_before_caller_gives_up",
    ),
    (
        "one unreadable base path stops all models (TFS#2189)",
        "unit/test_found_versions.py",
        "test_unreadable_base_path_changes_only_notes",
    ),
]


@pytest.mark.parametrize(("defect", "file", "test"), PROVEN_BY_TESTS, ids=lambda value: value)
def test_mended_defect_has_its_test(defect: str, file: str, test: str):
    assert f"def {test}(" in (TESTS / file).read_text(), defect


def test_mended_defects_are_listed_in_table_rows():
    mended = {row.name for row in grpc_rows.ROWS if row.mends}
    mended |= {row.name for row in rest_rows.ROWS if row.mends}
    assert {"status_of_a_label", "rows", "binary_both_ways", "path_that_there_is_not"} <= mended
