"""A row of the tables of flags: one that is taken, or one that is refused by name."""

from dataclasses import dataclass
from typing import Any

from serving.config.flag_readers import Reader, boolean


@dataclass(frozen=True)
class Flag:
    """A flag that is taken. `metavar` is "" for a boolean, which may stand without a value."""

    name: str
    read: Reader
    default: Any
    help: str
    metavar: str = "VALUE"
    # May be given several times: the value is a tuple of all of them.
    is_repeatable: bool = False


@dataclass(frozen=True)
class RefusedFlag:
    """A flag of TensorFlow Serving that Millpond does not have (yet), and why.

    `harmless`: values, as `read` makes them, that ask for what Millpond does anyway. They are taken
    and change nothing. `replaced_by`: the flags to use instead.
    """

    name: str
    reason: str
    read: Reader = str
    harmless: tuple[Any, ...] = ()
    replaced_by: tuple[str, ...] = ()

    @property
    def metavar(self) -> str:
        """ "" for a boolean, which may stand without a value."""
        return "" if self.read is boolean else "VALUE"

    @property
    def message(self) -> str:
        """Returns the flags to use instead, if any, and the reason."""
        instead = " and ".join(f"--{name}" for name in self.replaced_by)
        return f"use {instead}; {self.reason}" if instead else self.reason

    def permits(self, text: str) -> bool:
        """Whether this value of it asks for what Millpond does anyway."""
        try:
            return self.read(text) in self.harmless
        except ValueError:
            return False
