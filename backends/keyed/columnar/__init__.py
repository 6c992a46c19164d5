"""Keyed state in columns: sorted, immutable segments in Arrow over a memtable, merged within bounds."""
