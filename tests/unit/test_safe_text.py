import pytest

from serving.storage.safe_text import safe_text

NO_SECRETS: dict[str, str] = {}


@pytest.mark.parametrize(
    "text",
    [
        "GET https://b.s3.amazonaws.com/m/1?X-Amz-Signature=hunter2222&x=1 failed",
        "https://user:hunter2222@host/x",
        "headers: {'Authorization': 'Bearer hunter2222'}",
        "Authorization: AWS4-HMAC-SHA256 Credential=hunter2222/2026/us, Signature=hunter2222",
        "AccountKey=hunter2222;EndpointSuffix=core.windows.net",
        "aws_secret_access_key='hunter2222'",
        '{"token": "hunter2222"}',
        "<AWSAccessKeyId>hunter2222</AWSAccessKeyId>",
        "sv=2024&sig=hunter2222&se=1",
        "{b'X-Api-Token': b'hunter2222'}",
        "headers: {'authorization': b'hunter2222'}",
        "Authorization: SharedKey hunter2222account:hunter2222==",
        "Authorization: SharedKeyLite account:hunter2222/x==",
        "AKIAHUNTER2222ABCDEF hf_hunter2222abcdef",
    ],
)
def test_credentials_are_hidden(text: str):
    shown = safe_text(text, NO_SECRETS).lower()
    assert "hunter2222" not in shown
    assert "***" in shown


def test_values_of_secret_variables_are_hidden():
    environment = {"AWS_SECRET_ACCESS_KEY": "hunter2222", "HOME": "/root", "HF_TOKEN": "abc"}
    assert safe_text("got hunter2222 in /root, abc", environment) == "got *** in /root, abc"


def test_usual_errors_stay_readable():
    text = "NoSuchBucket: The specified bucket does not exist"
    assert safe_text(text, NO_SECRETS) == text


def test_long_texts_are_one_short_line():
    assert safe_text("a\n  b", NO_SECRETS) == "a b"
    assert len(safe_text("x" * 10_000, NO_SECRETS)) < 500
