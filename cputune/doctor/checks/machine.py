"""The machine: missing facts, load, memory, frequency, sockets and NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from cputune.doctor import variables as env
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.plans.cores import usable_cores
from cputune.text import cpulist
from cputune.text.plain import GIB

# Load average per allowed CPU above which a training run is disturbed.
BUSY_SHARE = 0.25
# Share of time in which some task waited for a CPU (Documentation/accounting/psi.rst). Assumed.
PRESSURE_PERCENT = 10.0

# The share of time in which processes wait for memory. Assumed.
MEMORY_PRESSURE_PERCENT = 5.0

# Share of CPU time that the hypervisor gives to others. Assumed.
STEAL_SHARE = 0.02

# If less than the larger of both is free, a training soon swaps or is killed. Assumed.
LITTLE_MEMORY_BYTES = 2 * GIB
LITTLE_MEMORY_SHARE = 0.05


@check("facts-missing", Severity.WARNING)
def facts_missing(facts: HostFacts) -> Iterator[Finding]:
    """The doctor cannot see basic facts of this machine

    Symptom: few findings, and many unknown facts.

    Cause: /proc or /sys is not mounted or is hidden by a sandbox, or a recording is empty or
    damaged. A check reports nothing if its facts are unknown.

    Remedy: Check /proc and /sys of this machine (or record it again with doctor --record).

    Source: https://docs.kernel.org/admin-guide/cputopology.html
    """
    for fact, there, severe in (
        ("topology.online", bool(facts.topology.online), True),
        ("topology.physical_cores", facts.topology.cores_known, False),
        ("cpu.isa", facts.why_unknown("cpu.isa") is None, not facts.topology.online),
    ):
        if not there:
            yield facts_missing.finding(
                f"{fact}: {facts.why_unknown(fact) or 'not known'}",
                severity=None if severe else Severity.ADVICE,
            )


@check("machine-busy", Severity.WARNING)
def machine_busy(facts: HostFacts) -> Iterator[Finding]:
    """Something else is running on this machine

    Symptom: training is several times slower than yesterday.

    Cause: OpenMP threads wait for each other at barriers. A thread that shares its CPU is late each
    time while the others spin. One busy process on two cores made training nine times slower.

    Remedy: End the other process, or wait for its end.

    Source: https://docs.kernel.org/accounting/psi.html
    """
    cpus, load = len(facts.topology.online), facts.load
    busy = sum(process.cpu_share for process in load.busy)
    average, pressure = load.average_1min, load.cpu_pressure_percent
    signs = []
    # The load average still counts processes that ended; the one thread that runs now is ours.
    over = load.running_threads is not None and load.running_threads <= 1
    if average is not None and not over and cpus and average > max(1.0, BUSY_SHARE * cpus):
        signs.append(f"load average {average:g} on {cpus} CPUs")
    if pressure is not None and pressure > PRESSURE_PERCENT:
        signs.append(f"CPU pressure {pressure:g} % (tasks that wait for a CPU)")
    if busy and (signs or busy >= max(0.5, BUSY_SHARE * cpus)):
        names = (f"{p.name} (process {p.pid}) {100 * p.cpu_share:.0f} %" for p in load.busy[:3])
        signs.append(f"busy now, in percent of a CPU: {', '.join(names)}")
    if signs:
        yield machine_busy.finding(
            "; ".join(signs), command="ps -eo pid,pcpu,comm --sort=-pcpu | head"
        )


@check("cpu-steal", Severity.WARNING)
def cpu_steal(facts: HostFacts) -> Iterator[Finding]:
    """The hypervisor takes CPU time away

    Symptom: a virtual machine is slower at some hours.

    Cause: virtual CPUs wait for real ones; /proc/stat counts that time as steal.

    Remedy: Ask for dedicated CPUs, or use another host.

    Source: https://docs.kernel.org/filesystems/proc.html
    """
    share = facts.load.steal_share
    if share is not None and share > STEAL_SHARE:
        yield cpu_steal.finding(f"{100 * share:.1f} % of CPU time is stolen")


@check("memory-low", Severity.WARNING)
def memory_low(facts: HostFacts) -> Iterator[Finding]:
    """Most of the memory is in use

    Symptom: training is killed in its first steps on a machine with much memory.

    Cause: other processes, files in /dev/shm or reserved huge pages hold the memory. File cache
    counts as available.

    Remedy: Free the memory before training starts.

    Source: https://docs.kernel.org/filesystems/proc.html#meminfo
    """
    total, available = facts.memory.total_bytes, facts.memory.available_bytes
    if total is None or available is None:
        return
    least = max(LITTLE_MEMORY_SHARE * total, min(LITTLE_MEMORY_BYTES, total / 2))
    if available < least:
        yield memory_low.finding(
            f"{available / GIB:.1f} of {total / GIB:.1f} GiB are available",
            command="ps -eo pid,rss,comm --sort=-rss | head",
        )


@check("swap-in-use", Severity.ADVICE, under=("memory-low",))
def swap_in_use(facts: HostFacts) -> Iterator[Finding]:
    """Swap is in use

    Symptom: some steps take seconds.

    Cause: pages are read back from disk.

    Remedy: Free memory, or train with fewer ranks or a smaller batch.

    Source: https://docs.kernel.org/admin-guide/sysctl/vm.html#swappiness
    """
    total, free = facts.memory.swap_total_bytes, facts.memory.swap_free_bytes
    if total is not None and free is not None and total - free > max(GIB // 4, total // 20):
        pressed = (facts.load.memory_pressure_percent or 0) > MEMORY_PRESSURE_PERCENT
        yield swap_in_use.finding(
            f"{(total - free) / GIB:.1f} of {total / GIB:.1f} GiB of swap are used",
            severity=Severity.WARNING if pressed else None,
        )


SAVING = ("powersave", "ondemand", "conservative", "schedutil")
ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
# The energy preference by name, or by number if the firmware knows only numbers.
FULL_SPEED = ("performance", "0")


@check("governor", Severity.ADVICE)
def governor(facts: HostFacts) -> Iterator[Finding]:
    """The frequency governor saves power

    Symptom: step times vary; short kernels run below the nominal frequency.

    Cause: powersave, ondemand, conservative and schedutil raise the frequency only after load, and
    threads that wait at barriers look idle. Drivers in active mode (intel_pstate, amd-pstate-epp)
    follow the energy preference instead.

    Remedy: Choose the performance governor while training.

    Source: https://docs.kernel.org/admin-guide/pm/cpufreq.html
    """
    allowed = set(facts.topology.allowed)
    slow = set[int]()
    governors = dict[str, None]()
    for group in facts.settings.frequencies:
        if allowed.isdisjoint(group.cpus) or group.governor not in SAVING:
            continue
        # These drivers choose the frequency themselves, by the preference.
        if group.driver in ACTIVE_DRIVERS and group.energy_preference in FULL_SPEED:
            continue
        slow.update(group.cpus)
        kind = (group.governor, group.driver, group.energy_preference)
        governors[" ".join(filter(None, kind))] = None
    if slow:
        cpus = cpulist.render(slow)
        yield governor.finding(
            f"on CPUs {cpus}: {'; '.join(governors)}",
            command=f"sudo cpupower -c {cpus} frequency-set --governor performance",
        )


@check("turbo-off", Severity.ADVICE)
def turbo_off(facts: HostFacts) -> Iterator[Finding]:
    """Turbo is switched off

    Symptom: cores never exceed their base frequency.

    Cause: no_turbo (intel_pstate), boost (cpufreq) or the firmware switched it off.

    Remedy: Switch it on, unless steady timing matters more than speed.

    Source: https://docs.kernel.org/admin-guide/pm/intel_pstate.html
    """
    if facts.settings.turbo is False:
        boost = "echo 1 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
        no_turbo = "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        yield turbo_off.finding(
            "intel_pstate/no_turbo is 1, or cpufreq/boost is 0",
            command=boost if facts.cpu.vendor == "AuthenticAMD" else no_turbo,
        )


@check("huge-pages", Severity.ADVICE)
def huge_pages(facts: HostFacts) -> Iterator[Finding]:
    """Transparent huge pages are off

    Symptom: many TLB misses and page faults with large tensors.

    Cause: with ``never`` all memory is in pages of 4 KiB.

    Remedy: Allow huge pages on request (madvise): allocators and torch request them.

    Source: https://docs.kernel.org/admin-guide/mm/transhuge.html
    """
    if facts.settings.transparent_huge_pages == "never":
        yield huge_pages.finding(
            "/sys/kernel/mm/transparent_hugepage/enabled says never",
            command="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )


@check("numa-balancing", Severity.ADVICE)
def numa_balancing(facts: HostFacts) -> Iterator[Finding]:
    """The kernel moves pages between NUMA nodes by itself

    Symptom: page faults and jitter in steps although each rank is bound to its node.

    Cause: NUMA balancing unmaps pages to learn which CPU uses them. It helps unbound processes and
    slows bound ones.

    Remedy: Switch it off if ranks are bound to nodes, as in tuned launches.

    Source: https://docs.kernel.org/admin-guide/sysctl/kernel.html#numa-balancing
    """
    with_cpus = []
    for node in facts.topology.numa_nodes:
        if node.cpus:
            with_cpus.append(node)
    if facts.settings.numa_balancing and len(with_cpus) > 1:
        yield numa_balancing.finding(
            f"kernel.numa_balancing is on, with {len(with_cpus)} NUMA nodes",
            command="sudo sysctl kernel.numa_balancing=0",
        )


# If a NUMA node has less free memory, ranks bound to it get memory of another. Assumed.
LITTLE_FREE_BYTES = 2 * GIB


@check("siblings-together", Severity.ADVICE)
def siblings_together(facts: HostFacts) -> Iterator[Finding]:
    """SMT siblings are numbered side by side

    Symptom: half the speed on a cloud machine if a script binds CPUs 0 to n-1.

    Cause: most servers number the first threads of all cores first. Clouds number both threads of a
    core in sequence, so that CPUs 0-15 are eight cores.

    Remedy: Bind one CPU of each pair, or whole pairs.

    Source: intel/intel-extension-for-pytorch#310
    """
    pairs = []
    for core in facts.topology.allowed_cores:
        if len(core.cpus) > 1:
            pairs.append(core.cpus)
    if len(pairs) > 1 and all(cpus[1] == cpus[0] + 1 for cpus in pairs):
        yield siblings_together.finding(
            f"CPUs {cpulist.render(pairs[0])} are one core; "
            f"{cpulist.render(chain.from_iterable(pairs))} are {len(pairs)} cores",
            command=env.advised_launch(facts),
        )


@check("numa-in-socket", Severity.ADVICE, tuned="ranks")
def numa_in_socket(facts: HostFacts) -> Iterator[Finding]:
    """A socket is divided into several NUMA nodes

    Symptom: one rank per socket is slower than expected.

    Cause: with sub-NUMA clustering (Intel) or NPS2 and NPS4 (AMD), at least half of a rank's memory
    is on another node of its socket.

    Remedy: Run cputune tune: it measures a rank per NUMA node and a rank per socket.

    Source: https://huggingface.co/docs/transformers/perf_train_cpu_many
    """
    cores = usable_cores(facts)
    nodes = {core.numa_node for core in cores if core.numa_node is not None}
    sockets = {core.socket for core in cores}
    if facts.topology.sockets_known and len(nodes) > len(sockets):
        yield numa_in_socket.finding(
            f"sockets: {len(sockets)}, NUMA nodes with usable cores: {len(nodes)}; advised before "
            f"anything is measured: {env.advised(facts).why}"
        )


@check("numa-cpuless", Severity.ADVICE)
def numa_cpuless(facts: HostFacts) -> Iterator[Finding]:
    """A NUMA node has memory but no CPUs

    Symptom: one rank per NUMA node gives too many ranks, or numactl refuses a node.

    Cause: HBM in flat mode, CXL and persistent memory appear as nodes without CPUs.

    Remedy: Count only nodes with CPUs; put a model into HBM if it fits, but not into CXL.

    Source: https://docs.kernel.org/mm/numa.html,
    https://docs.kernel.org/admin-guide/mm/numaperf.html
    """
    nodes, ids = [], []
    for node in facts.topology.numa_nodes:
        if node.cpus == () and node.memory_bytes:
            nodes.append(f"node {node.id}: {node.memory_bytes / GIB:.0f} GiB, no CPUs")
            ids.append(str(node.id))
    if nodes:
        prefer = f"numactl --preferred-many={','.join(ids)} python train.py"
        hbm = "CPU Max" in (facts.cpu.model_name or "")
        yield numa_cpuless.finding("; ".join(nodes), command=prefer if hbm else None)


@check("numa-full", Severity.ADVICE)
def numa_full(facts: HostFacts) -> Iterator[Finding]:
    """A NUMA node has little free memory

    Symptom: a rank that is bound to a node is killed although the machine has free memory.

    Cause: numactl --membind allocates on that node only. File cache counts as used here; the kernel
    frees it slowly.

    Remedy: Free memory on that node first, or bind CPUs only.

    Source: https://docs.kernel.org/mm/numa.html
    """
    with_memory, tight = 0, []
    for node in facts.topology.numa_nodes:
        if node.free_bytes is None or not node.memory_bytes:
            continue
        with_memory += 1
        if node.free_bytes < LITTLE_FREE_BYTES:
            tight.append(f"node {node.id}: {node.free_bytes / GIB:.1f} GiB free")
    if 0 < len(tight) < with_memory:
        yield numa_full.finding("; ".join(tight))


@check("cpus-offline", Severity.ADVICE)
def cpus_offline(facts: HostFacts) -> Iterator[Finding]:
    """CPUs are switched off

    Symptom: fewer cores than the data sheet says.

    Cause: CPUs were set offline by hand, by a power tool, or by SMT control (then only second
    threads are missing, and nothing is lost).

    Remedy: Switch them on, unless they are off on purpose.

    Source: https://docs.kernel.org/core-api/cpu_hotplug.html
    """
    topology = facts.topology
    offline = sorted(set(topology.present or ()) - set(topology.online))
    if offline and facts.settings.smt not in ("off", "forceoff"):
        switch = "echo 1 | sudo tee /sys/devices/system/cpu/cpu{}/online"
        yield cpus_offline.finding(
            f"present {cpulist.render(topology.present or ())}, "
            f"online {cpulist.render(topology.online)}",
            command="\n".join(switch.format(cpu) for cpu in offline[:8]),
        )


CHECKS = checks_of(__name__)
