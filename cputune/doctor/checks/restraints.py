"""What slows a process down besides its limits: weights, priorities, caps, hidden instructions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.host.probing.cpu import processors
from cputune.plans.memory import room_bytes
from cputune.text import cpulist
from cputune.text.plain import GIB

# The usual weight of a control group, and that of a pod that requests no CPU, or a thousandth.
USUAL_WEIGHT = 100
LOWEST_WEIGHT = 2


@check("cpu-emulated", Severity.ERROR)
def cpu_emulated(facts: HostFacts) -> Iterator[Finding]:
    """This processor is emulated in software

    Symptom: everything is ten to a hundred times slower than on the host.

    Cause: QEMU without KVM (TCG) translates each instruction. So does Rosetta, with which Docker on
    an M-series Mac runs x86-64 images.

    Remedy: Run an image of the machine's architecture (docker run --platform linux/arm64), or
    enable KVM and the CPU model "host".

    Source: https://www.qemu.org/docs/master/devel/index-tcg.html,
    https://developer.apple.com/documentation/virtualization/running-intel-binaries-in-linux-vms
    """
    name = facts.cpu.model_name or ""
    for sign, by in (("TCG", "QEMU's TCG"), ("VirtualApple", "Rosetta")):
        if sign in name:
            yield cpu_emulated.finding(f"the processor's name is {name}: {by} emulates it")


@check("isa-hidden", Severity.WARNING, under=("isa-old", "cpu-emulated"))
def isa_hidden(facts: HostFacts) -> Iterator[Finding]:
    """This processor has instructions that are hidden here

    Symptom: a new machine trains like an old one, most of all in bf16.

    Cause: the hypervisor shows a generic CPU model, or the kernel was started with clearcpuid or
    noxsave.

    Remedy: Set the CPU model of the virtual machine to "host", or remove clearcpuid from the
    kernel's command line.

    Source: https://www.qemu.org/docs/master/system/qemu-cpu-models.html
    """
    cpu = facts.cpu
    if facts.why_unknown("cpu.isa") is not None or not cpu.isa:
        return
    generations = [row for row in processors().x86 if row.has_model(cpu)]
    lacking = []
    for flag in ("avx2", "avx512f", "amx_tile"):
        if (
            generations
            and all(flag in row.flags.split() for row in generations)
            and not cpu.has(flag)
        ):
            lacking.append(flag)
    if lacking:
        names = " or ".join(dict.fromkeys(row.name for row in generations))
        yield isa_hidden.finding(
            f"{cpu.model_name or 'the processor'} has the model number of {names}, which has "
            f"{', '.join(lacking)}; it shows none of them"
        )
    elif "QEMU Virtual CPU" in (cpu.model_name or ""):
        yield isa_hidden.finding(
            f"the processor's name is {cpu.model_name}: a generic model without AVX",
            severity=None if not cpu.has("avx2") else Severity.ADVICE,
        )


@check("memory-high", Severity.WARNING)
def memory_high(facts: HostFacts) -> Iterator[Finding]:
    """The container is slowed down before it reaches its memory limit

    Symptom: steps become many times slower once the model and its moments are in memory; no error.

    Cause: above memory.high the kernel reclaims pages of the cgroup and makes its processes sleep.
    systemd sets it by MemoryHigh, Kubernetes with memory QoS.

    Remedy: Raise memory.high, or train with fewer ranks or a smaller batch.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    high, room = facts.restraints.memory_high_bytes, room_bytes(facts)
    if high is not None and room is not None and high < room:
        yield memory_high.finding(
            f"memory.high is {high / GIB:.1f} GiB, {room / GIB:.1f} GiB may be used"
        )


@check("cpu-weight", Severity.ADVICE)
def cpu_weight(facts: HostFacts) -> Iterator[Finding]:
    """This container gets CPU time only if others leave it

    Symptom: training is several times slower when other pods or services are busy.

    Cause: its cgroup has the lowest weight, or cpu.idle; a pod without a CPU request has it.

    Remedy: Request CPUs (resources.requests.cpu, in Kubernetes equal to the limit), or raise
    cpu.weight.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    restraints = facts.restraints
    if restraints.cpu_idle:
        yield cpu_weight.finding("cpu.idle is 1 in its cgroup", severity=Severity.WARNING)
    elif restraints.cpu_weight is not None and restraints.cpu_weight <= LOWEST_WEIGHT:
        yield cpu_weight.finding(f"cpu.weight is {restraints.cpu_weight}; {USUAL_WEIGHT} is usual")


@check("priority-low", Severity.WARNING)
def priority_low(facts: HostFacts) -> Iterator[Finding]:
    """Processes started here have a low priority

    Symptom: training is slow whenever anything else runs.

    Cause: nice, chrt --idle, batch systems and some terminals lower the priority of a shell;
    children inherit it.

    Remedy: Start from a shell of normal priority.

    Source: https://man7.org/linux/man-pages/man7/sched.7.html
    """
    nice, policy = facts.restraints.nice, facts.restraints.policy
    if policy == "idle":
        yield priority_low.finding(
            "SCHED_IDLE: it runs only if nothing else does", command="chrt --other --pid 0 $$"
        )
    elif nice is not None and nice > 0:
        yield priority_low.finding(
            f"nice {nice}",
            severity=None if nice >= 10 else Severity.ADVICE,
            command="sudo renice -n 0 -p $$",
        )


@check("memory-remote", Severity.WARNING)
def memory_remote(facts: HostFacts) -> Iterator[Finding]:
    """Memory comes from a NUMA node whose CPUs may not be used

    Symptom: half the memory bandwidth, or less.

    Cause: cpuset.mems names other nodes than those of cpuset.cpus.

    Remedy: Give the cpuset the memory of its CPUs: docker run --cpuset-mems, the kubelet's topology
    manager (single-numa-node), AllowedMemoryNodes of systemd.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset-interface-files
    """
    nodes, allowed = facts.restraints.memory_nodes, set(facts.topology.allowed)
    owners = {n.id for n in facts.topology.numa_nodes if n.cpus and allowed.intersection(n.cpus)}
    if nodes is None or not owners or len(facts.topology.numa_nodes) < 2:
        return
    if not owners.intersection(nodes):
        yield memory_remote.finding(
            f"memory comes from node {cpulist.render(nodes)}, the allowed CPUs are on node "
            f"{cpulist.render(owners)}"
        )


@check("overcommit-never", Severity.WARNING)
def overcommit_never(facts: HostFacts) -> Iterator[Finding]:
    """The kernel reserves memory for every mapped address

    Symptom: "Cannot allocate memory" from fork, mmap or a DataLoader while memory is free.

    Cause: with vm.overcommit_memory=2 thread stacks, malloc arenas and forked workers count in full
    against CommitLimit.

    Remedy: Set vm.overcommit_memory to 0, the default, or train with fewer threads and workers.

    Source: https://docs.kernel.org/mm/overcommit-accounting.html
    """
    free_bytes = facts.restraints.commit_left_bytes
    if free_bytes is not None:
        yield overcommit_never.finding(
            f"vm.overcommit_memory is 2, and {free_bytes / GIB:.1f} GiB can still be reserved",
            command="sudo sysctl vm.overcommit_memory=0",
        )


# Share of the highest frequency; a limit above it counts as not capped. Assumed.
CAPPED = 0.9


@check("frequency-capped", Severity.WARNING)
def frequency_capped(facts: HostFacts) -> Iterator[Finding]:
    """CPUs may not run as fast as they can

    Symptom: all cores stay at a low frequency, also under load.

    Cause: a power profile, a laptop tool or a person lowered scaling_max_freq or
    intel_pstate/max_perf_pct.

    Remedy: Set the limit to what the hardware allows.

    Source: https://docs.kernel.org/admin-guide/pm/cpufreq.html
    """
    caps = [
        cap
        for cap in facts.restraints.frequency_caps
        if cap.allowed_khz < CAPPED * cap.most_khz
        and set(cap.cpus).intersection(facts.topology.allowed)
    ]
    if caps:
        lowest = min(caps, key=lambda cap: cap.allowed_khz / cap.most_khz)
        cpus = cpulist.render(chain.from_iterable(cap.cpus for cap in caps))
        yield frequency_capped.finding(
            f"CPUs {cpus}: {lowest.allowed_khz / 1e6:.1f} of {lowest.most_khz / 1e6:.1f} GHz",
            command=f"sudo cpupower -c {cpus} frequency-set --max {lowest.most_khz}",
        )
    percent = facts.restraints.max_perf_percent
    if percent is not None and percent < 100 * CAPPED:
        place = "/sys/devices/system/cpu/intel_pstate/max_perf_pct"
        yield frequency_capped.finding(
            f"intel_pstate/max_perf_pct is {percent}", command=f"echo 100 | sudo tee {place}"
        )


# Share of the time since boot; less is one hot minute in many days.
HOT_SHARE = 0.01


@check("thermal-throttled", Severity.ADVICE)
def thermal_throttled(facts: HostFacts) -> Iterator[Finding]:
    """The processor was too hot to run at full speed

    Symptom: steps become slower after some minutes of training.

    Cause: the processor lowers its frequency when it is too hot. The kernel counts that time since
    boot.

    Remedy: Check fans, dust, the power limit and the room temperature.

    Source: https://docs.kernel.org/arch/x86/x86_64/machinecheck.html
    """
    share = facts.restraints.throttled_share
    if share is not None and share > HOT_SHARE:
        yield thermal_throttled.finding(
            f"throttled in {100 * share:.1f} % of the time since the machine was started"
        )


CHECKS = checks_of(__name__)
