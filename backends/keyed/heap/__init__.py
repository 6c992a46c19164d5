"""Keyed state in dictionaries, a copy-on-write one for each key group."""
