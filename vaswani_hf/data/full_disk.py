"""A full disk in one sentence: the errors of `datasets` and Arrow name no folder."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets.exceptions import DatasetGenerationError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_named(folder: Any) -> Iterator[None]:
    """Names the folder if the work inside finds its disk full.

    Args:
        folder: The folder that the work writes to, unless its error says another one.

    Raises:
        OSError: If there is no space left.
        DatasetGenerationError: If the work fails for another reason.
    """
    try:
        yield
    except (OSError, DatasetGenerationError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _FULL:
            raise
        place = Path(cause.filename).parent if isinstance(cause.filename, str) else folder
        raise OSError(
            f"There must be space for the cache of `datasets` in '{place}', but its disk is full; free some, or set "
            "HF_DATASETS_CACHE to a folder with more."
        ) from None
