from importlib.metadata import PackageNotFoundError

import pytest

from serving.base import tensorflow_package
from serving.base.tensorflow_package import Package, installed_package, installed_version, mismatch


def install(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """Lets the package index of Python have `versions` and nothing else."""

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(tensorflow_package, "version", version)


@pytest.mark.parametrize("installed", ["2.21.0", "2.21.3", "2.21.0rc1"])
def test_same_minor_version_is_accepted(installed: str):
    assert mismatch(Package("tensorflow", installed)) == ""


@pytest.mark.parametrize("installed", ["2.20.0", "2.22.1", "2.2.0", "3.21.0", "2.210.0"])
def test_other_minor_version_is_refused(installed: str):
    message = mismatch(Package("tensorflow", installed))
    assert f"tensorflow {installed} is installed" in message
    assert "pip install 'tensorflow>=2.21,<2.22'" in message


def test_other_cpu_version_names_its_own_package():
    message = mismatch(Package("tensorflow-cpu", "2.22.0"))
    assert message.startswith("tensorflow-cpu 2.22.0 is installed")
    assert message.endswith("pip install 'tensorflow-cpu>=2.21,<2.22'")


def test_missing_tensorflow_names_the_command(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, {})
    assert "pip install 'tensorflow>=2.21,<2.22'" in mismatch(installed_package())
    assert installed_version() is None


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_either_package_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, {name: "2.21.7"})
    assert installed_package() == (name, "2.21.7")
    assert installed_version() == "2.21.7"
