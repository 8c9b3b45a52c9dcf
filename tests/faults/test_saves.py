"""A save withstands every fault."""

import os

import pytest
import save_faults

from maskwright.core import storage
from maskwright.training import checkpoint

# Another test of this process may have started JAX, which warns of every fork. The child writes files and ends.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


SAVES = [fault for fault, _ in save_faults.faults("")]


def meet(folder, name):
    return next(action for fault, action in save_faults.faults(str(folder)) if name in fault)()


@pytest.mark.long
@pytest.mark.parametrize("fault", SAVES)
def test_a_save_meets_a_fault_at_each_of_its_file_operations(tmp_path, fault):
    seen = meet(tmp_path, fault)
    assert "kill" not in fault or int(seen.split()[0]) > 20


def test_after_a_power_cut_a_manifest_names_no_file_that_is_lost(tmp_path):
    """What is not synced is lost with the power, and by no kill: so the order of all file operations."""
    checkpoint.save(str(tmp_path), save_faults.state(10), {}, keep=1)
    seen = []

    def note(count, operation, path):
        name = os.readlink(f"/proc/self/fd/{path}") if operation == "fsync" else path
        seen.append((operation, storage.final_name(os.path.relpath(name, tmp_path))))

    with save_faults.file_faults(note):
        checkpoint.save(str(tmp_path), save_faults.state(20), {}, keep=1)
    new, old = "step-00000020", "step-00000010"
    manifest = f"{new}/{checkpoint.MANIFEST}"
    named = seen.index(("replace", manifest))
    for name in checkpoint.FILES:
        assert seen.index(("fsync", f"{new}/{name}")) < seen.index(("fsync", new)) < named, name
    assert seen.index(("replace", f"{new}/state.json")) < seen.index(("fsync", new))
    assert seen.index(("mkdir", new)) < seen.index(("fsync", ".")) < seen.index(("open", manifest))
    assert seen.index(("write", manifest)) < seen.index(("fsync", manifest)) < named
    last_sync = len(seen) - 1 - seen[::-1].index(("fsync", new))
    deleted = [(place, path) for place, (operation, path) in enumerate(seen) if operation == "unlink"]
    assert named < last_sync < deleted[0][0] and deleted[0][1] == f"{old}/{checkpoint.MANIFEST}"
    assert len(deleted) == 1 + len(checkpoint.FILES)
