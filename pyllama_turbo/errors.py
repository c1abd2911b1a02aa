"""Exceptions of pyllama_turbo.

Every exception carries its facts as attributes, so that a program can react without parsing text::

    TurboError
    ├── NativeLibraryError      the compiled library is missing or cannot run on this machine   (ImportError)
    ├── OptionError             an argument is outside its range or of the wrong kind           (ValueError)
    │   └── UnknownOptionError  a keyword that does not exist                                   (TypeError)
    ├── ModelLoadError          the file is missing, damaged or of an unknown architecture
    │   └── GGUFError           its header cannot be read
    ├── ModelFetchError         a known model could not be fetched
    ├── UnsupportedError        this model, cache or build cannot do it
    ├── MemoryLimitError        it would not fit, or an allocation failed                       (MemoryError)
    ├── ContextFullError        more tokens than the context holds                              (ValueError)
    ├── BusyError               the context is generating for someone else
    ├── AbortedError            stopped by cancel()
    ├── DecodeError             the computation failed
    ├── StateError              saved state is damaged or belongs to another configuration
    ├── ClosedError             the model or context was closed
    └── InternalError           an unexpected exception of the native code
"""

from __future__ import annotations

__all__ = [
    "AbortedError",
    "BusyError",
    "ClosedError",
    "ContextFullError",
    "DecodeError",
    "GGUFError",
    "InternalError",
    "MemoryLimitError",
    "ModelFetchError",
    "ModelLoadError",
    "NativeLibraryError",
    "OptionError",
    "StateError",
    "TurboError",
    "UnknownOptionError",
    "UnsupportedError",
]


class TurboError(Exception):
    """Root of all exceptions of this package.

    Attributes:
        asked: what the caller asked for, where that is a value.
        limit: what would have been possible, where that is a value.
        hint: what to do about it, or an empty string.
        native_log: the last lines the native library logged before the error, oldest first.
    """

    def __init__(
        self,
        message: str,
        *,
        asked: object = None,
        limit: object = None,
        hint: str = "",
        native_log: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.asked = asked
        self.limit = limit
        self.hint = hint
        self.native_log = native_log

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NativeLibraryError(TurboError, ImportError):
    """The compiled library is missing, or this machine cannot run it. `pyllama-turbo doctor` shows the details."""


class OptionError(TurboError, ValueError):
    """An argument is outside its range or of the wrong kind; nothing was done."""


class UnknownOptionError(OptionError, TypeError):
    """A keyword that does not exist; `limit` holds the names that do."""


class ModelLoadError(TurboError):
    """The model file is missing, damaged or of an unknown architecture; `asked` is its path."""


class GGUFError(ModelLoadError):
    """The header of a GGUF file is missing, truncated or makes no sense."""


class ModelFetchError(TurboError):
    """A known model could not be fetched, or what arrived is not what was expected."""


class UnsupportedError(TurboError):
    """This model, cache or build cannot do what was asked."""


class MemoryLimitError(TurboError, MemoryError):
    """It would not fit: `asked` and `limit` are bytes where they are known."""


class ContextFullError(TurboError, ValueError):
    """More tokens than the context holds: `asked` and `limit` are token counts."""


class BusyError(TurboError):
    """The context is in use by another generation; one context serves one at a time."""


class AbortedError(TurboError):
    """The operation was cancelled; tokens already processed stay in the cache."""


class DecodeError(TurboError):
    """The computation failed; tokens already processed stay in the cache."""


class StateError(TurboError):
    """Saved state is damaged or belongs to another model, KV type, format or build."""


class ClosedError(TurboError):
    """The model or context was closed before."""


class InternalError(TurboError):
    """An unexpected exception of the native code: please report it with the output of `pyllama-turbo doctor`."""
