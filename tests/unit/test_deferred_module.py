import sys

import pytest

from serving.base import deferred_module
from serving.base.deferred_module import DeferredModule, load_deferred_modules
from tests.unit.fresh_python import run_python


@pytest.fixture(autouse=True)
def deferred(monkeypatch: pytest.MonkeyPatch) -> list[DeferredModule]:
    """Keeps the modules of a test out of the list of the process."""
    modules: list[DeferredModule] = []
    monkeypatch.setattr(deferred_module, "_deferred", modules)
    return modules


def test_deferred_module_is_imported_when_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = DeferredModule("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert module.rgb_to_hsv is sys.modules["colorsys"].rgb_to_hsv


def test_load_deferred_modules_imports_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    DeferredModule("colorsys")
    load_deferred_modules()
    assert "colorsys" in sys.modules


def test_server_starts_without_numpy():
    run_python(
        "import sys\n"
        "import serving.server.server\n"
        "sys.exit(str({'numpy', 'tensorflow'} & set(sys.modules)).replace('set()', '') or 0)"
    )
