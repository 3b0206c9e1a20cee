from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.compiled_protos import message_class
from serving.base.errors import InvalidConfig
from serving.config.batching_parameters_file import (
    parse_batching_parameters,
    read_batching_parameters_file,
    read_batching_parameters_of_version,
)
from serving.core.model_settings import BATCHING_COUNT_MAX, BatchingChoice, BatchingSettings

ON = BatchingChoice.ON
FIELDS = [
    field.name for field in message_class("tensorflow.serving.BatchingParameters").DESCRIPTOR.fields
]
NUMBERS = [name for name in FIELDS if name.startswith(("max_", "num_", "batch_"))]

counts = st.integers(1, BATCHING_COUNT_MAX)


def defaults_of_file(**fields: object) -> BatchingSettings:
    """Returns the settings of an empty file, with changes."""
    of_file: dict[str, object] = {
        "enabled": ON,
        "max_batch_size": 1_000,
        "splits_large_requests": False,
        "max_enqueued_batches": 10,
    }
    return BatchingSettings(**{**of_file, **fields})  # type: ignore[arg-type]


def test_empty_file_has_defaults_of_tensorflow_serving():
    assert parse_batching_parameters("", "b") == defaults_of_file()


def test_example_of_tensorflow_serving_is_read():
    text = """
        max_batch_size { value: 128 }
        batch_timeout_micros { value: 0 }
        max_enqueued_batches { value: 1000000 }
        num_batch_threads { value: 8 }
        thread_pool_name { value: "batches" }
        allowed_batch_sizes: 8
        allowed_batch_sizes: [64, 128]
        pad_variable_length_inputs: true
    """
    assert parse_batching_parameters(text, "b") == defaults_of_file(
        max_batch_size=128,
        max_enqueued_batches=1_000_000,
        num_batch_threads=8,
        allowed_batch_sizes=(8, 64, 128),
        pads_variable_length_inputs=True,
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("enable_large_batch_splitting { value: true }", 1_000),
        ("enable_large_batch_splitting { value: true } max_execution_batch_size { value: 9 }", 9),
    ],
)
def test_rows_of_a_run_with_splitting(text: str, rows: int):
    expected = defaults_of_file(max_batch_size=rows, splits_large_requests=True)
    assert parse_batching_parameters(text, "b") == expected


def number(name: str, value: int | None) -> str:
    return "" if value is None else f"{name} {{ value: {value} }} "


@given(
    batch_size=counts,
    smaller=st.integers(0, 100),
    timeout_micros=st.none() | st.integers(0, 2**63 - 1),
    enqueued=st.none() | counts,
    threads=st.none() | counts,
    thread_pool_name=st.booleans(),
    is_padding=st.booleans(),
    is_splitting=st.booleans(),
    sizes=st.none() | st.sets(counts, max_size=5),
)
def test_valid_parameters_are_read_as_written(
    *,
    batch_size: int,
    smaller: int,
    timeout_micros: int | None,
    enqueued: int | None,
    threads: int | None,
    thread_pool_name: bool,
    is_padding: bool,
    is_splitting: bool,
    sizes: set[int] | None,
):
    rows = max(1, batch_size - smaller) if is_splitting else batch_size
    allowed = () if sizes is None else (*sorted(size for size in sizes if size < rows), rows)
    parts = [
        number("max_batch_size", batch_size),
        number("batch_timeout_micros", timeout_micros),
        number("max_enqueued_batches", enqueued),
        number("num_batch_threads", threads),
        'thread_pool_name { value: "pool" }' if thread_pool_name else "",
        f"pad_variable_length_inputs: {str(is_padding).lower()}",
        *(f"allowed_batch_sizes: {size}" for size in allowed),
    ]
    if is_splitting:
        parts += ["enable_large_batch_splitting { value: true }"]
        parts += [number("max_execution_batch_size", rows)]
    assert parse_batching_parameters("\n".join(parts), "b") == defaults_of_file(
        max_batch_size=rows,
        splits_large_requests=is_splitting,
        allowed_batch_sizes=allowed,
        pads_variable_length_inputs=is_padding,
        max_enqueued_batches=10 if enqueued is None else enqueued,
        num_batch_threads=threads or 0,
    )


@given(name=st.from_regex(r"[a-z_]{1,20}", fullmatch=True).filter(lambda name: name not in FIELDS))
def test_unknown_field_is_refused_by_name_and_line(name: str):
    with pytest.raises(InvalidConfig) as caught:
        parse_batching_parameters(f"\n{name} {{ value: 1 }}", "b")
    assert caught.value.message.startswith("b: not a text protobuf of BatchingParameters: 2:")
    assert f'"{name}"' in caught.value.message
    assert ", ".join(FIELDS) in caught.value.message


@given(
    name=st.sampled_from(NUMBERS),
    value=st.integers(-(2**63), -1) | st.integers(2**31, 2**63 - 1),
)
def test_number_out_of_range_is_refused_by_name(name: str, value: int):
    if name == "batch_timeout_micros" and value > 0:
        return
    splitting = "enable_large_batch_splitting { value: true }"
    with pytest.raises(InvalidConfig, match=rf"^b: {name} {value} .*; give "):
        parse_batching_parameters(f"{splitting} {number(name, value)}", "b")


@given(sizes=st.lists(st.integers(-5, 20), min_size=1, max_size=5))
def test_allowed_sizes_increase_to_the_largest(sizes: list[int]):
    text = "max_batch_size { value: 20 } allowed_batch_sizes: " + str(sizes)
    is_right = sizes == sorted(set(sizes)) and sizes[0] > 0 and sizes[-1] == 20
    if is_right:
        assert parse_batching_parameters(text, "b").allowed_batch_sizes == tuple(sizes)
    else:
        with pytest.raises(InvalidConfig, match=r"^b: allowed_batch_sizes .* must "):
            parse_batching_parameters(text, "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: 128", "b: not a text protobuf of BatchingParameters: 1:"),
        ("max_batch_size { value: x }", "1:25 .*"),
        ("max_batch_size { value: 1 } max_batch_size { value: 2 }", "max_batch_size"),
        ("num_batch_threads { value: 0 }", "num_batch_threads 0 is not .* leave it out"),
        ("max_enqueued_batches { value: 0 }", "max_enqueued_batches 0 is not .* leave it out"),
        ("max_batch_size { }", "max_batch_size 0 is not a number of rows"),
        (
            "max_execution_batch_size { value: 8 }",
            "max_execution_batch_size 8 has no effect: .* enable_large_batch_splitting",
        ),
        (
            "enable_large_batch_splitting { value: false } max_execution_batch_size { value: 8 }",
            "max_execution_batch_size 8 has no effect",
        ),
        (
            "max_batch_size { value: 8 } max_execution_batch_size { value: 9 } "
            "enable_large_batch_splitting { value: true }",
            "max_execution_batch_size 9 is not a part of max_batch_size 8; give 1 to 8",
        ),
        (
            "max_batch_size { value: 8 } max_execution_batch_size { value: 4 } "
            "enable_large_batch_splitting { value: true } allowed_batch_sizes: 8",
            "allowed_batch_sizes 8 must end with max_execution_batch_size, which is 4",
        ),
        (
            "allowed_batch_sizes: 8 allowed_batch_sizes: 16",
            "allowed_batch_sizes 8, 16 must end with max_batch_size, which is 1000; add 1000",
        ),
        (
            "allowed_batch_sizes: 8 allowed_batch_sizes: 8 max_batch_size { value: 8 }",
            "allowed_batch_sizes 8, 8 must increase",
        ),
    ],
)
def test_wrong_parameters_name_value_and_remedy(tmp_path: Path, text: str, message: str):
    path = tmp_path / "b"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=message) as caught:
        read_batching_parameters_file(path)
    assert caught.value.message.startswith(f"{path}: ")


def test_missing_batching_parameters_file_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"nowhere: cannot be read"):
        read_batching_parameters_file(tmp_path / "nowhere")


def test_version_without_a_file_has_no_parameters(tmp_path: Path):
    assert read_batching_parameters_of_version(tmp_path) is None


def test_file_of_a_version_is_read(tmp_path: Path):
    (tmp_path / "batching_params.pbtxt").write_text("max_batch_size { value: 3 }")
    assert read_batching_parameters_of_version(tmp_path) == defaults_of_file(max_batch_size=3)


def test_file_of_a_version_that_is_not_text_is_refused(tmp_path: Path):
    (tmp_path / "batching_params.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match=r"batching_params\.pbtxt: cannot be read"):
        read_batching_parameters_of_version(tmp_path)


def test_unreadable_file_of_a_version_is_an_os_error(tmp_path: Path):
    (tmp_path / "batching_params.pbtxt").mkdir()
    with pytest.raises(IsADirectoryError):
        read_batching_parameters_of_version(tmp_path)
