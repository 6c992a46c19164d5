"""Turns of keys: in which order a processor is called for the keys of a batch, and which of them is current.

key_order    sorts the keys as Spark does, and has the rows of each turn
current_key  the key whose turn it is, which all state variables and timers of a processor share
"""

from holdfast.spark.processors.turns.current_key import CurrentKey, Numbers, inverse
from holdfast.spark.processors.turns.key_order import Turns, ascending

__all__ = [
    "CurrentKey",
    "Numbers",
    "Turns",
    "ascending",
    "inverse",
]
