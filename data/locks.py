"""Lock a folder, so that one process uses it at a time.

The system unlocks it when the process ends, however it ends.
"""

import contextlib
import os
import time

locked_folders = []  # open descriptors of the folders this process has locked


@contextlib.contextmanager
def wait_for_lock(folder, on_wait):
    """Hold a lock on a folder's file .lock; call `on_wait()` before waiting for another process."""
    with open(folder / ".lock", "ab") as file:
        if not try_lock(file):
            on_wait()
            while not try_lock(file):
                time.sleep(0.1)
        yield


def lock_folder(folder):
    """Lock a folder until `unlock_folders` or the end of this process.

    Raises BlockingIOError if another process has locked it. The folder itself is locked, so nothing
    is written into it. Windows cannot lock folders: there, nothing happens.
    """
    if os.name == "nt":
        return
    locked_folders.append(os.open(folder, os.O_RDONLY))
    if not try_lock(locked_folders[-1]):
        raise BlockingIOError(f"{folder} is locked by another process")


def unlock_folders():
    """Unlock every folder this process has locked."""
    while locked_folders:
        os.close(locked_folders.pop())


def try_lock(file):
    """Lock an open file or descriptor until it is closed. Return False if it is locked already."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the second on Windows
        return False
    except OSError:  # some network file systems have no locks: go on without
        pass
    return True
