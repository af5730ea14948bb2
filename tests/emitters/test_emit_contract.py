"""What every format promises: words are carried exactly or refused, and never executed."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from emit_machines import TODAY, one_socket, planned, script_workload
from golden_texts import Golden
from in_process import ran
from rows import every_row
from scripts import shellcheck

from cputune import Cluster, CputuneError, EmittedFile, UsageError, Workload, emit
from cputune.emitters import FORMATS

HERE = Path(__file__).parent.parent.parent
HOSTILE = (
    # of a shell
    *("two words", "it's", 'say "yes"', "$HOME", "$(touch executed)", "`touch executed`", ""),
    *("; touch executed", "&& touch executed #", "line\nbreak", "tab\tand\rreturn", " ", "*", "~"),
    *("back\\slash\\n", "--leading_name=dash", "-x", "--", "{a,b}", "[1,2]", "# no comment"),
    # of the kubelet and of formats
    *("$$(PATH) $(PATH) $$$", "%s %(x)s {y}"),
    # of YAML
    *(": colon", "- item", "yes", "0o17", "22:22", "null", "!important !!python/object"),
    *("&anchor *alias", "| > @ %"),
    # of terminals and editors
    *("ünïcödé ✓ 漢字", "\u2028\u0085\ufeff", "\x1b[31m"),
)
SHELL_FORMATS = tuple(name for name, one in FORMATS.items() if one.main.endswith(".sh"))
KUBERNETES_FORMATS = tuple(name for name, one in FORMATS.items() if one.main.endswith(".yaml"))
VERSION_TEXTS = {
    "intelmpi": "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260626",
    "mpich": "HYDRA build details:\n    Version: 5.0.2",
    "openmpi4": "mpirun (Open MPI) 4.1.8",
    "openmpi5": "mpirun (Open MPI) 5.0.11",
}
FAKE = """#!/bin/sh
case "$0 $1" in
  *mpirun\\ --version) printf '%s\\n' "$FAKE_MPI"; exit ;;
  *python3\\ -c) echo 12345; exit ;;
  *scontrol\\ show) echo node1; exit ;;
esac
printf '%s\\0' "$0" "$@" > "$FAKE_DUMP"
env -0 > "$FAKE_DUMP.environment"
"""
TASKSET = """#!/bin/sh
list=$2
shift 2
[ "$1" = nproc ] || exec "$@"
echo "$list" | tr , '\\n' | awk -F- '{n += (NF > 1 ? $2 : $1) - $1 + 1} END {print n}'
"""
"""Of a machine that has every CPU."""


class Launch:
    """What a script really starts, seen by fakes that write their words down."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "fake bin"
        self.bin.mkdir()
        for name in ("mpirun", "python3", "srun", "scontrol"):
            fake = self.bin / name
            fake.write_text(FAKE)
            fake.chmod(0o755)
        (self.bin / "taskset").write_text(TASKSET)
        (self.bin / "taskset").chmod(0o755)
        self.dump = directory / "dump"

    def run(
        self,
        files: tuple[EmittedFile, ...],
        *arguments: str,
        mpi: str = "openmpi5",
        environment: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        place = self.directory / "launch files"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for file in files:
            (place / file.name).write_text(file.text, encoding="utf-8")
        (self.directory / "run_qa.py").touch()
        for file in place.glob("*.sh"):  # a machine that has every library
            file.write_bytes(re.sub(rb"-f /\S+\.so\S* ", b"-d / ", file.read_bytes()))
        self.dump.unlink(missing_ok=True)
        answer = ran(
            ["bash", str(place / files[0].name), *arguments],
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "FAKE_DUMP": str(self.dump),
                "FAKE_MPI": VERSION_TEXTS.get(mpi, mpi),
                "SLURM_JOB_NODELIST": "node1",
                "LAUNCH_DIR": str(place),
                **(environment or {}),
            },
        )
        if answer.returncode:
            raise AssertionError(answer.stderr)
        seen = (self.dump.with_name("dump.environment")).read_bytes().decode().split("\0")
        variables = dict(pair.split("=", 1) for pair in seen if "=" in pair)
        words = self.dump.read_bytes().decode().split("\0")[:-1]
        return words, variables | _handed_on(words)


def _handed_on(words: list[str]) -> dict[str, str]:
    """What ``env`` among the words gives to a rank; ``-u`` has no value here."""
    if "env" not in words:
        return {}
    given = words[words.index("env") + 1 : words.index("--")]
    return dict(word.split("=", 1) for word in given if "=" in word)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def files_for(
    format: str, *arguments: str, mpi: str | None = "openmpi5"
) -> tuple[EmittedFile, ...]:
    return emit(one_socket().result, format, workload=script_workload(*arguments), mpi=mpi)


def expand(word: str) -> str:
    """What the kubelet makes of a word: ``$$`` is a dollar; no ``$(NAME)`` may be left."""
    left = word.replace("$$", "")
    assert "$" not in left
    return word.replace("$$", "$")


def container_words(text: str) -> list[str]:
    document = yaml.safe_load(text)
    spec = document["spec"]
    if document["kind"] == "TrainJob":
        container = spec["trainer"]
    else:
        container = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    return [expand(word) for word in (*container["command"], *container["args"])]


def training_words(words: list[str]) -> list[str]:
    """What is trained, without apply_plan.py before it."""
    words = words[words.index("--") + 1 :]
    if words[0].endswith("rank.py"):
        words = words[words.index("--") + 1 :]
    return words[1:] if words[0].endswith("apply_plan.py") else words


@every_row("format", FORMATS)
def test_it_has_its_word_in_the_docs_and_its_consumer_in_the_suite(format: str) -> None:
    (row,) = re.findall(rf"^\| `{format}` \|.*$", (HERE / "docs/emit.md").read_text(), re.M)
    assert FORMATS[format].main in row
    assert FORMATS[format].main in (HERE / "docs/verify.md").read_text()
    consumers = (HERE / "tests/consumers").glob("test_*.py")
    assert any(f'"{format}"' in path.read_text() for path in consumers)


class TestHostileArguments:
    @pytest.mark.parametrize("format", SHELL_FORMATS)
    def test_a_script_carries_them_exactly(self, format: str, launch: Launch) -> None:
        words, _ = launch.run(files_for(format, *HOSTILE), *HOSTILE)
        assert training_words(words)[: len(HOSTILE) + 1] == ["run_qa.py", *HOSTILE]
        assert training_words(words)[-len(HOSTILE) :] == list(HOSTILE)
        assert not (launch.directory / "executed").exists()

    @pytest.mark.parametrize("format", KUBERNETES_FORMATS)
    def test_a_document_carries_them_exactly(self, format: str) -> None:
        words = container_words(files_for(format, *HOSTILE)[0].text)
        assert training_words(words)[: len(HOSTILE) + 1] == ["run_qa.py", *HOSTILE]

    @pytest.mark.parametrize("format", ["mpirun", "accelerate", "slurm"])
    def test_a_lone_colon_is_refused_in_words(self, format: str) -> None:
        with pytest.raises(UsageError, match='the argument ":"') as caught:
            files_for(format, "a", ":", "b")
        assert caught.value.hint

    @pytest.mark.parametrize("format", ["mpirun", "accelerate", "slurm"])
    def test_a_script_refuses_a_lone_colon_when_it_is_run(
        self, format: str, launch: Launch, golden: Golden
    ) -> None:
        with golden.raises(AssertionError):
            launch.run(files_for(format), "a", ":", "b")

    @pytest.mark.parametrize("format", SHELL_FORMATS)
    def test_shellcheck_has_nothing_to_say(self, format: str, tmp_path: Path) -> None:
        script = tmp_path / "hostile.sh"
        script.write_text(files_for(format, *HOSTILE)[0].text, encoding="utf-8")
        assert shellcheck(script) == ""

    @pytest.mark.parametrize("format", FORMATS)
    def test_a_script_that_python_takes_for_an_option(self, format: str, golden: Golden) -> None:
        workload = Workload(name="-run.py", argv=("-run.py",))
        with golden.raises(UsageError):
            emit(one_socket().result, format, workload=workload)

    @every_row("format", FORMATS)
    def test_the_header_stays_a_comment(self, format: str) -> None:
        workload = replace(script_workload(), name="evil\nname: x\r$(touch executed)\u2028--- !x")
        text = emit(one_socket().result, format, workload=workload)[0].text
        head = [line for line in text.split("\n") if "evil?" in line or "$(touch" in line]
        assert head
        assert all(line.startswith("#") for line in head)
        assert not set("\r\u2028\u0085") & set(text)


class TestHostileNames:
    @every_row("name", ["a b", "$(x)", "-a", "x\ny", "a;b", "ü", "Ä", "", "a" * 80])
    def test_job_names(self, name: str) -> None:
        for format in (*KUBERNETES_FORMATS, "slurm"):
            with pytest.raises(UsageError) as caught:
                emit(one_socket().result, format, cluster=Cluster(job_name=name))
            assert caught.value.hint

    @every_row("value", ["a b", "$(x)", "-a", 'x"\ny: z', "x\n#SBATCH --uid=0", "ü"])
    @every_row(
        "hold",
        [
            lambda value: Cluster(image=value),
            lambda value: Cluster(time_limit=value),
            lambda value: Cluster(node_selector=((value, "b"),)),
            lambda value: Cluster(node_selector=(("a", value),)),
            lambda value: Cluster(pull_secrets=(value,)),
        ],
    )
    def test_words_of_a_cluster(self, value: str, hold: Callable[[str], Cluster]) -> None:
        for format in (*KUBERNETES_FORMATS, "slurm"):
            with pytest.raises(UsageError) as caught:
                emit(one_socket().result, format, cluster=hold(value))
            assert caught.value.hint


class TestPlan:
    """The plan is the same in every format."""

    ENVIRONMENT: ClassVar = {
        "OMP_NUM_THREADS": "4",
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
    }

    @pytest.mark.parametrize("mpi", VERSION_TEXTS)
    @pytest.mark.parametrize("known", [True, False])
    def test_mpirun_speaks_the_dialect(self, mpi: str, known: bool, launch: Launch) -> None:
        words, seen = launch.run(files_for("mpirun", mpi=mpi if known else None), mpi=mpi)
        options = words[: words.index("--")]
        assert options[1:3] == ["-n", "2"]
        if mpi.startswith("openmpi"):
            assert ("--map-by", "ppr:2:node") in _pairs(options)
            assert ("--bind-to", "none") in _pairs(options)
        else:
            assert ("-ppn", "2") in _pairs(options)
        if mpi == "intelmpi":
            assert seen["I_MPI_PIN"] == "off"
        if mpi == "mpich":
            assert ("-bind-to", "none") in _pairs(options)
        assert {k: seen[k] for k in self.ENVIRONMENT} == self.ENVIRONMENT
        assert seen["LD_PRELOAD"].endswith("/libtcmalloc_minimal.so.4")
        assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("127.0.0.1", "12345")
        assert ("--cpus", "0-3/4-7") in _pairs(options)

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("typed", ["-m package.train", "torchrun -m package.train"])
    def test_a_module_is_launched_as_a_module(
        self, format: str, typed: str, launch: Launch
    ) -> None:
        workload = Workload.script([*typed.split(), "--lr", "1"], global_batch_size=96)
        files = emit(one_socket().result, format, workload=workload, mpi="openmpi5")
        words = launch.run(files)[0] if format in SHELL_FORMATS else container_words(files[0].text)
        assert training_words(words) == ["-m", "package.train", "--lr", "1"]


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(words))


class TestMpirunChecks:
    def test_another_mpi_than_it_was_written_for(self, launch: Launch, golden: Golden) -> None:
        with golden.raises(AssertionError):
            launch.run(files_for("mpirun", mpi="mpich"), mpi="openmpi5")

    @pytest.mark.parametrize(("version", "kept"), [("1.4.0", False), ("1.5.0", True)])
    def test_accelerate_before_1_5_has_the_host_file_from_the_flag_alone(
        self, version: str, kept: bool
    ) -> None:
        era = {"transformers": "4.49.0", "accelerate": version}
        files = emit(one_socket().result, "accelerate", versions=era)
        text = next(file.text for file in files if file.name == "accelerate.yaml")
        assert ("mpirun_hostfile" in yaml.safe_load(text)["mpirun_config"]) == kept
        assert '--mpirun_hostfile "$hosts"' in files[0].text


@pytest.mark.parametrize("format", SHELL_FORMATS)
def test_which_python_is_taken(format: str, launch: Launch) -> None:
    """PYTHON, else the interpreter of the tuning where it exists, else python3."""
    tuned_with = launch.directory / "it's $tuned"
    others = {"PYTHON": str(launch.bin / "python3")}
    shutil.copy(launch.bin / "python3", tuned_with)
    tuned_with.write_text(FAKE.replace("*python3\\ -c)", "*tuned\\ -c)"))
    files = emit(one_socket().result, format, mpi="openmpi5", python=str(tuned_with))
    assert str(tuned_with) in launch.run(files)[0]
    assert str(tuned_with) not in launch.run(files, environment=others)[0]
    tuned_with.unlink()
    words, _ = launch.run(files)
    assert {"python3", str(launch.bin / "python3")} & set(words)


class TestWhatDoesNotFit:
    def test_neither_result_nor_machine(self, golden: Golden) -> None:
        with golden.raises(UsageError):
            emit(None, "mpirun")

    @pytest.mark.parametrize("path", ["/opt/my libs/t.so", "/a:b.so", "t.so", "/a\nb.so"])
    def test_a_library_that_cannot_be_preloaded(self, path: str, golden: Golden) -> None:
        with golden.raises(UsageError):
            emit(planned(one_socket().result, preload=(path,)), "mpirun")

    def test_an_accelerate_that_cannot_start_ranks(self, golden: Golden) -> None:
        with golden.raises(CputuneError):
            emit(one_socket().result, "accelerate", versions={"accelerate": "0.27.2"})


@every_row("format", FORMATS)
@every_row(
    ("changes", "said"),
    [
        ({"precision": "fp16"}, "fp16: on a CPU"),
        ({"backend": "ccl"}, "ccl: no argument of them selects it"),
        ({"ipex": True}, "IPEX: intel_extension_for_pytorch is not installed"),
    ],
)
def test_what_nothing_of_these_versions_carries_is_refused(
    format: str, changes: dict[str, object], said: str
) -> None:
    """The header quotes a speed, and the launch would not have it."""
    with pytest.raises(UsageError, match=said) as caught:
        emit(planned(one_socket().result, **changes), format, versions=TODAY)
    assert "transformers 5.23.0" in str(caught.value)
    assert caught.value.hint


SET = {
    "ACCELERATE_USE_IPEX": "true",
    "KMP_AFFINITY": "compact",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "7",
    "HF_HOME": "/data/hf",
    "SLURM_JOB_ID": "7",
}
"""Of a shell; the plan sets the threads itself, and the last two change nothing of it."""
REMOVED = ("ACCELERATE_USE_IPEX", "KMP_AFFINITY", "MALLOC_ARENA_MAX")


@pytest.mark.parametrize("format", SHELL_FORMATS)
def test_variables_of_this_shell_that_would_change_the_plan_are_removed_by_name(
    format: str, launch: Launch
) -> None:
    case = one_socket()
    facts = replace(case.facts, environment=SET)
    files = emit(case.result, format, workload=script_workload(), facts=facts, mpi="openmpi5")
    _, seen = launch.run(files, environment=SET)
    assert not set(REMOVED) & set(seen)
    assert (seen["HF_HOME"], seen["OMP_NUM_THREADS"]) == ("/data/hf", "4")
