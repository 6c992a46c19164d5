"""Keyed state against RocksDB, a dictionary and Flink; see `__main__`."""
