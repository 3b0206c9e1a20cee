"""The flags of `millpond serve`: TensorFlow Serving's own spellings, and Millpond's.

A flag is either supported, or refused by name with the reason. No flag is ignored: a command line of
`tensorflow_model_server` either has the same meaning here, or the server does not start.
docs/migrating.md describes each flag.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from serving.base.errors import InvalidConfig
from serving.config.flag_rows import Flag, RefusedFlag
from serving.config.millpond_flags import GONE_FLAGS, MILLPOND_FLAGS
from serving.config.tensorflow_serving_flags import TENSORFLOW_SERVING_FLAGS

__all__ = [
    "FLAGS",
    "Flag",
    "RefusedFlag",
    "flag_text",
    "gone_flag_message",
    "help_text",
    "parse_flags",
]

FLAGS: Mapping[str, Flag | RefusedFlag] = {
    flag.name: flag for flag in TENSORFLOW_SERVING_FLAGS + MILLPOND_FLAGS
}


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads a command line and returns the value of every supported flag, with the defaults.

    Accepts `--flag=value` and `--flag value`; booleans are `--flag` or `--flag=true|false`. If a flag
    is given several times, the last value counts, as in TensorFlow Serving; a repeatable flag keeps
    all values. Raises InvalidConfig for any other argument.
    """
    values = {flag.name: flag.default for flag in FLAGS.values() if isinstance(flag, Flag)}
    remaining = list(arguments)
    while remaining:
        name, text = _split(remaining.pop(0))
        flag = _find(name)
        if isinstance(flag, RefusedFlag):
            _check_is_harmless(flag, text, remaining)
            continue
        if text is None and flag.metavar:
            text = _following_value(flag, remaining)
        value = _read(flag, "true" if text is None else text)
        values[flag.name] = (*values[flag.name], value) if flag.is_repeatable else value
    return values


def help_text() -> str:
    """The text of `millpond serve --help`: the supported flags, then the refused names."""
    taken = [flag for flag in FLAGS.values() if isinstance(flag, Flag)]
    refused = [flag.name for flag in FLAGS.values() if isinstance(flag, RefusedFlag)]
    lines = ["usage: millpond serve --model_base_path=DIR [--flag=value ...]", ""]
    lines += map(flag_text, taken)
    lines += [
        "",
        "Flags of TensorFlow Serving that are refused, with the reason, unless their value asks for what",
        "Millpond does anyway:",
    ]
    lines += [f"  --{name}" for name in refused]
    return "\n".join(lines)


def flag_text(flag: Flag | RefusedFlag) -> str:
    """The lines about one flag: its value, meaning and default, or the reason of its refusal."""
    if isinstance(flag, RefusedFlag):
        return f"  --{flag.name}\n        refused: {flag.message}"
    value = f"={flag.metavar}" if flag.metavar else ""
    return f"  --{flag.name}{value}\n        {flag.help}{_default_text(flag)}"


def _default_text(flag: Flag) -> str:
    if isinstance(flag.default, bool):
        return f" (default {str(flag.default).lower()})"
    if flag.is_repeatable:
        return "; may be given several times"
    if flag.default in ("", {}, ()):
        return ""
    if isinstance(flag.default, tuple):
        return f" (default {','.join(map(str, flag.default))})"
    is_float = isinstance(flag.default, float)
    return f" (default {flag.default:g})" if is_float else f" (default {flag.default})"


def _split(argument: str) -> tuple[str, str | None]:
    if not argument.startswith("--") or argument == "--":
        raise InvalidConfig(f"{argument!r} is not a flag; write --flag=value")
    name, separator, text = argument[2:].partition("=")
    return name, text if separator else None


def gone_flag_message(name: str) -> str:
    """Says what replaced a flag of an earlier version; "" for any other name."""
    return f"--{name} is no longer a flag: {GONE_FLAGS[name]}" if name in GONE_FLAGS else ""


def _find(name: str) -> Flag | RefusedFlag:
    flag = FLAGS.get(name)
    if flag is None:
        if message := gone_flag_message(name):
            raise InvalidConfig(message)
        nearest = difflib.get_close_matches(name, FLAGS, n=1)
        remedy = f"did you mean --{nearest[0]}?" if nearest else "see millpond serve --help"
        raise InvalidConfig(f"--{name} is not a flag of Millpond or TensorFlow Serving; {remedy}")
    return flag


def _check_is_harmless(flag: RefusedFlag, text: str | None, remaining: list[str]) -> None:
    """Consumes the flag's value. Raises InvalidConfig unless it matches Millpond's behaviour anyway."""
    if text is None and flag.metavar and remaining and not remaining[0].startswith("--"):
        text = remaining.pop(0)
    if not flag.permits("true" if text is None else text):
        raise InvalidConfig(f"--{flag.name} is refused: {flag.message}")


def _following_value(flag: Flag, remaining: list[str]) -> str:
    # If the next argument looks like a flag, the value was forgotten; `--flag=--value` still works.
    if not remaining or remaining[0].startswith("--"):
        raise InvalidConfig(f"--{flag.name} needs a value: --{flag.name}={flag.metavar}")
    return remaining.pop(0)


def _read(flag: Flag, text: str) -> Any:
    try:
        return flag.read(text)
    except ValueError as error:
        raise InvalidConfig(f"--{flag.name}={text}: {error}") from None
