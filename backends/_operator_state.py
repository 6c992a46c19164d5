"""The operator state backend: the states of one subtask that don't belong to a key."""

from collections.abc import Iterable

import pyarrow as pa

from holdfast.backends._descriptors import ListStateDescriptor
from holdfast.backends._elements import compacted
from holdfast.backends._list_state import ListState
from holdfast.backends._sections import read_section
from holdfast.backends._snapshots import CapturedState, OperatorStateSnapshot
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations import (
    CheckpointStreamFactory,
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
    read_exactly,
)


class OperatorStateBackend:
    """Keeps a subtask's operator states, restores and snapshots them.

    Restored states are there at once, under their names, and are carried on into the next
    snapshot also if nobody asks for them.

    Source:
        Flink, DefaultOperatorStateBackend.
    """

    def __init__(self) -> None:
        self._list_states: dict[str, ListState] = {}

    @classmethod
    def restore(cls, handles: Iterable[OperatorStateHandle]) -> "OperatorStateBackend":
        """A backend with the states behind the handles; without any it begins empty.

        The same name in several handles is one state: its elements are appended in order.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: What was read is not what was written.
            StateMigrationError: One state has different types in two handles.
        """
        backend = cls()
        for handle in handles:
            with handle.stream.open_input_stream() as stream:
                # In the order in which they were written: the stream is read front to back.
                in_order = sorted(handle.states.items(), key=lambda item: item[1].offset)
                for name, partitions in in_order:
                    try:
                        stream.seek(partitions.offset)
                        section = pa.py_buffer(read_exactly(stream, partitions.length))
                    except (EOFError, InvalidRequestError) as error:
                        message = f"state {name!r} can't be read ({error})"
                        raise CheckpointCorruptedError(message) from error
                    backend._restore_list_state(name, partitions, section)
        return backend

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The list state of that name; the same object each time. Begins empty if it is new.

        When the job is restored with another parallelism its elements are spread evenly over
        the subtasks (`SPLIT_DISTRIBUTE`).

        Raises:
            StateMigrationError: It was stored, or asked for before, with another type.
        """
        return self._list_state(descriptor.name, descriptor.type)

    def registered_state_names(self) -> frozenset[str]:
        """Names of the list states, restored ones included."""
        return frozenset(self._list_states)

    def snapshot(self, factory: CheckpointStreamFactory) -> OperatorStateSnapshot:
        """The synchronous part of a snapshot: takes what is there now, in time O(chunks).

        Args:
            factory: Where its asynchronous part will write.

        Returns:
            The asynchronous part. Later changes of the states don't show in it.
        """
        captured = {
            name: CapturedState(OperatorStateMode.SPLIT_DISTRIBUTE, state.type, state.chunks())
            for name, state in self._list_states.items()
        }
        return OperatorStateSnapshot(captured, factory)

    def _list_state(self, name: str, element_type: pa.DataType) -> ListState:
        state = self._list_states.get(name)
        if state is None:
            state = self._list_states[name] = ListState(name, element_type)
        elif not state.type.equals(element_type):
            message = (
                f"list state {name!r} is stored with elements of type {state.type}, "
                f"but type {element_type} is asked for"
            )
            raise StateMigrationError(message)
        return state

    def _restore_list_state(
        self, name: str, partitions: StatePartitions, section: pa.Buffer
    ) -> None:
        elements = read_section(section, first=partitions.first, count=partitions.count, name=name)
        self._list_state(name, elements.type).add_all(compacted(elements))
