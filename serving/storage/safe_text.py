"""Texts of storage libraries, without the credentials that their errors, URLs and headers may contain."""

import os
import re
from collections.abc import Mapping

_TEXT_MAX = 400
_HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|ACCESS_KEY|ACCOUNT_KEY|API_KEY|CREDENTIAL|SAS|CONNECTION_STRING"
)
# The shortest value of such a variable that is hidden. Hiding shorter values would hide ordinary words.
_SECRET_LENGTH_MIN = 6

_PATTERNS = (
    # The query of a signed URL, and the user in a URL.
    (re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*"), rf"\1?{_HIDDEN}"),
    (re.compile(r"(\w+://)[^\s/@'\"]+@"), rf"\1{_HIDDEN}@"),
    (
        re.compile(r"(?i)\b(bearer|basic|aws4-hmac-sha256|sharedkey(?:lite)?)\s+[^\s'\"]+"),
        rf"\1 {_HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)\b(\w*?(?:authorization|signature|sig|token|secret\w*|password|accountkey|access_?key\w*"
            r"|credential|awsaccesskeyid))(['\"]?\s*[=:]\s*(?:b?['\"])?)[^\s'\"&,;)}<]+"
        ),
        rf"\1\2{_HIDDEN}",
    ),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b"), _HIDDEN),
    (re.compile(r"\bhf_[A-Za-z0-9]{10,}\b"), _HIDDEN),
    (re.compile(r"(?i)(<(AWSAccessKeyId|StringToSign|SignatureProvided)>)[^<]*"), rf"\1{_HIDDEN}"),
)


def safe_text(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text in one line, shortened, without what looks like a credential.

    Values of environment variables whose names are those of secrets are hidden too.
    """
    for name, value in environment.items():
        if _SECRET_NAME.search(name.upper()) and len(value) >= _SECRET_LENGTH_MIN:
            text = text.replace(value, _HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_MAX else f"{line[:_TEXT_MAX]}..."
