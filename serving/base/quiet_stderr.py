"""Keeps TensorFlow's greeting out of the output of a command that only prints something."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from serving.base.errors import MillpondError

_STDERR = 2


@contextmanager
def quiet_stderr() -> Iterator[TextIO]:
    """Keeps what is written to descriptor 2 within the block, and yields the real standard error.

    C++ code of TensorFlow writes lines before it reads any log setting. So the descriptor itself leads to
    another file meanwhile, whose content is printed after a bug.
    """
    sys.stderr.flush()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as kept,
        os.fdopen(os.dup(_STDERR), "w") as terminal,
    ):
        os.dup2(kept.fileno(), _STDERR)
        try:
            yield terminal
        except (MillpondError, OSError, ImportError, KeyboardInterrupt):
            raise  # The message of the error is enough.
        except BaseException:
            kept.seek(0)
            shutil.copyfileobj(kept, terminal)
            raise
        finally:
            os.dup2(terminal.fileno(), _STDERR)
