"""What stands before the data of operator state and keyed state: which states there are, and their serializers.

    operator  int version (5, 6), [6: byte compressed], short n * info (lists), short n * info (broadcast)
    keyed     int 6, byte compressed, int 2, snapshot of the key's serializer, short n * info
    info      utf name, int kind, int n * { utf option, utf value }, int n * { utf role, int 2, snapshot }

Behind a snapshot of a class that isn't known nothing has a known place. The next description is then searched by what
it has to begin with: one state that can't be read is no reason not to read the others.

Source:
    Flink, OperatorBackendSerializationProxy, KeyedBackendSerializationProxy, StateMetaInfoSnapshotReadersWriters (2.3.0).
"""

from dataclasses import dataclass, field

from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError
from holdfast.flink.binary import DataInput, damaged
from holdfast.flink.serializers import (
    Serializer,
    UnknownSnapshotError,
    list_of,
    map_of,
    read_snapshot,
    unreadable,
)

TIMERS = "_timer_state/"
_TIMER_KIND, _ASYNC_KIND = 3, 4
_OPTIONS = ("KEYED_STATE_TYPE", "OPERATOR_STATE_DISTRIBUTION_MODE")
_ROLES = ("VALUE_SERIALIZER", "NAMESPACE_SERIALIZER", "KEY_SERIALIZER", "USER_KEY_SERIALIZER")
_SNAPSHOT_VERSION = 2


@dataclass(slots=True)
class StateInfo:
    """The description of a state.

    Attributes:
        name: As the job has named it.
        kind: Flink's number of its kind.
        options: Such as its type.
        serializers: By role. A missing one can't be read.
        unknown: A class that isn't known, or empty.
    """

    name: str
    kind: int
    options: dict[str, str]
    serializers: dict[str, Serializer] = field(default_factory=dict)
    unknown: str = ""

    @property
    def is_timer(self) -> bool:
        """Whether it holds timers."""
        return self.kind == _TIMER_KIND

    @property
    def type(self) -> str:
        """The type by Flink's name in small letters, such as `map` or `timer`."""
        return "timer" if self.is_timer else self.options.get(_OPTIONS[0], "value").lower()

    def serializer(self, role: str) -> Serializer:
        """The serializer of a role, which may be one that can't read."""
        known = self.serializers.get(role)
        return unreadable(self.unknown or "an unnamed class") if known is None else known

    @property
    def value(self) -> Serializer:
        """The serializer of values, of whole lists and of whole maps."""
        value = self.serializer("VALUE_SERIALIZER")
        if self.kind == _ASYNC_KIND and self.type == "list":
            return list_of(value) if not value.unreadable else value
        if self.kind == _ASYNC_KIND and self.type == "map":
            key = self.serializer("USER_KEY_SERIALIZER")
            if key.unreadable or value.unreadable:
                return Serializer(
                    value.type,
                    value.read,
                    parts=(key, value),
                    unreadable=key.unreadable or value.unreadable,
                )
            return map_of(key, value)
        return value

    @property
    def namespace(self) -> Serializer:
        """The serializer of namespaces; a timer has its own in it."""
        if self.is_timer and self.value.parts:
            return self.value.parts[1]
        return self.serializer("NAMESPACE_SERIALIZER")


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """What stands before operator state.

    Attributes:
        is_compressed: Whether the data are a stream of Snappy.
        lists: List and union states.
        broadcasts: Broadcast states.
    """

    is_compressed: bool
    lists: tuple[StateInfo, ...]
    broadcasts: tuple[StateInfo, ...]


@dataclass(frozen=True, slots=True)
class KeyedDescription:
    """What stands before keyed state.

    Attributes:
        is_compressed: Whether the data are streams of Snappy.
        key: The serializer of keys.
        states: By their number.
    """

    is_compressed: bool
    key: Serializer
    states: tuple[StateInfo, ...]


def operator_description(source: DataInput) -> OperatorDescription:
    """Read the description of operator state.

    Raises:
        CheckpointCorruptedError: It is damaged.
        UnsupportedFormatError: It is of an unknown version.
    """
    version = source.read_int()
    if version not in {5, 6}:
        raise _unknown_version("operator state", version)
    is_compressed = version == 6 and source.byte() != 0
    lists = _infos(source, source.short_count())
    # Behind a class that isn't known there may be no further state.
    broadcasts = _infos(source, source.short_count() if source.left >= 2 else 0)
    return OperatorDescription(is_compressed, lists, broadcasts)


def keyed_description(source: DataInput) -> KeyedDescription:
    """Read the description of keyed state. Raises as `operator_description`."""
    version = source.read_int()
    if version != 6:
        raise _unknown_version("keyed state", version)
    is_compressed = source.byte() != 0
    source.expect(_SNAPSHOT_VERSION, "the key's serializer")
    try:
        key = read_snapshot(source)
    except UnknownSnapshotError as unknown:
        key = unreadable(unknown.java_class)
        _search(source)
        source.position -= 2  # the number of states
    return KeyedDescription(is_compressed, key, _infos(source, source.short_count()))


def _infos(source: DataInput, count: int) -> tuple[StateInfo, ...]:
    infos = []
    for number in range(count):
        info = _info(source)
        infos.append(info)
        if not info.unknown:
            continue
        behind = source.position
        _search(source)
        is_last = number == count - 1
        if not source.left and not is_last:
            raise damaged(f"the descriptions behind state {info.name!r} are missing")
        if source.left and is_last:
            source.position -= 2  # how many others follow stands before them
        _read_other_roles(source.part(behind, source.position), info)
    return tuple(infos)


def _info(source: DataInput) -> StateInfo:
    info = _head(source)
    for _ in range(source.count(6)):
        role = source.utf()
        source.expect(_SNAPSHOT_VERSION, f"the serializer of state {info.name!r}")
        try:
            info.serializers[role] = read_snapshot(source)
        except UnknownSnapshotError as unknown:
            info.unknown = unknown.java_class
            return info
    return info


def _head(source: DataInput) -> StateInfo:
    """The part of a description before its serializers."""
    name, kind = source.utf(), source.read_int()
    if not 0 <= kind <= _ASYNC_KIND:
        raise damaged(f"state {name!r} is of kind {kind}")
    return StateInfo(name, kind, {source.utf(): source.utf() for _ in range(source.count(4))})


def _search(source: DataInput) -> None:
    """Go to the next description, or to the end of the bytes if there is none."""
    start = source.position
    for position in range(start, source.end - 12):
        # Cheap things first: most positions are none where a description begins.
        length = source.data[position] << 8 | source.data[position + 1]
        kind = position + 2 + length
        if kind + 4 > source.end or source.data[kind : kind + 3] != b"\0\0\0":
            continue
        source.position = position
        if _begins_info(source):
            source.position = position
            return
    source.position = source.end


def _begins_info(source: DataInput) -> bool:
    try:
        info = _head(source)
        is_known = all(option in _OPTIONS for option in info.options)
        return (
            is_known
            and (bool(info.options) or info.name.startswith(TIMERS))
            and info.name.isprintable()
            and source.count(6) > 0
            and source.utf() in _ROLES
            and source.read_int() == _SNAPSHOT_VERSION
        )
    except CheckpointCorruptedError:
        return False


def _read_other_roles(source: DataInput, info: StateInfo) -> None:
    """Read the serializers of a state that stand behind one that isn't known."""
    start = source.position
    for role in _ROLES:
        name = len(role).to_bytes(2, "big") + role.encode() + _SNAPSHOT_VERSION.to_bytes(4, "big")
        at = source.data.find(name, start, source.end)
        if role in info.serializers or at < 0:
            continue
        source.position = at + len(name)
        try:
            info.serializers[role] = read_snapshot(source)
        except (UnknownSnapshotError, CheckpointCorruptedError):
            continue


def _unknown_version(what: str, version: int) -> UnsupportedFormatError:
    message = (
        f"{what} is stored in version {version}, which Holdfast doesn't know; what Flink before 1.8 wrote "
        "can be restored once with a Flink from 1.8 to 1.16, and a savepoint of that be read"
    )
    return UnsupportedFormatError(message)
