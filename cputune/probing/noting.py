"""A host that notes every question it is asked, and the answer: what a recording is made of."""

from __future__ import annotations

from collections.abc import Mapping

from cputune.host import Command, Completed, Distribution, Host, Process


class NotingHost(Host):
    """Passes every question on, and notes the answer."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.live = host.live
        self.texts: dict[str, str] = {}
        self.errors: dict[str, int] = {}
        self.directories: dict[str, tuple[str, ...]] = {}
        self.paths: dict[str, bool] = {}
        self.real_paths: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.answers: dict[tuple[str, ...], Completed] = {}
        self.refusals: dict[tuple[str, ...], int] = {}
        self.cpu_told: Mapping[str, object] = {}
        self.seen: tuple[Process, ...] | None = None
        self.sizes: dict[str, int | None] = {}
        self.free: dict[str, int | None] = {}
        self.limits: dict[str, int | None] = {}
        self.registers: dict[str, tuple[int, int, int, int]] = {}

    def read_text(self, path: str) -> str:
        try:
            text = self._host.read_text(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno is not None:
                self.errors[path] = error.errno
            raise
        self.texts[path] = text
        return text

    def list_dir(self, path: str) -> tuple[str, ...]:
        self.directories[path] = self._host.list_dir(path)
        return self.directories[path]

    def exists(self, path: str) -> bool:
        found = self._host.exists(path)
        if self._host.knows(path):
            self.paths[path] = found
        return found

    def is_readable_file(self, path: str) -> bool:
        found = self._host.is_readable_file(path)
        if self._host.knows(path):
            self.paths[path] = found
        return found

    def knows(self, path: str) -> bool:
        return self._host.knows(path)

    def real_path(self, path: str) -> str:
        self.real_paths[path] = self._host.real_path(path)
        return self.real_paths[path]

    def environment(self) -> Mapping[str, str]:
        return self._host.environment()

    def affinity(self) -> tuple[int, ...] | None:
        return self._host.affinity()

    def which(self, program: str) -> str | None:
        path = self._host.which(program)
        if path is not None:
            self.programs[program] = path
        return path

    def run(self, command: Command) -> Completed:
        try:
            self.answers[command.argv] = self._host.run(command)
        except OSError as error:
            self.refusals[command.argv] = error.errno or 0
            raise
        return self.answers[command.argv]

    def distributions(self) -> tuple[Distribution, ...]:
        return self._host.distributions()

    def python_version(self) -> str | None:
        return self._host.python_version()

    def trouble(self) -> str | None:
        return self._host.trouble()

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        registers = self._host.cpuid(leaf, subleaf)
        if registers is not None:
            self.registers[f"{leaf}.{subleaf}"] = registers
        return registers

    def cpu_info(self) -> Mapping[str, object]:
        self.cpu_told = self._host.cpu_info()
        return self.cpu_told

    def processes(self) -> tuple[Process, ...] | None:
        self.seen = self._host.processes()
        return self.seen

    def disk_bytes(self, path: str) -> int | None:
        self.sizes[path] = self._host.disk_bytes(path)
        return self.sizes[path]

    def disk_free_bytes(self, path: str) -> int | None:
        self.free[path] = self._host.disk_free_bytes(path)
        return self.free[path]

    def resource_limit(self, name: str) -> int | None:
        self.limits[name] = self._host.resource_limit(name)
        return self.limits[name]
