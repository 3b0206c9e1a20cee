"""ConfigWatcher: applies the config files again when somebody has edited them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from serving.base.clock import Clock, pause
from serving.base.errors import InvalidConfig, MillpondError, from_exception
from serving.base.periodic_thread import PeriodicThread
from serving.config.model_settings_file import SettingsByModel, parse_model_settings
from serving.config.server_config import ModelConfig

SETTLE_SECONDS = 0.1
"""An edited file that stays the same for so long has been written to its end."""

SETTLE_LOOKS_MAX = 20
"""A file that goes on changing is taken as it is then: it may never rest."""

Change = Callable[[Sequence[ModelConfig] | None, SettingsByModel | None], object]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ConfigRefusal:
    """Why edits of the files are not what the server serves by: `file` is at fault, for `reason`."""

    file: str
    reason: str
    # Since when the files have held what is refused, one fault or another.
    since_wall_ns: int

    @classmethod
    def after(
        cls, earlier: "ConfigRefusal | None", file: str, reason: str, clock: Clock
    ) -> "ConfigRefusal":
        """The next one, or the first where nothing was refused `earlier`."""
        return cls(file, reason, earlier.since_wall_ns if earlier else clock.wall_ns())


@dataclass(frozen=True)
class _Text:
    """What a file held; `error` says why it could not be read."""

    text: str = ""
    error: str = ""


@dataclass(frozen=True)
class _Texts:
    """What both files held; None where there is no such file to look at, or no look yet."""

    config: _Text | None = None
    settings: _Text | None = None


class ConfigWatcher:
    """Reads the files every so often on a thread `config`, and hands their changes to `change`.

    The first look is at once, for an edit made while the server was starting. The models are
    replaced only where the config file itself has changed: what was configured by an RPC stays
    until then. Files with something wrong change nothing, the log says what, once, and `refusal`
    as long as it is so; what was edited meanwhile in the other file is applied once they are
    mended. "" is no file.
    """

    def __init__(
        self,
        config_file: str,
        settings_file: str,
        *,
        period_seconds: float,
        change: Change,
        model_names: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        """`change` is `ConfigReloader.change`; `model_names` are those configured now."""
        self._config_file = config_file
        self._settings_file = settings_file
        self._change = change
        self._model_names = model_names
        self._clock = clock
        # Apart, because what is refused is seen and not applied: it counts as new once mended.
        self._seen = _Texts()
        self._applied = _Texts()
        self._refusal: ConfigRefusal | None = None
        self._thread = PeriodicThread(
            "config",
            self.poll,
            wait_seconds=lambda: period_seconds,
            failure_event="config_poll_failed",
            at_start=self.poll,
            clock=clock,
        )

    @property
    def refusal(self) -> ConfigRefusal | None:
        """What keeps the server with the configuration before; None where it has the files'. Any thread."""
        return self._refusal

    def start(self) -> None:
        """Starts looking."""
        self._thread.start()

    def stop(self) -> None:
        """Ends looking. Returns at once."""
        self._thread.stop()

    def join(self, timeout_seconds: float) -> bool:
        """After `stop`: False where the disk still holds the thread after `timeout_seconds`."""
        return self._thread.join(timeout_seconds)

    def poll(self) -> None:
        """Looks once. On one thread at a time."""
        texts = self._read_settled()
        if texts == self._applied:
            self._refusal = None  # Where there was one, it was taken back.
        elif texts != self._seen:
            is_config_new = texts.config != self._applied.config
            with suppress(MillpondError):  # `_blaming` has told it.
                self._apply(texts.config if is_config_new else None, texts.settings)
                self._applied, self._refusal = texts, None
        # Last: what is not the files' fault, as a thread that cannot be had, the next look tries again.
        self._seen = texts

    def _read_settled(self) -> _Texts:
        """Both files; where one has changed, as they are once they stay the same for a moment.

        Most editors and `echo >` empty a file before they write it, and half a config is another
        config.
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
        return _Texts(_read(self._config_file), _read(self._settings_file))

    def _apply(self, config: _Text | None, settings: _Text | None) -> None:
        models = None
        if config is not None:
            # Here, because protobuf takes 80 ms, which is why config.py has it there too.
            from serving.config.model_config_file import parse_model_config

            with self._blaming(self._config_file):
                models = parse_model_config(_text(config, self._config_file), self._config_file)
        names = self._model_names() if models is None else [model.name for model in models]
        by_model = None
        if settings is not None:
            with self._blaming(self._settings_file):
                text = _text(settings, self._settings_file)
                by_model = parse_model_settings(text, self._settings_file, names)
        with self._blaming(self._settings_file if models is None else self._config_file):
            self._change(models, by_model)

    @contextmanager
    def _blaming(self, file: str) -> Iterator[None]:
        """Tells of an error, which goes on its way, that what `file` says is not in effect for it."""
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


def _read(path: str) -> _Text | None:
    if not path:
        return None
    try:
        return _Text(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return _Text(error=str(error))


def _text(content: _Text, path: str) -> str:
    if content.error:
        raise InvalidConfig(f"{path}: cannot be read: {content.error}")
    return content.text
