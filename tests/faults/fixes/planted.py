"""Faults of an environment, planted: what is set, typed, written; what the doctor calls it.

Each is planted in a small environment of its own (``Environment``): a venv whose packages
are links to those that run the tests, so that one can be damaged, removed, installed again.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
_NOT_NEEDED = re.compile(
    r"(?i)(sklearn|scikit|scipy|pandas|pyarrow|trl|peft|matplotlib|datasets"
    r"|sentence_trans|tensorboard|IPython|optuna|plotly|sympy_|nvidia|triton).*"
)
TRAINER = """
import json, os, tempfile
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=16)
ids = torch.ones(8, dtype=torch.long)
data = [{"input_ids": ids, "labels": torch.tensor(i % 2)} for i in range(8)]
arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=2, save_steps=2,
                              report_to=[], per_device_train_batch_size=2, disable_tqdm=True)
trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=data)
trainer.train()
print(json.dumps({"trained": True, "steps": trainer.state.global_step,
                  "threads": torch.get_num_threads(), "ranks": arguments.world_size,
                  "cpus": len(os.sched_getaffinity(0))}))
"""


class Environment:
    """A venv of links in ``folder``, the script beside it, and wheels of what may be installed.

    In it the fault is planted.
    """

    def __init__(self, folder: Path, fault: Fault) -> None:
        self.prefix = folder / "venv"
        self.work = folder / "job"
        self.wheels = folder / "wheels"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = self.prefix / "lib" / version / "site-packages"
        for place in (self.site, self.prefix / "bin", self.work, self.wheels):
            place.mkdir(parents=True)
        base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        (self.prefix / "pyvenv.cfg").write_text(
            f"home = {base.parent}\ninclude-system-site-packages = false\n"
        )
        for name in ("python", "python3"):
            (self.prefix / "bin" / name).symlink_to(base)
        for entry in SITE.iterdir():
            if not _NOT_NEEDED.fullmatch(entry.name):
                (self.site / entry.name).symlink_to(entry)
        self.script("cputune", "cputune.__main__")
        self.script("accelerate", "accelerate.commands.accelerate_cli")
        self.script("torchrun", "torch.distributed.run")
        self.script("pip", "pip._internal.cli.main")
        (self.work / "train.py").write_text(TRAINER)
        if fault.plant is not None:
            fault.plant(self)

    def script(self, name: str, module: str) -> None:
        """A console script of this environment."""
        path = self.prefix / "bin" / name
        path.write_text(
            f"#!{self.prefix}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
        )
        path.chmod(0o755)

    def metadata(self, name: str) -> Path:
        """The folder with the metadata of a package."""
        found = [
            p for p in self.site.glob("*.dist-info") if _plain(p.name.split("-")[0]) == _plain(name)
        ]
        return found[0]

    def own(self, name: str) -> Path:
        """Make this package a copy, that may be damaged; a wheel of it can be installed."""
        module, info = self.site / name, self.metadata(name)
        for link in (module, info):
            real = link.resolve()
            link.unlink()
            shutil.copytree(real, link, ignore=shutil.ignore_patterns("__pycache__"))
        self.wheel(name)
        return module

    def wheel(self, name: str) -> None:
        """Pack what is installed of a package as a wheel."""
        told = distribution(name)
        tag = re.search(r"^Tag: (\S+)", told.read_text("WHEEL") or "", re.MULTILINE)
        path = self.wheels / f"{_plain(name)}-{told.version}-{tag[1]}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for file in told.files or ():
                if (
                    ".." not in file.parts
                    and "__pycache__" not in file.parts
                    and file.name not in ("INSTALLER", "REQUESTED")
                ):
                    archive.write(Path(file.locate()), str(file))

    def add(self, name: str, version: str, *lines: str) -> None:
        """A package that is metadata and an empty module."""
        (self.site / name).mkdir()
        (self.site / name / "__init__.py").write_text("")
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "\n".join(("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""))
        )
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text(
            f"{name}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/INSTALLER,,\n{info.name}/RECORD,,\n"
        )

    def variables(self) -> dict[str, str]:
        """Of a shell in which this environment is activated; pip finds the wheels alone."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        return {
            **kept,
            "PATH": f"{self.prefix}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "VIRTUAL_ENV": str(self.prefix),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "CPUTUNE_CONFIG": "none",
            "XDG_STATE_HOME": "/dev/null/state",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


Plant = Callable[[Environment], object]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: ``code`` is what the doctor calls it.

    ``variables`` are exported and ``typed`` is run in the shell, ``plant`` changes files before
    that; ``@`` in a variable is the folder of the environment. ``shows`` is what the training tells
    after the fix; ``ends`` whether it ended, or waited for ever, before it.
    """

    code: str
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    typed: str = "true"
    plant: Plant | None = None
    shows: Mapping[str, int] = field(default_factory=dict)
    ends: bool = False
    launch: str = "python train.py"


def variable(code: str, *, ends: bool = False, typed: str = "true", **variables: str) -> Fault:
    """A fault that is variables alone."""
    name = ",".join(f"{key}={text}" for key, text in variables.items())
    return Fault(code=code, name=name, variables=variables, ends=ends, typed=typed)


CORES = len(os.sched_getaffinity(0))


def team(code: str, **variables: str) -> Fault:
    """A fault of threads or CPUs: after its fix torch has all cores."""
    name = ",".join(f"{key}={text}" for key, text in variables.items())
    return Fault(code=code, name=name, variables=variables, shows={"threads": CORES, "cpus": CORES})


def limit(code: str, typed: str, *, ends: bool = False) -> Fault:
    """A limit of the shell."""
    return Fault(code=code, name=typed, typed=typed, ends=ends)


def shadow(file: str, text: str = "", *, by: str = "cwd") -> Fault:
    """A file that is taken in the place of a library."""

    def plant(made: Environment) -> None:
        path = (made.work if by == "cwd" else made.work / "mine") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return Fault(
        code="module-shadowed",
        name=f"{file} by {by}",
        plant=plant,
        variables={} if by == "cwd" else {"PYTHONPATH": "@/job/mine"},
        ends=True,
    )


def package(
    code: str, name: str, plant: Plant, *, ends: bool = True, launch: str = "python train.py"
) -> Fault:
    """Something is wrong with what is installed."""
    return Fault(code=code, name=name, plant=plant, ends=ends, launch=launch)


def without(name: str) -> Plant:
    """The package and its metadata are gone; a wheel of it is there."""

    def plant(made: Environment) -> None:
        shutil.rmtree(made.own(name))
        shutil.rmtree(made.metadata(name))

    return plant


def told_as(name: str, version: str | None) -> Plant:
    """The metadata says another version, and so does the name of its folder; None: none at all."""

    def plant(made: Environment) -> None:
        made.own(name)
        info = made.metadata(name)
        text = (info / "METADATA").read_text()
        line = "" if version is None else f"Version: {version}"
        (info / "METADATA").write_text(
            re.sub(r"^Version: .*$", line, text, count=1, flags=re.MULTILINE)
        )
        if version is not None:
            now = info.with_name(f"{info.name.split('-')[0]}-{version}.dist-info")
            record = info / "RECORD"
            record.write_text(record.read_text().replace(f"{info.name}/", f"{now.name}/"))
            info.rename(now)

    return plant


def older(name: str, version: str) -> Plant:
    """Package and metadata both say an older version."""

    def plant(made: Environment) -> None:
        told_as(name, version)(made)
        for file in ("__init__.py", "version.py"):
            path = made.site / name / file
            if path.is_file():
                path.write_text(
                    re.sub(
                        r"^__version__ = .*$",
                        f'__version__ = "{version}"',
                        path.read_text(),
                        flags=re.MULTILINE,
                    )
                )

    return plant


def configured(text: str) -> Plant:
    """A default configuration of accelerate."""

    def plant(made: Environment) -> None:
        folder = made.work / "hf" / "accelerate"
        folder.mkdir(parents=True)
        (folder / "default_config.yaml").write_text(text)

    return plant


_FOREVER = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519"}
_BEFORE_CURE = {"ACCELERATE_USE_CPU": "true"}

FAULTS: tuple[Fault, ...] = (
    # what a launch leaves in a shell
    variable("launch-left-over", RANK="0", WORLD_SIZE="2"),
    variable("launch-left-over", ends=True, LOCAL_RANK="0"),
    variable("launch-left-over", ends=True, **_FOREVER, **_BEFORE_CURE),
    variable("interface-missing", GLOO_SOCKET_IFNAME="eth99"),
    variable("ranks-auto", PET_NPROC_PER_NODE="auto"),
    # what accelerate and torch refuse
    variable("variable-refused", ends=True, ACCELERATE_USE_DEEPSPEED="true"),
    variable("variable-refused", ends=True, ACCELERATE_USE_CPU="maybe"),
    variable("variable-refused", ends=True, ACCELERATE_TORCH_DEVICE="cuda"),
    variable("variable-refused", ends=True, TORCH_DISTRIBUTED_DEBUG="on"),
    variable("variable-refused", ends=True, OMP_STACKSIZE="64G"),
    variable("fp16-ignored", ACCELERATE_MIXED_PRECISION="fp16"),
    # what a search for faults left
    variable("debug-left-on", ONEDNN_VERBOSE="1"),
    variable("debug-left-on", TORCH_LOGS="+inductor", TORCH_COMPILE_DEBUG="1"),
    variable("setting-without-library", KMP_AFFINITY="scatter", KMP_BLOCKTIME="1"),
    variable("stack-variable-ignored", TRANSFORMERS_CACHE="/opt/models"),
    # threads and CPUs
    team("threads-mkl", MKL_NUM_THREADS="1"),
    team("threads-one", OMP_NUM_THREADS="1"),
    team("threads-affinity", OMP_NUM_THREADS="64"),
    team("threads-malformed", OMP_NUM_THREADS="$(nproc)"),
    team("threads-limit", OMP_THREAD_LIMIT="1"),
    team("affinity-shrinks", OMP_PROC_BIND="close"),
    team("affinity-gomp", GOMP_CPU_AFFINITY="0"),
    # instructions, libraries
    variable("isa-capped", ONEDNN_MAX_CPU_ISA="SSE41"),
    variable("preload-dead", LD_PRELOAD="/nowhere/libtcmalloc.so.4"),
    # oneCCL and IPEX that are not read
    variable("stack-variable-ignored", CCL_WORKER_COUNT="1"),
    variable("ccl-affinity", CCL_WORKER_AFFINITY="990"),
    # limits of the shell
    limit("open-files", "ulimit -Sn 64"),
    limit("virtual-memory", "ulimit -Sv 1048576", ends=True),
    limit("file-size", "ulimit -Sf 1024"),
    limit("stack-small", "ulimit -Ss 256"),
    limit("data-segment", "ulimit -Sd 300000", ends=True),
    limit("cpu-seconds", "ulimit -St 3", ends=True),
    # folders, environments, files in the place of libraries
    variable("environment-foreign", VIRTUAL_ENV="/opt/other"),
    variable("folder-unusable", HF_HOME="/proc/models"),
    shadow("torch.py"),
    shadow("transformers/__init__.py"),
    shadow("torch.py", by="PYTHONPATH"),
    shadow("logging.py", "raise SystemExit(1)", by="PYTHONPATH"),
    # packages
    package("accelerate-missing", "no accelerate", without("accelerate")),
    package("requirement-unmet", "tokenizers 0.10.0", older("tokenizers", "0.10.0")),
    package("transformers-accelerate", "accelerate 0.20.0", older("accelerate", "0.20.0")),
    package("package-version-unknown", "accelerate without a version", told_as("accelerate", None)),
    package(
        "oneccl-torch-mismatch",
        "oneccl_bind_pt 2.8.0",
        lambda made: made.add("oneccl_bind_pt", "2.8.0"),
        ends=False,
    ),
    Fault(
        code="file-unreadable",
        name="default_config.yaml is no YAML",
        plant=configured("a: [1"),
        variables={"HF_HOME": "@/job/hf"},
        ends=True,
        launch="accelerate launch --cpu train.py",
    ),
)
