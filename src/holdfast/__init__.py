"""Holdfast: Flink-grade checkpoints for PySpark."""
