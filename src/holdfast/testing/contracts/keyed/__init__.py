"""Suites of keyed state: tables of a backend, and states over them.

state_tables     requirements of every `StateTables`
keyed_states     requirements of states over them, by subject
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "lookup_suite",
            "folding_suite",
            "input_suite",
            "keyed_checkpoints",
            "keyed_suite",
            "list_suite",
            "map_suite",
            "namespace_suite",
            "state_suite",
            "state_tables",
            "timer_suite",
            "ttl_suite",
            "value_suite",
        )
    )
)

from holdfast.testing.contracts.keyed.keyed_checkpoints import KeyedCheckpoints, parts_of  # noqa: E402
from holdfast.testing.contracts.keyed.keyed_states import KeyedStatesContract  # noqa: E402
from holdfast.testing.contracts.keyed.state_tables import StateTablesContract  # noqa: E402

__all__ = ["KeyedCheckpoints", "KeyedStatesContract", "StateTablesContract", "parts_of"]
