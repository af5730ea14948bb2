"""Where the cgroups of the process lie: version 1, version 2, both at once, nested.

A limit holds for everything below it, so each look returns the process's own directory
and then all its ancestors up to the top of the mount; in a container the mount's top
is the container's own group and what lies above cannot be seen.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from cputune.probing._look import Look

_PATH_MAX = 4096
_MOST_MOUNTS = 64
"""A machine has a dozen; more are damage."""
_CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "pids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mounted hierarchy. ``root`` is the cgroup that shows at its mount point."""

    version: int
    controllers: frozenset[str]
    root: str
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The cgroup of the process for one controller: own directory first, then upwards."""

    version: int
    path: str
    directories: tuple[str, ...]


def find_groups(look: Look) -> dict[str, Group]:
    """The process's cgroups for cpu, cpuset, memory and pids, those that can be seen.

    A controller belongs to one version at a time (cgroups(7)): the line of
    /proc/self/cgroup that names it is version 1, else version 2 (``0::``) has it.
    """
    paths = _own_paths(look)
    mounts = sorted(_mounts(look)[:_MOST_MOUNTS], key=lambda mount: mount.version)
    groups = {controller: _find(look, controller, paths, mounts) for controller in _CONTROLLERS}
    return {controller: group for controller, group in groups.items() if group is not None}


def _find(look: Look, controller: str, paths: dict[str, str], mounts: list[Mount]) -> Group | None:
    version = 1 if controller in paths else 2 if "" in paths else None
    for mount in mounts:
        if version not in (mount.version, None):
            continue
        if mount.version == 1 and controller not in mount.controllers:
            continue
        path = paths.get(controller if mount.version == 1 else "", "/")
        directories = _upwards(look, mount, path)
        if directories:
            return Group(version=mount.version, path=path, directories=directories)
    return None


def _own_paths(look: Look) -> dict[str, str]:
    """Controller to path from /proc/self/cgroup; the key of version 2 is empty."""
    found: dict[str, str] = {}
    for line in (look.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdigit() and path.startswith("/") and len(path) <= _PATH_MAX:
            for controller in controllers.split(","):
                found.setdefault(controller, path)
    return found


def _mounts(look: Look) -> tuple[Mount, ...]:
    """Mounted hierarchies, from mountinfo, from the mount table, or from the usual places."""
    found = []
    for line in (look.text("/proc/self/mountinfo") or "").splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if dash and len(left) >= 5 and len(right) >= 3:
            found.append(_mount(right[0], right[2], root=left[3], point=left[4]))
    if not any(found):
        table = look.text("/proc/self/mounts") or look.text("/proc/mounts") or ""
        for line in table.splitlines():
            parts = line.split()
            if len(parts) >= 4:
                found.append(_mount(parts[2], parts[3], root="/", point=parts[1]))
    known = tuple(mount for mount in found if mount is not None)
    return known or _usual_mounts(look)


def _mount(kind: str, options: str, *, root: str, point: str) -> Mount | None:
    if kind == "cgroup2":
        version, controllers = 2, frozenset[str]()
    elif kind == "cgroup":
        version, controllers = 1, frozenset(options.split(","))
    elif kind == "cpuset":  # the file system of Linux 2.6 that cgroups grew from
        version, controllers = 1, frozenset({"cpuset"})
    else:
        return None
    point = posixpath.normpath(posixpath.join("/", _unescape(point)))
    return Mount(version=version, controllers=controllers, root=_unescape(root), point=point)


def _unescape(text: str) -> str:
    """Undo the octal escapes of mount tables (``\\040`` is a space)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _usual_mounts(look: Look) -> tuple[Mount, ...]:
    """Hierarchies where distributions mount them, for trees without a mount table."""
    found = []
    for point in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if look.exists(f"{point}/cgroup.controllers"):
            found.append(Mount(version=2, controllers=frozenset(), root="/", point=point))
    for top in ("/sys/fs/cgroup", "/cgroup", "/dev/cgroup"):
        for name in look.names(top):
            controllers = frozenset(name.split(",")) & _CONTROLLERS
            if controllers:
                point = f"{top}/{name}"
                found.append(Mount(version=1, controllers=controllers, root="/", point=point))
    if look.exists("/dev/cpuset/cpus"):
        names = frozenset({"cpuset"})
        found.append(Mount(version=1, controllers=names, root="/", point="/dev/cpuset"))
    return tuple(found)


def _upwards(look: Look, mount: Mount, path: str) -> tuple[str, ...]:
    """Directories from the cgroup at ``path`` up to the top of the mount.

    In a cgroup namespace, or where only a part of the hierarchy is mounted, the path
    may not lie below the mount's root: then the top is all there is to see.
    """
    top = mount.root.rstrip("/") + "/"
    seen = path.startswith(top) and ".." not in path.split("/")
    relative = path.removeprefix(top).lstrip("/") if seen else ""
    directory = posixpath.normpath(posixpath.join(mount.point, relative))
    if not look.exists(directory):
        directory = mount.point
    found = []
    while True:
        if look.exists(directory):
            found.append(directory)
        if directory in (mount.point, "/"):
            return tuple(found)
        directory = posixpath.dirname(directory)
