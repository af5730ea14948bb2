"""``docker`` and ``compose``: one container with the plan's CPUs, on the machine that was tuned.

A container sees the kernel's own CPU numbers, so that the plan's hold in it: --cpuset-cpus gives it
the CPUs of all ranks, --cpuset-mems their memory, and rank.py binds each rank. The compose
specification has ``cpuset``, and nothing for memory nodes.
"""

from __future__ import annotations

from cputune.emitters import container, header, shell, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.command import RANK_SCRIPT
from cputune.emitters.format import EmittedFile, Format, LaunchJob, Secret, Word
from cputune.emitters.job import job_name
from cputune.emitters.words import Argument, CpuList, Manifest, ShellWord, VariableName
from cputune.errors import UsageError

BUILD = """
image=${{IMAGE:-{image}}}
# "launch" is the directory of these files; the project is the one that this is started from.
if [[ ${{1:-}} == build ]]; then
  exec docker build --build-context launch="$here" --file "$here/Dockerfile" --tag "$image" \\
    "${{@:2}}" {context}
fi
docker image inspect "$image" >/dev/null 2>&1 || fail "there is no image $image" "$0 build"
mkdir -p -- "${{DATA_DIR:=$PWD/data}}"
"""


def emit_docker(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script, and what the image is built from. Raises UsageError for several nodes."""
    cpus, mems = _places(job)
    notes = _notes(job, mems)
    text = "#!/usr/bin/env bash\n"
    text += header.full(job, "docker", f"Launch of {job.workload.name} in a container.", notes)
    context = '"$here"' if job.workload.recipe is not None else '"$PWD"'
    text += shell.STRICT + shell.HERE
    text += BUILD.format(image=ShellWord(_image(job)), context=context)
    lines = [
        "docker run --rm --init",
        f"--cpuset-cpus {cpus}",
        *([f"--cpuset-mems {mems}"] if mems else []),
        f"--shm-size {k8s.shared_memory(job).lower().removesuffix('i')}",
        "--ulimit memlock=-1",
        f'--user "${{CONTAINER_USER:-{k8s.user_id(job)}}}"',
        f'--volume "$DATA_DIR":{k8s.data(job)}',
        *(f"--env {ShellWord(f'{n}={value}')}" for n, value in k8s.image_variables(job).items()),
        *(f"--env {VariableName(name)}" for name in (*job.workload.secrets, k8s.HUB_TOKEN)),
        '"$image"',
    ]
    text += shell.lines_array("launch", lines)
    text += shell.array("train", [*_before(job), *(_inside(job, word) for word in job.command)])
    text += shell.start('"${train[@]}"', watched=False)
    main = shell.script("docker.sh", text, notes)
    return (main, *container.image_files(job))


def emit_compose(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The compose file, and what the image is built from. Raises UsageError for several nodes."""
    cpus, mems = _places(job)
    notes = (*_notes(job, mems), "The compose specification has no memory nodes: docker.sh has.")
    # Relative to this file, and the Dockerfile to the context: the files lie in launch/.
    context, place = (".", "") if job.workload.recipe is not None else ("..", "launch/")
    hub = {name: f"${{{VariableName(name)}:-}}" for name in (*job.workload.secrets, k8s.HUB_TOKEN)}
    service: Manifest = {
        "image": words.YamlScalar(_image(job)),
        "build": {
            "context": words.YamlScalar(context),
            "dockerfile": words.YamlScalar(f"{place}Dockerfile"),
            "additional_contexts": {"launch": "."},
        },
        "cpuset": words.YamlScalar(cpus),
        "shm_size": words.YamlScalar(k8s.shared_memory(job).lower().removesuffix("i")),
        "ulimits": {"memlock": -1},
        "init": True,
        "user": words.YamlScalar(k8s.user_id(job)),
        "environment": {
            **{name: k8s.escape(value) for name, value in k8s.image_variables(job).items()},
            **{name: words.YamlScalar(value) for name, value in hub.items()},
        },
        "volumes": [words.YamlScalar(f"${{DATA_DIR:-./data}}:{k8s.data(job)}")],
        "command": [
            *map(k8s.escape, _before(job)),
            *(_composed(_inside(job, word)) for word in job.command),
        ],
    }
    text = header.full(job, "compose", f"Launch of {job.workload.name} by docker compose.", notes)
    text += words.dump({"name": words.YamlScalar(job_name(job)), "services": {"train": service}})
    return (
        EmittedFile(name="compose.yaml", text=text, notes=notes),
        *container.image_files(job),
    )


def _places(job: LaunchJob) -> tuple[CpuList, CpuList]:
    """The CPUs of all ranks, and their memory nodes where these are known."""
    plan = job.plan
    if plan.nodes > 1:
        raise UsageError(
            f"a container is on one machine, and the plan on {plan.nodes}",
            hint="--nodes 1, or --format pytorchjob",
        )
    cpus = {cpu for own in (*plan.cpus, *plan.ccl_cpus) for cpu in own}
    nodes = {
        core.numa_node
        for core in job.target.topology.cores
        if core.numa_node is not None and not cpus.isdisjoint(core.cpus)
    }
    return CpuList(cpus), CpuList(nodes)


def _notes(job: LaunchJob, mems: str) -> tuple[str, ...]:
    said = k8s.notes_of_paths(job)
    if not mems:
        said = (
            *said,
            "The memory nodes of the CPUs are not known here: --cpuset-mems is left out.",
        )
    return said


def _image(job: LaunchJob) -> str:
    return f"{job_name(job)}:latest" if job.cluster.image is None else k8s.image(job)


def _before(job: LaunchJob) -> list[Argument]:
    """What starts rank.py in the image."""
    own = ("--standalone", "--nproc-per-node", str(job.plan.processes_per_node))
    rank = (f"{k8s.WORKSPACE}/{RANK_SCRIPT}", "--launcher", "torch", "--cpus")
    return [
        *k8s.torchrun_words(job),
        *map(Argument, (*own, *rank, CpuList(*job.plan.cpus), "--")),
    ]


def _inside(job: LaunchJob, word: Word) -> Argument | Secret:
    """A word of the command as it is in the container."""
    return word if isinstance(word, Secret) else k8s.placed(job, word)


def _composed(word: Argument | Secret) -> words.YamlScalar:
    if isinstance(word, Secret):
        return words.YamlScalar(k8s.escape(word.before) + f"${{{word.variable}}}")
    return k8s.escape(word)


DOCKER = Format(
    name="docker",
    write=emit_docker,
    main="docker.sh",
    beside="`Dockerfile`, `constraints.txt`",
    fits="docker, on the machine that was tuned",
    start="`launch/docker.sh build`, then `launch/docker.sh`",
    known_by=r"\bdocker run\b",
    consumers=("bash",),
    script=True,
    untried="read by bash, its words by a docker that only writes them down; no image was built",
)
COMPOSE = Format(
    name="compose",
    write=emit_compose,
    main="compose.yaml",
    beside="`Dockerfile`, `constraints.txt`",
    fits="docker compose, on the machine that was tuned",
    start="`docker compose --file launch/compose.yaml up --build`",
    known_by=r"^services:",
    untried="held against the schema of the compose specification; no docker was here to start it",
)
