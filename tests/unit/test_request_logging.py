"""The `logging_config` of a model, whatever its values."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidConfig
from serving.core.request_logging import (
    FILE_STEM_BYTES_MAX,
    FILE_TYPES,
    TFRECORD,
    RequestLogging,
    make_request_logging,
)

RATES = st.one_of(st.floats(), st.sampled_from([0.0, 0.1, 1.0]))
PREFIXES = st.one_of(
    st.text(), st.from_regex(r"/[a-z]{0,3}(/[a-z.]{0,3}){0,2}", fullmatch=True), st.just("s3://b/m")
)
TYPES = st.one_of(st.text(), st.sampled_from(["", *FILE_TYPES]))


def made_or_refused(rate: float, prefix: str, file_type: str) -> RequestLogging | str | None:
    """Returns the log, or the message of the error."""
    try:
        return make_request_logging(rate, prefix, file_type, "model 'm'")
    except InvalidConfig as error:
        return error.message


@given(RATES, PREFIXES, TYPES)
def test_values_are_a_log_or_an_error_with_its_place(rate: float, prefix: str, file_type: str):
    made = made_or_refused(rate, prefix, file_type)
    if isinstance(made, str):
        assert made.startswith("model 'm': ")
        return
    assert (made is None) == (rate == 0)
    if made is not None:
        assert 0 < made.sampling_rate <= 1
        assert made.file_type == (file_type or TFRECORD)
        assert os.path.isabs(made.filename_prefix) or made.is_uploaded
        assert os.path.basename(made.filename_prefix) not in ("", ".", "..")
        assert "\0" not in made.filename_prefix


def test_url_of_a_store_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serving.core.store_urls.find_spec", lambda module: module)
    made = make_request_logging(0.5, "s3://bucket/logs/ctr", "", "model 'm'")
    assert made is not None
    assert made.is_uploaded


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket", "must end in the first part"),
        ("s3://bucket/logs/", "must end in the first part"),
        ("s3://bucket/../ctr", "must be like"),
        ("s3://bucket/" + "x" * (FILE_STEM_BYTES_MAX + 1), "shorten it"),
        ("ftp://host/ctr", "scheme 'ftp' is unknown"),
        ("hf://org/repo/ctr", "commit for each file"),
        ("s3://user:secret@bucket/ctr", "with a user"),
        ("s3://bucket/ctr?token=secret", "a query"),
    ],
)
def test_url_that_cannot_be_written_is_refused(
    url: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("serving.core.store_urls.find_spec", lambda module: module)
    refused = made_or_refused(0.5, url, "")
    assert isinstance(refused, str)
    assert refused.startswith("model 'm': log_collector_config filename_prefix")
    assert reason in refused
    assert "secret" not in refused


def test_url_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serving.core.store_urls.find_spec", lambda module: None)
    refused = made_or_refused(0.5, "gs://bucket/ctr", "")
    assert isinstance(refused, str)
    assert "pip install 'millpond[gs]'" in refused


@given(RATES, PREFIXES)
def test_unknown_type_is_refused_even_if_log_is_off(rate: float, prefix: str):
    for kind in ("kafka", "TFRecord", "parquet "):
        assert isinstance(made_or_refused(rate, prefix, kind), str)
