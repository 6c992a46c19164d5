"""Requirements of keyed states over any backend of tables."""

from holdfast.testing.contracts.keyed.folding_suite import FoldingSuite
from holdfast.testing.contracts.keyed.input_suite import InputSuite
from holdfast.testing.contracts.keyed.list_suite import ListSuite
from holdfast.testing.contracts.keyed.lookup_suite import LookupSuite
from holdfast.testing.contracts.keyed.map_suite import MapSuite
from holdfast.testing.contracts.keyed.namespace_suite import NamespaceSuite
from holdfast.testing.contracts.keyed.timer_suite import TimerSuite
from holdfast.testing.contracts.keyed.ttl_suite import TtlSuite
from holdfast.testing.contracts.keyed.value_suite import ValueSuite


class KeyedStatesContract(
    ValueSuite,
    ListSuite,
    MapSuite,
    FoldingSuite,
    NamespaceSuite,
    TimerSuite,
    TtlSuite,
    LookupSuite,
    InputSuite,
):
    """Requirements of keyed states over any `StateTables`.

    Subclass it in a test file, under a name that pytest collects, and provide `tables_of`.
    """
