"""What processors and memory use: the counters of RAPL, which Linux shows as files.

Of each package, and of its memory where it is counted apart
(Documentation/power/powercap/powercap.rst). A counter begins anew at ``max_energy_range_uj``, after
half an hour of a busy server at most: readings have to be nearer to each other. Since Linux 5.10
root alone may read them (CVE-2020-8694).
"""

from __future__ import annotations

from cputune.host import Host

ZONES = "/sys/class/powercap"
COUNTED = ("package", "dram")
"""How the names of the zones begin that are added up; cores and graphics are part of a package."""


class EnergyCounters:
    """The counters of a machine.

    Attributes:
        unknown: why they cannot be read; None where they can.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ranges: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._joules = 0.0
        self.unknown: str | None = "it is not counted here (no RAPL: a virtual machine)"
        try:
            for zone in host.list_dir(ZONES):
                folder = f"{ZONES}/{zone}"
                if zone.startswith("intel-rapl:") and self._text(folder, "name").startswith(
                    COUNTED
                ):
                    self._ranges[folder] = int(self._text(folder, "max_energy_range_uj"))
            if self._ranges:
                self.joules()
                self.unknown = None
        except PermissionError:
            self.unknown = "root alone may read it (RAPL)"
        except (OSError, ValueError):
            pass

    def joules(self) -> float | None:
        """Joules used since the counters were found; None where they cannot be read."""
        try:
            now = {folder: int(self._text(folder, "energy_uj")) for folder in self._ranges}
        except (OSError, ValueError):
            if not self._last:
                raise
            return None
        for folder, count in now.items():
            self._joules += (count - self._last.get(folder, count)) % self._ranges[folder] / 1e6
        self._last = now
        return self._joules if self._ranges else None

    def _text(self, folder: str, name: str) -> str:
        return self._host.read_text(f"{folder}/{name}").strip()
