"""ConfigWatcher: applies the config files again when they have changed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from serving.base.bounded_files import CONFIG_BYTES_MAX, read_bounded_text
from serving.base.clock import Clock, pause
from serving.base.errors import InvalidConfig, MillpondError, from_exception
from serving.base.periodic_thread import PeriodicThread
from serving.config.config_text import read_config_text
from serving.config.model_settings_file import parse_model_settings
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.reload.served_models import ServedModels

SETTLE_SECONDS = 0.1
"""A changed file that stays the same for this long is taken as complete."""

SETTLE_LOOKS_MAX = 20
"""The most looks at a file that keeps changing; then it is read as it is."""

Change = Callable[[Sequence[ModelConfig] | None, SettingsByModel | None], object]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ConfigRefusal:
    """The reason why changes of the files are not in effect: `file` is invalid, for `reason`."""

    file: str
    reason: str
    # The time since which the files have been refused, even if the faults have changed.
    since_wall_ns: int

    @classmethod
    def after(
        cls, earlier: "ConfigRefusal | None", file: str, reason: str, clock: Clock
    ) -> "ConfigRefusal":
        """The refusal that follows `earlier`; if that is None, a first refusal."""
        return cls(file, reason, earlier.since_wall_ns if earlier else clock.wall_ns())


@dataclass(frozen=True)
class _Text:
    """The contents of a file; `error` is the reason if it could not be read."""

    text: str = ""
    error: str = ""


@dataclass(frozen=True)
class _Texts:
    """The contents of both files; None for a file that is not configured or not read yet."""

    config: _Text | None = None
    settings: _Text | None = None


class ConfigWatcher:
    """Reads the files periodically on a thread `config`, and passes their changes to `change`.

    The first look is at once, because a file may have changed while the server was starting. The models
    are replaced only if the config file itself has changed; until then a configuration by RPC stays. If
    a file is invalid, nothing changes. The error is logged once, and `refusal` has it until the files
    are valid. Changes of the other file are then applied too. A file name of "" means no file.
    """

    def __init__(
        self,
        config_file: str,
        settings_file: str,
        *,
        period_seconds: float,
        change: Change,
        served: ServedModels,
        clock: Clock,
    ) -> None:
        """Takes `ConfigReloader.change`, and the models that are configured now."""
        self._config_file = config_file
        self._settings_file = settings_file
        self._change = change
        self._served = served
        self._clock = clock
        # Two values, because refused contents are seen but not applied.
        self._seen = _Texts()
        self._applied = _Texts()
        self._refusal: ConfigRefusal | None = None
        self._thread = PeriodicThread(
            "config",
            self.poll,
            wait_seconds=period_seconds,
            failure_event="config_poll_failed",
            at_start=self.poll,
            clock=clock,
        )

    @property
    def refusal(self) -> ConfigRefusal | None:
        """The reason why the files are not in effect, or None if they are. Any thread."""
        return self._refusal

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Returns at once."""
        self._thread.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`, for the thread; returns False if the disk holds it at the timeout."""
        return self._thread.join(timeout_seconds)

    def poll(self) -> None:
        """Reads the files once. On one thread at a time."""
        texts = self._read_settled()
        if texts == self._applied:
            self._refusal = None  # A refused change was undone.
        elif texts != self._seen:
            is_config_new = texts.config != self._applied.config
            with suppress(MillpondError):  # `_blaming` has logged it.
                self._apply(texts.config if is_config_new else None, texts.settings)
                self._applied, self._refusal = texts, None
        # Set last: after an error that the files did not cause, such as a thread that cannot be started,
        # the next look tries again.
        self._seen = texts

    def _read_settled(self) -> _Texts:
        """Reads both files; if one has changed, waits until both stay the same for a moment.

        Most editors and `echo >` empty a file before they write it, and a part of a config can be a
        valid config.
        """
        read = self._read()
        for _ in range(SETTLE_LOOKS_MAX):
            if read == self._seen:
                break
            pause(self._clock, SETTLE_SECONDS)
            before, read = read, self._read()
            if read == before:
                break
        return read

    def _read(self) -> _Texts:
        return _Texts(
            _read(self._config_file, read_config_text),
            _read(self._settings_file, lambda path: read_bounded_text(path, CONFIG_BYTES_MAX)),
        )

    def _apply(self, config: _Text | None, settings: _Text | None) -> None:
        models = None
        if config is not None:
            # Imported here because protobuf takes 80 ms, which `server_config.py` saves at the start too.
            from serving.config.model_config_file import parse_model_config

            with self._blaming(self._config_file):
                models = parse_model_config(_text(config, self._config_file), self._config_file)
                self._check_not_emptied(models)
        names: Collection[str] = (
            self._served.names if models is None else [model.name for model in models]
        )
        by_model = None
        if settings is not None:
            with self._blaming(self._settings_file):
                text = _text(settings, self._settings_file)
                by_model = parse_model_settings(text, self._settings_file, names)
        with self._blaming(self._settings_file if models is None else self._config_file):
            self._change(models, by_model)

    def _check_not_emptied(self, models: Sequence[ModelConfig]) -> None:
        """Raises InvalidConfig if a file would remove all models.

        A file may be empty by mistake: a disk was full, a template rendered nothing.
        """
        if not models and self._served.names:
            raise InvalidConfig(
                f"{self._config_file}: no model in it, and a file that is polled removes no server's "
                "last model; if that is meant, write `model_config_list {}` into a file and send it: "
                "millpond config apply FILE"
            )

    @contextmanager
    def _blaming(self, file: str) -> Iterator[None]:
        """Logs and records an error as the reason why `file` is not in effect, and raises it again."""
        try:
            yield
        except Exception as error:
            reason = from_exception(error).message
            self._refusal = ConfigRefusal.after(self._refusal, file, reason, self._clock)
            _log.error(
                "config_refused",
                file=file,
                reason=reason,
                consequence="the configuration stays as it is",
            )
            raise


def _read(path: str, read_text: Callable[[Path], str]) -> _Text | None:
    if not path:
        return None
    try:
        return _Text(read_text(Path(path)))
    except (OSError, UnicodeDecodeError, InvalidConfig) as error:
        return _Text(error=str(error))


def _text(content: _Text, path: str) -> str:
    if content.error:
        raise InvalidConfig(f"{path}: cannot be read: {content.error}")
    return content.text
