"""Descriptions of states and their serializers, which precede the data of operator state and keyed state.

    operator  int version (5, 6), [6: byte compressed], short n * info (lists), short n * info (broadcast)
    keyed     int 6, byte compressed, int 2, snapshot of the key's serializer, short n * info
    info      utf name, int type, int n * { utf option, utf value }, int n * { utf role, int 2, snapshot }

After the snapshot of an unknown class, positions are unknown. The next description is then found by its expected
beginning, so that one unreadable state does not prevent reading the others.

Source:
    Flink, OperatorBackendSerializationProxy, KeyedBackendSerializationProxy, StateMetaInfoSnapshotReadersWriters (2.3.0).
"""

from dataclasses import dataclass, field, replace

from holdfast.errors import CheckpointCorruptedError, UnsupportedFormatError
from holdfast.flink.binary import DataInput, corrupted_error
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
        kind: Flink's number of its type.
        options: Flink's options, such as its type.
        serializers: By role, without unreadable ones.
        unknown: An unknown class, or empty.
    """

    name: str
    kind: int
    options: dict[str, str]
    serializers: dict[str, Serializer] = field(default_factory=dict)
    unknown: str = ""

    @property
    def is_timer(self) -> bool:
        return self.kind == _TIMER_KIND

    @property
    def type(self) -> str:
        """Flink's name of the type in lower case, such as `map` or `timer`."""
        return "timer" if self.is_timer else self.options.get(_OPTIONS[0], "value").lower()

    def serializer(self, role: str) -> Serializer:
        """Return the serializer of a role, which may be unreadable."""
        known = self.serializers.get(role)
        return unreadable(self.unknown or "an unnamed class") if known is None else known

    @property
    def value(self) -> Serializer:
        """Serializer of values, of whole lists and of whole maps."""
        value = self.serializer("VALUE_SERIALIZER")
        if self.kind == _ASYNC_KIND and self.type == "list":
            return list_of(value) if not value.unreadable else value
        if self.kind == _ASYNC_KIND and self.type == "map":
            key = self.serializer("USER_KEY_SERIALIZER")
            if unreadable := key.unreadable or value.unreadable:
                return replace(value, parts=(key, value), unreadable=unreadable)
            return map_of(key, value)
        return value

    @property
    def has_ttl(self) -> bool:
        """True if values, elements or entries have the time of their last use."""
        value = self.value
        if self.type in {"list", "map"} and value.parts:
            value = value.parts[-1]
        return value.has_last_access

    def key(self, key: Serializer) -> Serializer:
        """Return the serializer of keys, which is `key` except for timers: theirs is inside the timer's serializer."""
        return self.value.parts[0] if self.is_timer and self.value.parts else key

    @property
    def namespace(self) -> Serializer:
        """Serializer of namespaces; that of timers is inside the timer's serializer."""
        if self.is_timer and self.value.parts:
            return self.value.parts[1]
        return self.serializer("NAMESPACE_SERIALIZER")


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """The description of operator state: list and union states, broadcast states, and whether the data is a Snappy stream."""

    is_compressed: bool
    lists: tuple[StateInfo, ...]
    broadcasts: tuple[StateInfo, ...]


@dataclass(frozen=True, slots=True)
class KeyedDescription:
    """The description of keyed state: states by their number, and whether the data consists of Snappy streams."""

    is_compressed: bool
    key: Serializer
    states: tuple[StateInfo, ...]


def operator_description(source: DataInput) -> OperatorDescription:
    """Read the description of operator state. Raises `CheckpointCorruptedError` and `UnsupportedFormatError`."""
    version = source.read_int()
    if version not in {5, 6}:
        raise _unknown_version("operator state", version)
    is_compressed = version == 6 and source.byte() != 0
    lists = _infos(source, source.short_count())
    # After an unknown class there may be no further state.
    broadcasts = _infos(source, source.short_count() if source.left >= 2 else 0)
    return OperatorDescription(is_compressed, lists, broadcasts)


def keyed_description(source: DataInput) -> KeyedDescription:
    """Read the description of keyed state, like `operator_description`."""
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
        after_unknown = source.position
        _search(source)
        is_last = number == count - 1
        if not source.left and not is_last:
            raise corrupted_error(f"the descriptions after state {info.name!r} are missing")
        if source.left and is_last:
            source.position -= 2  # back to the number of further states
        _read_other_roles(source.part(after_unknown, source.position), info)
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
    name, kind = source.utf(), source.read_int()
    if not 0 <= kind <= _ASYNC_KIND:
        raise corrupted_error(f"state {name!r} has the unknown type {kind}")
    return StateInfo(name, kind, {source.utf(): source.utf() for _ in range(source.count(4))})


def _search(source: DataInput) -> None:
    """Move to the next description, or to the end of the bytes."""
    start = source.position
    for position in range(start, source.end - 12):
        # Cheap checks first: few positions are the start of a description.
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
    """Read the serializers of a state after an unknown one."""
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


def _unknown_version(subject: str, version: int) -> UnsupportedFormatError:
    message = (
        f"{subject} is stored in version {version}, which is not supported; restore Flink savepoints before "
        "1.8 once with Flink 1.8 to 1.16, and read a savepoint of that"
    )
    return UnsupportedFormatError(message)
