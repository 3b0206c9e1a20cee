"""`python -m warmup`: its commands, on versions that were written without TensorFlow."""

import json
from pathlib import Path

import pytest

from tests.unit.signatures import FLOAT, STRING, signature_def, write_saved_model
from warmup.__main__ import main
from warmup.prediction_log import WARM_UP_FILE, Log, read_logs
from warmup.records import write_records


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Writes version 7 of `ctr`, without a warm-up file."""
    definitions = {
        "serving_default": signature_def({"x": (FLOAT, (-1, 2))}),
        "classify": signature_def(
            {"in": (STRING, (-1,))}, method_name="tensorflow/serving/classify"
        ),
    }
    return write_saved_model(tmp_path / "ctr" / "7", definitions)


def warm_up_logs(version: Path) -> list[Log]:
    return list(read_logs(version / WARM_UP_FILE))


def test_synthesize_writes_file_that_check_accepts(
    version: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["synthesize", str(version), "--batch-sizes=1,8", "--count=2"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{version / WARM_UP_FILE}: 4 records\n"
    assert err.startswith("left out signature 'classify': takes serialized Examples")
    assert {log.predict_log.request.model_spec.name for log in warm_up_logs(version)} == {"ctr"}
    assert main(["check", str(version)]) == 0
    assert capsys.readouterr().out == f"{version / WARM_UP_FILE}: sound\n"


def test_synthesize_overwrites_only_by_force(version: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["synthesize", str(version)]) == 0
    before = warm_up_logs(version)
    assert main(["synthesize", str(version), "--seed=1"]) == 1
    assert "exists; --force overwrites it" in capsys.readouterr().err
    assert warm_up_logs(version) == before
    assert main(["synthesize", str(version), "--seed=1", "--force"]) == 0
    assert warm_up_logs(version) != before


def test_synthesize_to_other_file_keeps_version(version: Path, tmp_path: Path):
    output = tmp_path / "requests"
    assert main(["synthesize", str(version), f"--output={output}"]) == 0
    assert len(list(read_logs(output))) == 1
    assert not (version / WARM_UP_FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--signature=classify"], "signature 'classify': takes serialized Examples"),
        (["--signature=other"], "no signature 'other'"),
        (["--tags=gpu"], "no meta graph has the tags ['gpu']"),
        (["--count=1001"], "1001 records, but a server accepts 1000"),
        (["--output=/nowhere/requests"], "/nowhere"),
    ],
)
def test_failed_synthesize_exits_one_with_the_reason(
    version: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["synthesize", str(version), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (version / WARM_UP_FILE).exists()


@pytest.mark.parametrize(
    "arguments", [["--batch-sizes=1,0"], ["--batch-sizes="], ["--count=x"], ["--int-max=-1"]]
)
def test_synthesize_wrong_usage_exits_two(version: Path, arguments: list[str]):
    assert main(["synthesize", str(version), *arguments]) == 2


def test_inspect_prints_a_line_a_record_and_the_totals(
    version: Path, capsys: pytest.CaptureFixture[str]
):
    main(["synthesize", str(version)])
    capsys.readouterr()
    assert main(["inspect", str(version)]) == 0
    header, record, totals = capsys.readouterr().out.splitlines()
    assert header.startswith("#\tkind\tmodel\tsignature")
    number, kind, model, signature, inputs, output_filter, size_bytes, answered = record.split("\t")
    assert [number, kind, model, signature] == ["1", "predict_log", "ctr", "serving_default"]
    assert [inputs, output_filter, answered] == ["x float32[1,2]", "", "no"]
    assert totals == f"1 records (1 predict_log), {size_bytes} bytes, 0 with a response"


def test_inspect_json_of_a_file(version: Path, capsys: pytest.CaptureFixture[str]):
    main(["synthesize", str(version), "--batch-sizes=4"])
    path = version / WARM_UP_FILE
    capsys.readouterr()
    assert main(["inspect", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(path)
    assert document["records"][0]["inputs"] == ["x float32[4,2]"]
    assert document["totals"]["record_count"] == 1


def test_inspect_damaged_file_prints_start_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "requests"
    write_records(path, [b"", b""])
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["inspect", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("1\tempty")
    assert "record at byte 16" in err


def test_check_prints_line_per_fault_and_exits_one(
    version: Path, capsys: pytest.CaptureFixture[str]
):
    (version / WARM_UP_FILE).parent.mkdir()
    write_records(version / WARM_UP_FILE, [b"", b"\xff\xff"])
    assert main(["check", str(version)]) == 1
    assert [line[:9] for line in capsys.readouterr().out.splitlines()] == ["record 1:", "record 2:"]


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_version_without_a_file_exits_one_with_a_hint(
    command: str, version: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([command, str(version)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"warmup {command}: {version / WARM_UP_FILE} does not exist: this version has no warm-up "
        f"file; `python -m warmup synthesize {version}` or "
        f"`millpond capture MODEL --output {version}` writes one\n"
    )


@pytest.mark.parametrize("command", ["check", "inspect", "synthesize"])
def test_base_path_given_as_version_lists_versions(
    command: str, version: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([command, str(version.parent)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"its versions are {version}" in err


def test_inspect_missing_path_names_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(tmp_path / "none")]) == 1
    assert "none does not exist; give a warm-up file, or a version" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_inspect_of_another_file_prints_the_error(
    as_json: list[str], version: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["inspect", str(version / "saved_model.pb"), *as_json]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "not a TFRecord file" in err


def test_main_without_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert "synthesize" in capsys.readouterr().out
