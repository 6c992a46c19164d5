"""One operator's subtask: the order of calls, raw state, and the effects of failures."""

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import list_state
from contracts.files import files_below
from contracts.values import read

from holdfast.backends import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyGroupRange,
    OperatorStateBackend,
)
from holdfast.backends.functions import unwrap_function
from holdfast.backends.subtask import OperatorStateHandler
from holdfast.errors import (
    CheckpointDeclinedError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import CheckpointStorageLocation, FileSystemCheckpointStorage, StoredSubtask
from holdfast.testing import Faults

KEY_GROUPS = KeyGroupRange(2, 4)
ROWS = pa.schema([("a", pa.int64())])


class Function(CheckpointedFunction):
    """Calls a test's functions, and records its arguments."""

    def __init__(
        self,
        snapshot: Callable[[FunctionSnapshotContext], object] = lambda _: None,
        initialize: Callable[[FunctionInitializationContext], object] = lambda _: None,
    ) -> None:
        self.snapshot = snapshot
        self.initialize = initialize

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.context = context
        self.initialize(context)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.snapshot(context)


def with_raw_state(context: FunctionSnapshotContext) -> None:
    operator = context.raw_operator_state_output()
    for number in range(3):
        operator.start_new_partition()
        operator.write(b"partition %d" % number * 1000)
    keyed = context.raw_keyed_state_output()
    for key_group in (4, 2):
        keyed.start_new_key_group(key_group)
        keyed.write(b"group %d" % key_group * 1000)


@pytest.fixture
def location(faults: Faults) -> CheckpointStorageLocation:
    storage = FileSystemCheckpointStorage(faults.directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    return access.initialize_location_for_checkpoint(7)


def handler(function: CheckpointedFunction, **settings: Any) -> OperatorStateHandler:
    return OperatorStateHandler(
        uid="counter",
        function=function,
        backend=OperatorStateBackend(),
        key_groups=settings.get("key_groups", KEY_GROUPS),
    )


def initialize_handler(
    handler: OperatorStateHandler, state: StoredSubtask, checkpoint_id: int | None = 7
) -> None:
    handler.initialize_state(
        state,
        restored_checkpoint_id=checkpoint_id,
        subtask_index=1,
        parallelism=3,
        input_schema=ROWS,
    )


class TestRoundTrip:
    def test_managed_and_raw_state_come_back(self, location: CheckpointStorageLocation) -> None:
        state_handler = handler(Function(with_raw_state))
        list_state(state_handler.backend).add_all([1, 2])
        state = state_handler.snapshot_state(7, location).run().state
        assert [len(kind) for kind in (state.managed_operator, state.raw_operator)] == [1, 1]
        assert (len(state.raw_keyed), state.managed_keyed) == (1, ())
        read: dict[str, Any] = {}

        def initialize(context: FunctionInitializationContext) -> None:
            read["managed"] = list_state(context.operator_state_store).get()
            read["partitions"] = [
                partition.read() for partition in context.raw_operator_state_inputs
            ]
            read["groups"] = {
                group.key_group: group.read() for group in context.raw_keyed_state_inputs
            }

        again = OperatorStateHandler.restore(Function(initialize=initialize), state, uid="counter")
        initialize_handler(again, state)
        assert read == {
            "managed": [1, 2],
            "partitions": [b"partition %d" % number * 1000 for number in range(3)],
            "groups": {key_group: b"group %d" % key_group * 1000 for key_group in (2, 4)},
        }

    def test_fresh_start_has_nothing(self) -> None:
        function = Function()
        state_handler = OperatorStateHandler.restore(function, StoredSubtask(), uid="counter")
        initialize_handler(state_handler, StoredSubtask(), None)
        context = function.context
        assert (context.is_restored, context.restored_checkpoint_id) == (False, None)
        assert (context.subtask_index, context.parallelism) == (1, 3)
        assert context.input_schema == ROWS
        assert context.operator_state_store is state_handler.backend
        assert list(context.raw_operator_state_inputs) == list(context.raw_keyed_state_inputs) == []

    def test_restored_function_knows_the_checkpoint(self) -> None:
        function = Function()
        initialize_handler(handler(function), StoredSubtask())
        assert (function.context.is_restored, function.context.restored_checkpoint_id) == (True, 7)

    def test_nothing_written_is_nothing_stored(
        self, location: CheckpointStorageLocation, faults: Faults
    ) -> None:
        def ask(context: FunctionSnapshotContext) -> None:
            assert context.checkpoint_id == 7
            assert context.raw_operator_state_output() is context.raw_operator_state_output()
            assert context.raw_keyed_state_output() is context.raw_keyed_state_output()

        state = handler(Function(ask)).snapshot_state(7, location).run().state
        assert state == StoredSubtask()
        assert files_below(faults.inner_directory) == set()


class TestOrder:
    def test_snapshot_order_is_function_raw_keyed_raw_operator_managed(
        self, location: CheckpointStorageLocation, faults: Faults
    ) -> None:
        def snapshot(context: FunctionSnapshotContext) -> None:
            list_state(state_handler.backend).update([1])  # in time for this checkpoint
            with_raw_state(context)
            faults.before("commit", lambda: order.append("keyed"), 1)
            faults.before("commit", lambda: order.append("operator"), 2)
            faults.before("commit", lambda: order.append("managed"), 3)
            faults.calls.clear()
            order.append("function")

        order: list[str] = []
        state_handler = handler(Function(snapshot))
        pending = state_handler.snapshot_state(7, location)
        assert order == ["function", "keyed", "operator"]
        list_state(state_handler.backend).update([2])  # too late
        state = pending.run().state
        assert order == ["function", "keyed", "operator", "managed"]
        assert state.raw_keyed[0].size == len(b"group 4") * 2000
        assert list_state(OperatorStateBackend.restore(state.managed_operator)).get() == [1]

    def test_raw_streams_are_closed_when_the_function_has_returned(
        self, location: CheckpointStorageLocation
    ) -> None:
        kept: list[Any] = []

        def snapshot(context: FunctionSnapshotContext) -> None:
            stream = context.raw_operator_state_output()
            stream.write(b"a")
            stream.close()  # does nothing: the stream is not the user's to end
            stream.write(b"b")
            kept.append(stream)

        state = handler(Function(snapshot)).snapshot_state(7, location).run().state
        assert state.raw_operator[0].size == 2
        with pytest.raises((StreamClosedError, ValueError)):
            kept[0].write(b"late")

    def test_operator_without_keys_has_no_raw_keyed_state(
        self, location: CheckpointStorageLocation
    ) -> None:
        function = Function(lambda context: context.raw_keyed_state_output())
        with pytest.raises(CheckpointDeclinedError, match="requires a key"):
            handler(function, key_groups=None).snapshot_state(7, location)


class TestFailures:
    @pytest.mark.parametrize("written", [False, True])
    def test_failed_function_declines_the_checkpoint(
        self,
        location: CheckpointStorageLocation,
        faults: Faults,
        written: bool,  # noqa: FBT001
    ) -> None:
        mine = ValueError("mine")

        def fail(context: FunctionSnapshotContext) -> None:
            if written:
                with_raw_state(context)
            raise mine

        state_handler = handler(Function(fail))
        list_state(state_handler.backend).add(1)
        with pytest.raises(
            CheckpointDeclinedError, match=r"snapshot 7 .*'counter'.*ValueError: mine"
        ) as caught:
            state_handler.snapshot_state(7, location)
        assert caught.value.__cause__ is mine
        assert files_below(faults.inner_directory) == set()
        one_more = handler(Function())
        assert one_more.snapshot_state(8, location).run().state == StoredSubtask()

    @pytest.mark.parametrize("call", ["create", "write", "commit"])
    @pytest.mark.parametrize("nth", [1, 2])
    def test_failed_raw_stream_declines_and_leaves_nothing(
        self, location: CheckpointStorageLocation, faults: Faults, call: str, nth: int
    ) -> None:
        state_handler = handler(Function(with_raw_state))
        list_state(state_handler.backend).add(1)
        faults.calls.clear()
        faults.before(call, StorageUnavailableError("out of reach"), nth)
        with pytest.raises(CheckpointDeclinedError, match="out of reach"):
            state_handler.snapshot_state(7, location)
        assert files_below(faults.inner_directory) == set()

    def test_closed_backend_declines_the_checkpoint_and_leaves_nothing(
        self, location: CheckpointStorageLocation, faults: Faults
    ) -> None:
        state_handler = handler(Function(with_raw_state))
        state_handler.backend.close()
        with pytest.raises(CheckpointDeclinedError, match="closed"):
            state_handler.snapshot_state(7, location)
        assert files_below(faults.inner_directory) == set()

    def test_interrupt_discards_raw_state(
        self, location: CheckpointStorageLocation, faults: Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        state_handler = handler(Function(with_raw_state))
        monkeypatch.setattr(type(state_handler.backend), "snapshot", interrupt)
        with pytest.raises(KeyboardInterrupt):
            state_handler.snapshot_state(7, location)
        assert files_below(faults.inner_directory) == set()

    @pytest.mark.parametrize("call", ["create", "write", "commit"])
    def test_failed_managed_state_discards_raw_state(
        self, location: CheckpointStorageLocation, faults: Faults, call: str
    ) -> None:
        state_handler = handler(Function(with_raw_state))
        list_state(state_handler.backend).add(1)
        pending = state_handler.snapshot_state(7, location)
        assert len(files_below(faults.inner_directory)) == 2
        faults.before(call, StorageUnavailableError("out of reach"))
        with pytest.raises(StorageUnavailableError):
            pending.run()
        assert files_below(faults.inner_directory) == set()
        pending.cancel()


class TestCancel:
    @pytest.fixture
    def state_handler(self) -> OperatorStateHandler:
        state_handler = handler(Function(with_raw_state))
        list_state(state_handler.backend).add(1)
        return state_handler

    def test_before_it_ran_it_leaves_nothing(
        self,
        state_handler: OperatorStateHandler,
        location: CheckpointStorageLocation,
        faults: Faults,
    ) -> None:
        pending = state_handler.snapshot_state(7, location)
        for _ in range(2):
            pending.cancel()
            assert files_below(faults.inner_directory) == set()
        with pytest.raises(CancelledError):
            pending.run()

    @pytest.mark.parametrize("call", ["write", "commit"])
    def test_while_it_runs_it_leaves_nothing(
        self,
        *,
        state_handler: OperatorStateHandler,
        location: CheckpointStorageLocation,
        faults: Faults,
        call: str,
    ) -> None:
        pending = state_handler.snapshot_state(7, location)
        faults.before(call, pending.cancel)
        with pytest.raises(CancelledError):
            pending.run()
        assert files_below(faults.inner_directory) == set()

    def test_after_it_ran_it_takes_nothing_away(
        self,
        state_handler: OperatorStateHandler,
        location: CheckpointStorageLocation,
        faults: Faults,
    ) -> None:
        pending = state_handler.snapshot_state(7, location)
        state = pending.run().state
        pending.cancel()
        assert len(files_below(faults.inner_directory)) == 3
        with pytest.raises(InvalidRequestError):
            pending.run()
        assert len(files_below(faults.inner_directory)) == 3
        assert [len(read(stream)) for stream in state.streams()] == [
            stream.size for stream in state.streams()
        ]

    def test_closing_the_backend_cancels_it(
        self,
        state_handler: OperatorStateHandler,
        location: CheckpointStorageLocation,
        faults: Faults,
    ) -> None:
        pending = state_handler.snapshot_state(7, location)
        state_handler.backend.close()
        with pytest.raises(CancelledError):
            pending.run()
        assert files_below(faults.inner_directory) == set()


class TestInitialize:
    @pytest.fixture
    def state(self, location: CheckpointStorageLocation) -> StoredSubtask:
        return handler(Function(with_raw_state)).snapshot_state(7, location).run().state

    @pytest.mark.parametrize("fails", [False, True])
    def test_raw_inputs_are_closed_afterwards_whatever_happens(
        self,
        state: StoredSubtask,
        fails: bool,  # noqa: FBT001
    ) -> None:
        kept: list[Any] = []

        def initialize(context: FunctionInitializationContext) -> None:
            for inputs in (context.raw_operator_state_inputs, context.raw_keyed_state_inputs):
                stream = next(inputs)
                assert stream.read(5) in {b"parti", b"group"}
                kept.append(stream)
            if fails:
                raise ValueError("mine")

        function = Function(initialize=initialize)
        if fails:
            with pytest.raises(ValueError, match="mine"):
                initialize_handler(handler(function), state)
        else:
            initialize_handler(handler(function), state)
        assert len(kept) == 2
        assert all(stream.closed for stream in kept)
        assert list(function.context.raw_operator_state_inputs) == []
        assert list(function.context.raw_keyed_state_inputs) == []

    def test_unread_raw_state_is_not_opened(self, state: StoredSubtask, faults: Faults) -> None:
        faults.calls.clear()
        initialize_handler(handler(Function()), state)
        assert faults.calls == []


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.wrapped_function = inner


class Decorated:
    def __init__(self, inner: Any) -> None:
        self.__wrapped__ = inner


class TestFunctions:
    def test_function_is_found_inside_of_its_wrappers(self) -> None:
        function = Function()
        for wrapped in (
            function,
            Wrapper(function),
            Decorated(function),
            Wrapper(Decorated(Wrapper(function))),
        ):
            assert unwrap_function(wrapped) is function

    def test_outermost_function_counts(self) -> None:
        outer = Function()
        outer.wrapped_function = Function()  # type: ignore[attr-defined]
        assert unwrap_function(Wrapper(outer)) is outer

    def test_no_function_with_state_is_refused(self) -> None:
        circle = Wrapper(None)
        circle.wrapped_function = Wrapper(circle)
        for function in (None, 5, Wrapper(None), Wrapper(Decorated(len)), circle):
            with pytest.raises(InvalidRequestError, match=type(function).__name__):
                unwrap_function(function)
        with pytest.raises(InvalidRequestError, match="Wrapper, which wraps Decorated"):
            unwrap_function(Wrapper(Decorated(len)))

    def test_snapshot_state_may_be_left_out(self, location: CheckpointStorageLocation) -> None:
        class Simple(CheckpointedFunction):
            def initialize_state(self, context: FunctionInitializationContext) -> None:
                list_state(context.operator_state_store).add(1)

        state_handler = handler(Simple())
        initialize_handler(state_handler, StoredSubtask(), None)
        state = state_handler.snapshot_state(7, location).run().state
        assert list_state(OperatorStateBackend.restore(state.managed_operator)).get() == [1]

    def test_checkpoint_listener_has_both_methods(self) -> None:
        class Listener:
            def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

            def notify_checkpoint_aborted(self, checkpoint_id: int) -> None: ...

        assert isinstance(Listener(), CheckpointListener)
        assert not isinstance(Function(), CheckpointListener)
