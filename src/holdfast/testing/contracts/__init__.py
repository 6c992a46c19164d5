"""The suites. Their names are in `holdfast.testing`."""

import pytest

# Before any of them is imported, so that a failing assert shows its values to third parties too.
# This package can't be named as a whole, because it is being imported already.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in ("_exclusive_file_system", "_file_system", "_races", "_storage", "_writes")
    )
)
