"""Removes names of people and machines from recordings and environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cputune.host import Host
from cputune.text.hidden import HIDDEN, is_secret_variable, is_secret_variable_name

HOST_NAME, USER, HOME = "host", "user", "/home/user"
OTHER_HOST = "other-host"
# Addresses for documentation (RFC 5737, RFC 3849).
ADDRESS_4, ADDRESS_6 = "192.0.2.1", "2001:db8::1"

_HOST_VARIABLES = (
    "SLURMD_NODENAME",
    "SLURM_SUBMIT_HOST",
    "SLURM_LAUNCH_NODE_IPADDR",
    "HOSTNAME",
    "MASTER_ADDR",
    "PET_MASTER_ADDR",
)
_NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_TOPOLOGY_ADDR")
# A name that is not a common word: it has a digit, a dot or a hyphen.
_HOST = re.compile(r"(?!localhost|other-host|[\d.:]*$)(?=\w*[\d.-])[A-Za-z0-9][\w.-]{2,}")
_ADDRESSES = frozenset(("MASTER_ADDR", "PET_MASTER_ADDR", "PET_LOCAL_ADDR", "CCL_KVS_IP_PORT"))

_IPV4 = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)")
_IPV6 = re.compile(  # eight groups, or fewer around a double colon; a time of day is neither
    r"(?i)(?<![\w:])(?!::1?(?![\w:]))"
    r"(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?=[0-9a-f:]*::)[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7})"
    r"(?![\w:])"
)
_HARDWARE_ADDRESS = re.compile(r"(?i)(?<![0-9a-z])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![0-9a-z])")

_COMMON_PARTS = frozenset(
    ["bin", "conda", "data", "home", "lib", "opt", "python", "root", "sys", "torch", "user", "usr"]
)
_PLAIN = """
. .. kubepods besteffort burstable guaranteed docker lxc init.scope libpod_parent system.slice
user.slice machine.slice cpu cpuset cpuacct cpu,cpuacct memory unified systemd
"""
_PLAIN_GROUPS = frozenset(_PLAIN.split())
_CONTAINER = re.compile(r"kubepods|docker|crio|cri-containerd|libpod|lxc\.payload|")


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Replaces each name by the same placeholder everywhere.

    Args:
        host_name: as the kernel has it. Its short form is replaced too.
        others: names of machines of the same job, from variables of the launcher. Their short forms
            are replaced too.
        families: prefixes in lists of names: ``cn`` of ``cn[01-04]``.
        home, user: of the person who records. Other homes below /home are replaced too.
    """

    host_name: str | None = None
    home: str | None = None
    user: str | None = None
    others: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    _groups: dict[str, str] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, host: Host) -> Scrubber:
        """The names that a machine and its launcher report."""
        variables = host.environment()
        try:
            name = host.read_text("/proc/sys/kernel/hostname").strip()
        except (OSError, ValueError):
            name = variables.get("HOSTNAME", "")
        names = [variables.get(variable, "").strip() for variable in _HOST_VARIABLES]
        lists = " ".join(variables.get(variable, "") for variable in _NODE_LISTS)
        names += re.findall(r"[\w.-]+(?![\w.-]*\[)", lists)
        return cls(
            host_name=name or None,
            home=variables.get("HOME"),
            user=variables.get("USER") or variables.get("LOGNAME"),
            others=tuple(dict.fromkeys(name for name in names if _HOST.fullmatch(name))),
            families=tuple(dict.fromkeys(re.findall(r"([A-Za-z][\w.-]{2,})\[", lists))),
        )

    def document(self, value: object) -> object:
        """A document of plain JSON values, each text in it passed through ``text``."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.document(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.document(part) for part in value]
        return value

    def text(self, text: str) -> str:
        """Replace home directories, the user's name as a part of paths, and host names."""
        if self.home and len(self.home) > 2:
            text = re.sub(re.escape(self.home.rstrip("/")) + r"(?=/|$|[:\s\"'])", HOME, text)
        text = re.sub(r"/(home|Users)/[^/:\s\"']+", HOME, text)
        if self._names_somebody():
            text = re.sub(rf"(?<=/){re.escape(self.user or '')}(?=/|$|[:\s\"'])", USER, text)
        for name in self._host_names():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", HOST_NAME, text)
        for name in self.others:
            short = name.partition(".")[0]
            forms = [name]
            if _HOST.fullmatch(short):
                forms.append(short)
            for form in forms:
                text = re.sub(
                    rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])", OTHER_HOST, text
                )
        for family in self.families:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(family)}\d+[\w.]*", OTHER_HOST, text)
        return text

    def value(self, text: str) -> str:
        """As ``text``. Also replaces network addresses (except loopback) and the user's name."""
        text = _HARDWARE_ADDRESS.sub("00:00:00:00:00:00", self.text(text))
        if self._names_somebody():
            text = re.sub(rf"(?<![\w.-]){re.escape(self.user or '')}(?![\w-])", USER, text)
        return _IPV6.sub(ADDRESS_6, _IPV4.sub(ADDRESS_4, text))

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Environment variables. Of an address only whether it is this machine remains."""
        clean = {name: self.value(value) for name, value in variables.items()}
        ours = ("", "localhost", HOST_NAME, ADDRESS_4, ADDRESS_6)
        for name in _ADDRESSES & set(clean):
            host, _, port = clean[name].partition("_")
            # MASTER_ADDR=host:port is a mistake that a check reports, so its form must be kept
            typed, colon, number = host.rpartition(":")
            mistaken = name != "CCL_KVS_IP_PORT" and colon and ":" not in typed and number.isdigit()
            if mistaken:
                host = typed
            if host not in ours and not re.fullmatch(r"127[\d.]+|::1", host):
                clean[name] = OTHER_HOST
                if mistaken:
                    clean[name] = f"{OTHER_HOST}:{number}"
                elif port:
                    clean[name] = f"{OTHER_HOST}_{port}"
        return clean

    def group_path(self, path: str) -> str:
        """A cgroup path whose parts keep their kind (``docker-``, ``kubepods``) but not their
        id.
        """
        return "/".join(self.group(part) for part in path.split("/"))

    def group(self, part: str) -> str:
        """One part of a cgroup path. Names of controllers and of the usual slices stay."""
        if not part or part in _PLAIN_GROUPS:
            return part
        if part not in self._groups:
            kind = re.match(_CONTAINER, part)
            self._groups[part] = f"{(kind and kind[0]) or 'group'}-{len(self._groups) + 1}"
        return self._groups[part]

    def interface(self, name: str) -> str:
        """The name of an interface without the hardware address that it may contain."""
        return re.sub(r"[0-9a-f]{6,}", "0", name)

    def _names_somebody(self) -> bool:
        """Whether the user's name is that of a person, and not a common part of paths."""
        return self.user is not None and len(self.user) > 2 and self.user not in _COMMON_PARTS

    def _host_names(self) -> tuple[str, ...]:
        if not self.host_name or self.host_name in ("localhost", "(none)"):
            return ()
        short = self.host_name.partition(".")[0]
        names: list[str] = []
        for name in (self.host_name, short):
            if len(name) > 2:
                names.append(name)
        return tuple(names)


_FAMILIES = re.compile(
    r"(?:ACCELERATE|ATEN|CCL|DNNL|FI|GLOO|GOMP|HF|I_MPI|KMP|MALLOC|MASTER|MKL|MPICH|MPI|NUMEXPR|OMP"
    r"|OMPI|ONEDNN|OPENBLAS|PARALLELISM_CONFIG|PET|PMI|PMIX|PRTE|TCMALLOC|TORCHELASTIC|TORCHINDUCTOR|TORCH|TRANSFORMERS|VECLIB)_[A-Za-z0-9_]+"
    r"|SLURM_(?:CPUS?|DISTRIBUTION|HINT|JOB_CPUS|JOB_NUM_NODES|LOCALID|MEM|MPI_TYPE|NNODES|NODEID"
    r"|NPROCS|NTASKS|PROCID|STEP_NUM|STEP_TASKS|TASKS|THREADS|WHOLE)(?:_\w+)?"
)
_OTHERS = """
CONDA_PREFIX CUDA_VISIBLE_DEVICES CURL_CA_BUNDLE CXX DS_ACCELERATOR GLIBC_TUNABLES GROUP_RANK
GROUP_WORLD_SIZE KUBERNETES_SERVICE_HOST LANG LC_ALL LC_CTYPE LD_LIBRARY_PATH
LD_PRELOAD LOCAL_RANK LOCAL_WORLD_SIZE LRU_CACHE_CAPACITY MASTER_ADDR MASTER_PORT NODE_RANK
PYTHONPATH RANK RAYON_NUM_THREADS REQUESTS_CA_BUNDLE ROLE_RANK ROLE_WORLD_SIZE SSL_CERT_DIR
SSL_CERT_FILE TF32_OVERRIDE TMPDIR
TOKENIZERS_PARALLELISM TP_SOCKET_IFNAME TRANSFORMERS_CACHE VIRTUAL_ENV WORLD_SIZE container
"""
_KNOWN = frozenset(_OTHERS.split())


def _concerns_training(name: str) -> bool:
    """Whether a variable concerns training or launching, and its name is not that of a secret."""
    return name in _KNOWN or (bool(_FAMILIES.fullmatch(name)) and not is_secret_variable_name(name))


def read_environment(variables: Mapping[str, str], scrub: Scrubber | None = None) -> dict[str, str]:
    """The variables that concern training, sorted, with placeholders for hosts and people.

    Variables whose name ends in a word for a secret (SLURM_JWT, FI_PASSPHRASE) are left out, and
    values that look like secrets are hidden.
    """
    kept = {name: variables[name] for name in sorted(filter(_concerns_training, variables))}
    scrub = scrub or Scrubber()
    shown = scrub.variables(kept)
    for name, value in kept.items():
        if is_secret_variable(name, value):
            shown[name] = HIDDEN
    return shown
