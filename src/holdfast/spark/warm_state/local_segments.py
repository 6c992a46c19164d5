"""Copies of the segments that keyed state lies in, on the disk of the host, where any task maps them.

    <digest of job and operator>/<name of the segment>         a copy, made by `holdfast.backends.keyed`
    <digest of job and operator>/<subtask>.<checkpoint id>     a list: the segments that the subtask has needed
    <digest of job and operator>/….inprogress                  a file in the making

A segment has a name that no other ever had, and checksums in itself. So a copy can be missing or damaged, but
never be out of date, and nothing of it is read before it is needed. What no list names is deleted: each task
replaces the list of its subtask by that of the checkpoint that it takes.
"""

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdfast.common import Clock, replace_file, uripath
from holdfast.spark.warm_state.local_stream import is_unfinished, unlink

_log = logging.getLogger(__name__)

_SEGMENT = re.compile(r"[0-9a-f]{32}")
_LIST = re.compile(r"[0-9]+\.[0-9]+")
_YOUNG_S = 3600.0
"""A copy of this age or less may belong to a task that has not written its list yet."""

_DEAD_S = 24 * 3600.0
"""A subtask that left a list so long ago runs on another host, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSegments:
    """The copies on this host of the segments of an operator, as one task uses them.

    Attributes:
        root: Where those of all operators are; made when it is needed.
        operator: Tells the operator from all others of the application; 32 hex digits.
        subtask: Index of the subtask.
        checkpoint_id: The checkpoint that the task takes.
        max_bytes: About how many bytes all copies may take; those that were needed longest ago have to go.
            A file that storage has, too, as a hard link, takes none.
        clock: Says how old files are.
    """

    root: str
    operator: str
    subtask: int
    checkpoint_id: int
    max_bytes: int
    clock: Clock

    @property
    def directory(self) -> str:
        """Where the operator's copies are."""
        return os.path.join(self.root, self.operator)

    def link(self, segments: Iterable[tuple[str, str]]) -> None:
        """Let segments that storage has as files on the same disk be the copies. Never raises.

        Args:
            segments: The name and the URI of each.
        """
        local = [(name, uri) for name, uri in segments if uri.startswith("file:")]
        try:
            if local:
                os.makedirs(self.directory, mode=0o700, exist_ok=True)
            for name, uri in local:
                with suppress(FileExistsError):
                    os.link(uripath.local_path(uri), os.path.join(self.directory, name))
        except OSError as error:
            _log.debug("segments are copied to local disk when they are needed: %s", error)

    def keep(self, names: Collection[str]) -> None:
        """Note which segments the subtask needs, and delete those that nobody does. Never raises.

        Args:
            names: The segments of the state that was restored, and of the state that was written.
        """
        if not os.path.isdir(self.directory):
            return  # all of them are in memory
        try:
            self._write_list(names)
            self._delete_unneeded()
            self._make_room()
            os.utime(os.path.dirname(self.root))  # if it doesn't change others take it for dead
        except OSError as error:
            _log.warning("local copies of keyed state can't be cleaned up: %s", error)

    def _write_list(self, names: Collection[str]) -> None:
        with replace_file(self._list) as unfinished, open(unfinished, "x") as file:
            file.write("\n".join(sorted(names)))

    @property
    def _list(self) -> str:
        return os.path.join(self.directory, f"{self.subtask}.{self.checkpoint_id}")

    def _delete_unneeded(self) -> None:
        now_s = self.clock.now_ms() / 1000
        files = dict(_files(self.directory))
        dropped: set[str] = set()
        needed: set[str] = set()
        for path, status in files.items():
            name = os.path.basename(path)
            if _LIST.fullmatch(name):
                own = name.partition(".")[0] == str(self.subtask) and path != self._list
                if own or status.st_mtime < now_s - _DEAD_S:
                    dropped |= _names(path)
                    unlink(path)
                else:
                    needed |= _names(path)
        for path, status in files.items():
            name = os.path.basename(path)
            is_copy = _SEGMENT.fullmatch(name) is not None and name not in needed
            is_old = status.st_mtime < now_s - _YOUNG_S
            if (is_copy and name in dropped) or (is_old and (is_copy or is_unfinished(name))):
                unlink(path)

    def _make_room(self) -> None:
        """Delete the copies of any operator that were needed longest ago, until the others fit."""
        copies: list[tuple[float, int, str]] = []
        for directory in _directories(self.root):
            files = dict(_files(directory))
            needed_s: dict[str, float] = {}
            for path, status in files.items():
                if _LIST.fullmatch(os.path.basename(path)):
                    for name in _names(path):
                        needed_s[name] = max(status.st_mtime, needed_s.get(name, 0.0))
            for path, status in files.items():
                name = os.path.basename(path)
                if _SEGMENT.fullmatch(name) and status.st_nlink == 1:
                    when_s = needed_s.get(name, status.st_mtime)
                    copies.append((when_s, status.st_size, path))
        used_bytes = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if used_bytes <= self.max_bytes:
                break
            unlink(path)
            used_bytes -= size


def _names(path: str) -> set[str]:
    """The segments that a list names; none if another task has replaced the list."""
    try:
        with open(path) as file:
            return set(file.read().split())
    except FileNotFoundError:
        return set()


def _files(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):  # deleted by another task
            yield path, os.stat(path)


def _directories(root: str) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.path for entry in entries if entry.is_dir()]
