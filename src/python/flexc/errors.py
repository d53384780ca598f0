"""What flexc raises. Every error is an Error; its `code` is a status name of the C interface, with _ for spaces."""


class Error(Exception):
    """`code` says what kind of error it is, for programs; the text is for people."""

    code = "internal"


class ProgramError(Error, ValueError):
    """The text is not a program; the message shows the place, with a caret."""

    code = "syntax"


class InvalidOption(Error, ValueError):
    """An option, shape, type or pointer that cannot be accepted."""

    code = "invalid_option"


class LimitExceeded(Error):
    """A stated limit was exceeded, or memory ran out."""

    code = "limit"


class Unsupported(Error, NotImplementedError):
    """Right, but not on this device or in this build."""

    code = "unsupported"


class LibraryMissing(Error):
    """The driver, NVRTC or the CPU backend; the message lists where it was searched."""

    code = "library_missing"


class CompileFailed(Error):
    """A backend compiler refused; the message holds its log."""

    code = "compile_failed"


class DeviceError(Error):
    """The driver reported an error."""

    code = "device"


class CannotTrace(Error, NotImplementedError):
    """A Python function does what a flexc program cannot say; the message has the operator and the line."""

    code = "unsupported"


_TYPES = {kind.code: kind for kind in (ProgramError, InvalidOption, LimitExceeded, Unsupported, LibraryMissing,
                                       CompileFailed, DeviceError)}


def make(code, message):
    """The exception for a status of the C interface."""
    code = code.replace(" ", "_")
    error = _TYPES.get(code, Error)(message)
    error.code = code
    return error
