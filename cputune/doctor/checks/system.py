"""The kernel's knobs and what else runs: governor, turbo, pages, balancing, swap, load."""

from __future__ import annotations

from collections.abc import Iterator

from cputune import cpulist
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.facts import Frequency, HostFacts

GIB = 1 << 30
BUSY_SHARE = 0.25
"""Load average per allowed CPU above which a training run is disturbed."""
PRESSURE_PERCENT = 10.0
MEMORY_PRESSURE_PERCENT = 5.0
STEAL_SHARE = 0.02
LITTLE_MEMORY_BYTES = 2 * GIB
LITTLE_MEMORY_SHARE = 0.05
ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
FULL_SPEED = ("performance", "0")
"""The energy preference by its name, or by its number where the firmware knows numbers alone."""


@check(
    "governor",
    Severity.ADVICE,
    title="The frequency governor saves power",
    remedy="Choose the performance governor while training.",
    source="https://docs.kernel.org/admin-guide/pm/cpufreq.html",
)
def governor(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: steps vary, short kernels run below the nominal frequency.

    Cause: powersave, ondemand, conservative and schedutil raise the frequency only after
    load was seen; waits at barriers look like idleness. Drivers in active mode
    (intel_pstate, amd-pstate-epp) choose by themselves: there "powersave" is only a name, and
    the energy preference decides.
    """
    allowed = set(facts.topology.allowed)
    slow = [g for g in facts.settings.frequencies if allowed.intersection(g.cpus) and _saves(g)]
    if slow:
        cpus = cpulist.render(cpu for group in slow for cpu in group.cpus)
        yield governor.finding(
            "; ".join(_described(group) for group in slow),
            command=f"sudo cpupower -c {cpus} frequency-set --governor performance",
        )


def _saves(group: Frequency) -> bool:
    if group.driver in ACTIVE_DRIVERS and group.energy_preference in FULL_SPEED:
        return False
    return group.governor in ("powersave", "ondemand", "conservative", "schedutil")


def _described(group: Frequency) -> str:
    known = [text for text in (group.driver, group.energy_preference) if text]
    how = f" ({', '.join(known)})" if known else ""
    return f"governor {group.governor}{how} on CPUs {cpulist.render(group.cpus)}"


@check(
    "turbo-off",
    Severity.ADVICE,
    title="Turbo is switched off",
    remedy="Switch it on, unless even timing matters more than speed.",
    source="https://docs.kernel.org/admin-guide/pm/intel_pstate.html",
)
def turbo_off(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: cores never exceed their base frequency.

    Cause: no_turbo (intel_pstate) or boost (cpufreq) was set, here or in the firmware.
    """
    if facts.settings.turbo is False:
        amd = facts.cpu.vendor == "AuthenticAMD"
        yield turbo_off.finding(
            "cpufreq/boost is 0" if amd else "intel_pstate/no_turbo is 1, or cpufreq/boost is 0",
            command=(
                "echo 1 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
                if amd
                else "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
            ),
        )


@check(
    "huge-pages",
    Severity.ADVICE,
    title="Transparent huge pages are off",
    remedy="Allow them, at least on request (madvise): allocators and torch ask for them.",
    source="https://docs.kernel.org/admin-guide/mm/transhuge.html",
)
def huge_pages(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: many TLB misses and page faults with large tensors.

    Cause: with ``never`` every tensor lies in pages of 4 KiB.
    """
    if facts.settings.transparent_huge_pages == "never":
        yield huge_pages.finding(
            "/sys/kernel/mm/transparent_hugepage/enabled says never",
            command="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )


@check(
    "numa-balancing",
    Severity.ADVICE,
    title="The kernel moves pages between NUMA nodes by itself",
    remedy="Switch it off where ranks are bound to nodes, as tuned launches do.",
    source="https://docs.kernel.org/admin-guide/sysctl/kernel.html#numa-balancing",
)
def numa_balancing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: page faults and jitter in steps although each rank is bound to its node.

    Cause: automatic NUMA balancing unmaps pages to learn who uses them. It helps
    unbound processes and costs bound ones.
    """
    with_cpus = [node for node in facts.topology.numa_nodes if node.cpus]
    if facts.settings.numa_balancing and len(with_cpus) > 1:
        yield numa_balancing.finding(
            f"kernel.numa_balancing is on, with {len(with_cpus)} NUMA nodes",
            command="sudo sysctl kernel.numa_balancing=0",
        )


@check(
    "memory-low",
    Severity.WARNING,
    title="Most of the memory is taken",
    remedy="End what holds it, before training starts.",
    source="https://docs.kernel.org/filesystems/proc.html#meminfo",
)
def memory_low(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training is killed in its first steps on a machine with much memory.

    Cause: other processes, files in /dev/shm or reserved huge pages hold it. Available is
    what is free or can be freed: file cache does not count as taken.
    """
    total, available = facts.memory.total_bytes, facts.memory.available_bytes
    if total is None or available is None:
        return
    little = available < LITTLE_MEMORY_BYTES and available < total / 2
    if little or available < LITTLE_MEMORY_SHARE * total:
        yield memory_low.finding(
            f"{available / GIB:.1f} of {total / GIB:.1f} GiB are available",
            command="ps -eo pid,rss,comm --sort=-rss | head",
        )


@check(
    "swap-in-use",
    Severity.ADVICE,
    title="Swap is in use",
    remedy="Free memory, or train with fewer ranks or a smaller batch.",
    source="https://docs.kernel.org/admin-guide/sysctl/vm.html#swappiness",
)
def swap_in_use(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: some steps take seconds.

    Cause: pages of the model, or of what it displaced, are read back from disk.
    """
    memory = facts.memory
    if memory.swap_total_bytes is None or memory.swap_free_bytes is None:
        return
    used = memory.swap_total_bytes - memory.swap_free_bytes
    if used > max(GIB // 4, memory.swap_total_bytes // 20):
        pressed = (facts.load.memory_pressure_percent or 0) > MEMORY_PRESSURE_PERCENT
        yield swap_in_use.finding(
            f"{used / GIB:.1f} of {memory.swap_total_bytes / GIB:.1f} GiB of swap are used",
            severity=Severity.WARNING if pressed else None,
        )


@check(
    "machine-busy",
    Severity.WARNING,
    title="Something else is running on this machine",
    remedy="End it, or wait: with one CPU taken, every thread of a team waits for it.",
    source="https://docs.kernel.org/accounting/psi.html",
)
def machine_busy(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training is several times slower than yesterday.

    Cause: OpenMP threads meet at barriers; the one that shares its CPU with another
    process is late each time, and the rest spins. One busy neighbour on two cores
    cost a factor of nine.
    """
    cpus, load = len(facts.topology.online), facts.load
    busy = sum(process.cpu_share for process in load.busy)
    average, pressure = load.average_1min, load.cpu_pressure_percent
    seen = []
    # The load average remembers what has ended; the one thread that runs now is ours.
    over = load.running_threads is not None and load.running_threads <= 1
    if average is not None and not over and cpus and average > max(1.0, BUSY_SHARE * cpus):
        seen.append(f"load average {average:g} on {cpus} CPUs")
    if pressure is not None and pressure > PRESSURE_PERCENT:
        seen.append(f"CPU pressure {pressure:g} % (tasks that wait for a CPU)")
    if busy and (seen or busy >= max(0.5, BUSY_SHARE * cpus)):
        names = (f"{p.name} (process {p.pid}) {100 * p.cpu_share:.0f} %" for p in load.busy[:3])
        seen.append(f"busy now, in percent of a CPU: {', '.join(names)}")
    if seen:
        yield machine_busy.finding(
            "; ".join(seen), command="ps -eo pid,pcpu,comm --sort=-pcpu | head"
        )


@check(
    "memory-pressure",
    Severity.WARNING,
    title="Tasks wait for memory",
    remedy="Free memory before training, or raise the container's limit.",
    source="https://docs.kernel.org/accounting/psi.html",
)
def memory_pressure(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: the machine is slow although CPUs are idle.

    Cause: memory is short, and the kernel reclaims pages while tasks wait.
    """
    pressure = facts.load.memory_pressure_percent
    if pressure is not None and pressure > MEMORY_PRESSURE_PERCENT:
        yield memory_pressure.finding(f"memory pressure {pressure:g} % over ten seconds")


@check(
    "cpu-steal",
    Severity.WARNING,
    title="The hypervisor takes CPU time away",
    remedy="Ask for dedicated CPUs, or use another host.",
    source="https://docs.kernel.org/filesystems/proc.html",
)
def cpu_steal(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: a virtual machine is slower at some hours.

    Cause: its virtual CPUs wait for real ones; /proc/stat counts that as steal.
    """
    share = facts.load.steal_share
    if share is not None and share > STEAL_SHARE:
        yield cpu_steal.finding(f"{100 * share:.1f} % of CPU time is stolen")


CHECKS: tuple[Check, ...] = (
    machine_busy,
    cpu_steal,
    memory_pressure,
    memory_low,
    swap_in_use,
    governor,
    turbo_off,
    huge_pages,
    numa_balancing,
)
