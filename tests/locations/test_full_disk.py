"""A disk that is really full: a tmpfs of one MiB, in its own mount namespace."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.patience import HANGS_S

SCRIPT = """
import os
import sys

from holdfast.errors import StorageFullError
from holdfast.locations import checkpoint_storage, complete_checkpoint, sweep
from holdfast.locations.adapters import CheckpointedStateScope
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.testing import metadata_of

directory = f"file://{sys.argv[1]}"
access = checkpoint_storage(directory).create_checkpoint_storage("job")
access.initialize_base_locations_for_checkpoint()
ownership = access.claim_job()


def take(checkpoint_id, size):
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    try:
        with location.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        ) as stream:
            for _ in range(0, size, 4096):
                stream.write(bytes(4096))
            handle = stream.close_and_get_handle()
        return complete_checkpoint(
            location, metadata_of(handle, checkpoint_id=checkpoint_id), ownership
        )
    except StorageFullError:
        location.dispose_on_failure()
        raise


def files():
    return sorted(
        os.path.join(parent, name) for parent, _, names in os.walk(sys.argv[1]) for name in names
    )


done = [take(1, 300_000), take(2, 300_000)]
before = files()
for size in (450_000, 2_000_000):
    try:
        take(3, size)
    except StorageFullError as error:
        assert "no space left" in str(error), error
    else:
        raise AssertionError("there was room")
    assert files() == before, files()

with open(f"{sys.argv[1]}/ballast", "wb", buffering=0) as ballast:
    try:
        while True:
            ballast.write(bytes(4096))
    except OSError:
        pass
try:
    take(3, 0 + 4096 * 3)  # inline, so that the metadata has no space
except StorageFullError:
    pass
else:
    raise AssertionError("there was room")
os.unlink(f"{sys.argv[1]}/ballast")
assert files() == before, files()

latest = load_latest_checkpoint(access)
assert latest.checkpoint_id == 2
assert len(latest.metadata.streams()[0].open_input_stream().read()) == 303_104
done[0].discard()
take(3, 300_000)
assert load_latest_checkpoint(access).checkpoint_id == 3
assert sweep(directory, "job", grace_s=0).files == ()
print("all of it")
"""


@pytest.mark.exhaustive
def test_full_disk_fails_a_checkpoint_and_harms_no_other(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}/disk"
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1) here, so no disk can be made")
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    filled = subprocess.run([*probe, mount], capture_output=True, text=True, check=False)
    if filled.returncode != 0:
        pytest.skip(f"this machine does not let users mount a disk: {filled.stderr.strip()}")
    command = f"{mount} && exec {sys.executable} {tmp_path}/script.py {tmp_path}/disk"
    ran = subprocess.run(
        [*probe, command], capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "all of it"
