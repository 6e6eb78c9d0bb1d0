"""What the system says about files without reading them, and when that is enough to know that nothing changed."""

from __future__ import annotations

import os
from typing import NamedTuple

SETTLED = 60 * 10**9  # nanoseconds: clocks are coarse and differ, so a later change could show the same time
TICK = 10**7  # nanoseconds: the finest time of file systems that keep no ctime (FAT, sshfs, squashfs) and show mtime


class Mark(NamedTuple):
    """What the system says about a file without reading it; times in nanoseconds."""

    size: int
    modified: int  # which anybody can set
    changed: int  # content, name or rights; set by the system alone
    inode: int

    @classmethod
    def of(cls, file: str | int) -> Mark:
        """Of a path, or of an open file."""
        found = os.stat(file)
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def tells_changes(self, now: int) -> bool:
        """Whether a file that is changed from now on cannot look like this."""
        real = self.changed > self.modified or self.changed % TICK != 0
        return real and self.changed <= now - SETTLED
