"""Errors of the operating system as errors of Kiwi: files that cannot be written, full disks, and
limits of the machine."""

import errno

from kiwi.errors import InvalidArgumentError, KiwiError, MachineLimitError
from kiwi.messages import topics

_WHY_UNWRITABLE = {
    errno.ENOSPC: (
        "The disk is full.",
        "Free some space, or use a path on another disk.",
    ),
    errno.EDQUOT: (
        "The user's share of the disk is used up.",
        "Delete files of yours, or use a path on another disk.",
    ),
    errno.EROFS: (
        "The file system is mounted read-only.",
        "Use a path on a file system that may be written to.",
    ),
    errno.EACCES: (
        "The permissions of the file or its folder do not allow it.",
        "Use a path in a folder that you may write to, or change the permissions.",
    ),
    errno.ENAMETOOLONG: (
        "The file system allows no name of this length.",
        "Use a shorter file name.",
    ),
    errno.ENOENT: (
        "The folder of the path does not exist, or takes no new files.",
        "Make the folder first, or use a path in a folder that exists.",
    ),
    errno.ENOTDIR: (
        "A part of the path is a file, and not a folder.",
        "Use a path whose parts are folders.",
    ),
    errno.EISDIR: (
        "The path leads to a folder.",
        "Add the name of a file to the path.",
    ),
}
"""For each error of the operating system, the cause and the next step."""


def unwritable(
    what: str, error: OSError, kind: type[KiwiError] = InvalidArgumentError
) -> KiwiError:
    """Returns the error for a file that the operating system refuses to write.

    - `what`: the start of the sentence that names the file, without the reason.
    - `kind`: the type of the error.
    """
    number = errno.EACCES if error.errno == errno.EPERM else error.errno
    cause, suggestion = _WHY_UNWRITABLE.get(number or 0, (None, None))
    return kind(
        f"{what}: {error.strerror or error}.",
        topic=topics.UNWRITABLE,
        cause=cause,
        suggestion=suggestion,
    )


_LIMITS = {
    errno.ENOSPC: "The disk is full: that of the temporary files (TMPDIR), or that of the output.",
    errno.EDQUOT: "The user's share of the disk is used up.",
    errno.EROFS: "The file system of the folder of temporary files (TMPDIR) is mounted read-only.",
    errno.EACCES: "The folder of temporary files (TMPDIR) may not be written to.",
    errno.EPERM: "The machine forbids it to this user.",
    errno.EMFILE: "This process has as many open files as it may have (`ulimit -n`).",
    errno.ENFILE: "The machine has as many open files as it may have.",
    errno.EAGAIN: "The user has as many processes as they may have (`ulimit -u`).",
    errno.ENOMEM: "The machine has no memory left.",
}
"""For each error of the operating system that no fault of Kiwi causes, the reason."""

_NO_TEMPORARY_FOLDER = "No usable temporary directory found"


def limit_error(error: BaseException) -> MachineLimitError | None:
    """Returns the error of Kiwi for an error that a limit of the machine causes; None for any other
    error."""
    if isinstance(error, MemoryError):
        return MachineLimitError("The machine has no memory left.")
    if not isinstance(error, OSError):
        return None
    if _NO_TEMPORARY_FOLDER in str(error):
        return MachineLimitError(
            "There is no folder for temporary files.",
            cause="The folder of TMPDIR, or /tmp, is missing, full or may not be written to.",
        )
    if error.errno not in _LIMITS:
        return None
    where = f" ({error.filename})" if error.filename else ""
    reason = error.strerror or type(error).__name__
    return MachineLimitError(
        f"The operating system refuses a request: {reason}{where}.", cause=_LIMITS[error.errno]
    )
