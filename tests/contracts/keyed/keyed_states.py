"""Requirements of keyed states over any backend of tables."""

from contracts.keyed.folding_suite import FoldingSuite
from contracts.keyed.input_suite import InputSuite
from contracts.keyed.lookup_suite import LookupSuite, NamespaceSuite
from contracts.keyed.time_suites import TimerSuite, TtlSuite
from contracts.keyed.value_suites import ListSuite, MapSuite, ValueSuite


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
