"""Several hosts: each looked at through a line of its own, then what differs between them."""

from __future__ import annotations

from cputune.doctor.hosts.look import look_at_hosts
from cputune.doctor.hosts.seen import HostsDiagnosis, SeenHost

__all__ = ["HostsDiagnosis", "SeenHost", "look_at_hosts"]
