"""What Linux tells of processes: who started whom, and who has which connection."""

from pathlib import Path


def children(pid: int) -> set[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for file in lists for child in file.read_text().split()}


def alive(pid: int) -> bool:
    """Not so where it only waits for its parent to take notice of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def clients(pid: int, port: int) -> set[int]:
    """The remote ports of those who are connected to a process at this port, by IPv4."""
    found = set()
    inodes = {_target(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote, state, inode = fields[1], fields[2], fields[3], fields[9]
        if state == "01" and int(local.partition(":")[2], 16) == port and f"socket:[{inode}]" in inodes:
            found.add(int(remote.partition(":")[2], 16))
    return found


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except FileNotFoundError:  # it has just been closed
        return ""
