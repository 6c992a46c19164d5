"""Sinks for tables, files and databases: functions for `sink=`, or to call in a `stateful_query`.

Each module has the sinks of one kind of target: `from holdfast.spark.sinks import delta`.
"""
