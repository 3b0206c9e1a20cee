import pytest

from serving.base.errors import InvalidConfig
from serving.core.store_urls import BACKENDS, check_store_url, is_store_url


def check(url: str, *, is_installed: bool = True) -> None:
    check_store_url(url, "model 'm': ", lambda module: is_installed)


@pytest.mark.parametrize(
    "url", ["s3://b", "gs://b/models/m/", "az://c/m", "hf://org/repo/m", "hf://datasets/o/r/m"]
)
def test_directory_in_object_storage_is_taken(url: str):
    assert is_store_url(url)
    check(url)


def test_local_path_is_no_url():
    assert not is_store_url("/models/m")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/m", "the scheme 'ftp' is unknown; use s3://, gs://, az://, hf://"),
        ("s3:///m", "must be like s3://bucket/path"),
        ("s3://b//m", "must be like"),
        ("s3://b/../m", "must be like"),
        ("s3://b/a b", "must be like"),
    ],
)
def test_other_urls_are_refused(url: str, words: str):
    with pytest.raises(InvalidConfig) as error:
        check(url)
    assert str(error.value).startswith("model 'm': base_path")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "url", ["s3://key:hunter22@b/m", "az://c/m?sig=hunter22", "gs://b#hunter22"]
)
def test_password_in_a_url_is_refused_and_not_shown(url: str):
    with pytest.raises(InvalidConfig) as error:
        check(url)
    assert "give credentials by the environment" in str(error.value)
    assert "hunter22" not in str(error.value)


@pytest.mark.parametrize("scheme", BACKENDS)
def test_missing_package_names_the_pip_command(scheme: str):
    with pytest.raises(InvalidConfig, match=rf"pip install 'millpond\[{scheme}\]'"):
        check(f"{scheme}://b/m", is_installed=False)
