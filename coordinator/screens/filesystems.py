"""On what kind of filesystem a folder lies, as the system names it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Filesystems of other machines: SQLite's write-ahead log needs memory that all its users share.
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "fuse.sshfs", "macfuse", "9p", "ceph"})
_ASK_S = 5.0
#: A line of macOS' mount: `/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled)`.
_MOUNT_LINE = re.compile(r".* on (?P<place>/.*) \((?P<kind>[^,)]+)")


def of(folder: Path) -> str:
    """The kind of `folder`'s filesystem, empty when the system does not tell."""
    return kind_of(folder.resolve(), _mounts())


def kind_of(folder: Path, mounts: Mapping[str, str]) -> str:
    """The kind at the nearest mount above `folder`; `mounts` is kinds by place."""
    return next((mounts[str(place)] for place in (folder, *folder.parents) if str(place) in mounts), "")


def _mounts() -> dict[str, str]:
    try:
        if sys.platform == "linux":
            return linux_mounts(Path("/proc/self/mounts").read_text())
        told = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return mac_mounts(told.stdout)


def linux_mounts(text: str) -> dict[str, str]:
    """Kinds by place, of /proc/self/mounts; blanks in a place are written as octal numbers there."""
    lines = [line.split() for line in text.splitlines()]
    return {
        re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), words[1]): words[2] for words in lines if len(words) > 2
    }


def mac_mounts(text: str) -> dict[str, str]:
    """Kinds by place, of what macOS' mount prints."""
    found = map(_MOUNT_LINE.match, text.splitlines())
    return {match["place"]: match["kind"] for match in found if match}
