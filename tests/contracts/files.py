"""Files on any file system, written and listed by its basic calls."""

from typing import Any

from holdfast.locations.adapters import file_system_for


def write(file_system: Any, uri: str, *parts: Any) -> None:
    """Write a file in parts; nothing is left after an error."""
    stream = file_system.create(uri)
    try:
        for part in parts:
            stream.write(part)
        stream.commit()
    finally:
        stream.abort()


def files_below(directory: str) -> set[str]:
    """Return the URIs of all files below a directory."""
    files = set()
    for entry in file_system_for(directory).list(directory):
        files |= files_below(entry.uri) if entry.is_directory else {entry.uri}
    return files


def directories_below(directory: str) -> set[str]:
    """Return the URIs of all directories below a directory."""
    directories = set()
    for entry in file_system_for(directory).list(directory):
        if entry.is_directory:
            directories |= {entry.uri} | directories_below(entry.uri)
    return directories
