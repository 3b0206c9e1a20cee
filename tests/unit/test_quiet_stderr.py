import os

import pytest

from serving.base.errors import NotFound
from serving.base.quiet_stderr import quiet_stderr


def test_quiet_stderr_keeps_native_lines(capfd: pytest.CaptureFixture[str]):
    with quiet_stderr() as terminal:
        os.write(2, b"greeting\n")
        print("progress", file=terminal)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "progress\nafter\n"


@pytest.mark.parametrize(
    ("error", "printed"), [(RuntimeError("bug"), "greeting\n"), (NotFound("no such model"), "")]
)
def test_quiet_stderr_prints_lines_after_a_bug(
    error: Exception, printed: str, capfd: pytest.CaptureFixture[str]
):
    def fail() -> None:
        with quiet_stderr():
            os.write(2, b"greeting\n")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert capfd.readouterr().err == printed
