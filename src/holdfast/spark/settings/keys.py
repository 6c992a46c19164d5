"""Which keys are settings, and which setting somebody meant by another key."""

import difflib
from collections.abc import Iterable, Sequence

from holdfast.errors import InvalidRequestError
from holdfast.spark.settings.setting import PREFIX, Setting

_BARE = PREFIX.removeprefix("spark.")


def check_keys(keys: Iterable[str], settings: Sequence[Setting]) -> None:
    """Refuse keys that look like settings of Holdfast and are none; all other keys are passed over.

    Raises:
        InvalidRequestError: There is such a key; the message has the right name.
    """
    known = {setting.name for setting in settings}
    for key in keys:
        if key not in known and key.lower().startswith((PREFIX, _BARE)):
            raise InvalidRequestError(f"no setting {key!r}; {_way_out(key, settings)}")


def _way_out(key: str, settings: Sequence[Setting]) -> str:
    name = key[len(PREFIX if key.lower().startswith(PREFIX) else _BARE) :]
    for setting in settings:
        if name == setting.key:
            return f"set {PREFIX + name!r}"
        if name and name in (setting.flink, *setting.older_flink):
            return f"what Flink calls {name!r} is {setting.name!r} here"
    nearest = difflib.get_close_matches(
        name, [setting.key for setting in settings], n=1, cutoff=0.0
    )[0]
    return f"did you mean {PREFIX + nearest!r}?"
