"""The other files of an emitted folder: their lines, and the meaning of what you may change.

Nothing is built or started. A file that is not there was left behind on purpose, unless another
one needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from cputune.emitters.container import CONSTRAINTS
from cputune.emitters.folder import DIGEST, changed_lines, digest_of, lines_of
from cputune.emitters.promise import plan_file_of
from cputune.errors import UsageError
from cputune.host import read_document
from cputune.host.files import exists
from cputune.stack import Versions
from cputune.stack.fit import pythons_for
from cputune.text.documents import at, parse
from cputune.verifier.checks import CHANGES_A_PLAN
from cputune.verifier.pods import templates_of
from cputune.verifier.records import Artefact, Evidence, Outcome, judged

Manifest = Mapping[str, Any]


def folder_check(
    artefact: Artefact, promised: Mapping[str, str] | None, job: Manifest | None = None
) -> Iterator[Outcome]:
    """What was changed in the files beside an artefact; nothing if none was promised.

    ``job`` is the document, if it is one of Kubernetes.
    """
    folder = artefact.path.parent
    rows, checked = list[Evidence](), 0
    for name, marks in (promised or {}).items():
        text = _text(folder / name)
        if text is None:
            continue
        checked += 1
        for line in changed_lines(name, marks, text):
            rows.append(Evidence(what=name, seen=line, expected="the lines that were emitted"))
    if job is None:
        rows += _of_plan(folder, artefact)
    else:
        rows += _of_image(folder, job)
        rows += _of_steps(folder, artefact, job)
        rows += _of_kustomization(folder, artefact)
        rows += _of_claim(folder, artefact, job)
        rows += _of_context(folder, artefact)
    if checked or rows:
        files = "file is" if checked == 1 else "files are"
        wrong = None
        if rows:
            wrong = f"{rows[0].what}: {rows[0].seen}"
        yield judged("folder", None, rows, f"{checked} {files} as emitted", wrong=wrong)


def _text(path: Path) -> str | None:
    try:
        return read_document(path)
    except (OSError, UsageError):
        return None


def _of_plan(folder: Path, artefact: Artefact) -> Iterator[Evidence]:
    """Whether the file that holds the plan is as it was written."""
    name = plan_file_of(artefact.text)
    text = None
    if name is not None:
        text = _text(folder / name)
    if name is None or text is None:
        return
    try:
        document = parse(text)
    except ValueError:
        return
    wanted = at(document, DIGEST)
    if wanted is not None and wanted != digest_of(document):
        expected = "the values that were emitted"
        yield Evidence(what=name, seen="a value was changed", expected=expected)


# --- the image ---------------------------------------------------------------------------

_BASE = re.compile(r"(?m)^(?:ARG BASE_IMAGE=|FROM\s+)(\S+)")
_PYTHON = re.compile(r"(?:^|/)python:(3\.\d+)")
_MUSL = re.compile(r"\balpine")
_OF_GPUS = re.compile(r"/(?:cu\d+|rocm[\d.]*|xpu)(?:/|$)")
_INDEX = re.compile(r"(?m)^ARG (\w*INDEX_URL)=(\S+)")
_COPIED = re.compile(r"(?m)^COPY\s+(.*--from=launch.*)$")
_SET = re.compile(r"(\w+)=")
_PIN = re.compile(r"([A-Za-z][\w.-]*)==([\w.!+-]+)")


def _of_image(folder: Path, job: Manifest) -> Iterator[Evidence]:
    pins_text = _text(folder / CONSTRAINTS)
    pins = dict[str, str]()
    for name, version in _PIN.findall(pins_text or ""):
        key = name.lower().replace("_", "-")
        if pins.setdefault(key, version) != version:
            seen = f"{name} has two versions: {pins[key]} and {version}"
            yield Evidence(what=CONSTRAINTS, seen=seen)
    text = _text(folder / "Dockerfile")
    if text is None:
        return
    yield from _base(text, pins)
    yield from _copied(text, folder)
    variables = _variables_of(job)
    for line in lines_of("Dockerfile", text):
        if line.startswith("ENV "):
            yield from _set_in_image(line, variables)
        if "pip install" in line:
            yield from _installed(line, pins)
        for word in line.partition("pip uninstall")[2].split():
            if word.lower().replace("_", "-") in pins:
                yield Evidence(what="Dockerfile", seen=line, expected=f"{word} stays installed")


def _base(text: str, pins: Mapping[str, str]) -> Iterator[Evidence]:
    fitting = pythons_for(Versions.from_names(pins))
    for base in _BASE.findall(text):
        if _MUSL.search(base):
            wanted = "an image with glibc: torch has no wheels for musl"
            yield Evidence(what="Dockerfile", seen=f"the image {base}", expected=wanted)
        python = _PYTHON.search(base)
        if python and fitting and python[1] not in fitting:
            wanted = f"Python {', '.join(fitting)}, which the pinned versions need"
            yield Evidence(what="Dockerfile", seen=f"the image {base}", expected=wanted)
    for name, url in _INDEX.findall(text):
        if _OF_GPUS.search(url):
            yield Evidence(what="Dockerfile", seen=f"{name}={url}", expected="torch for CPUs")


def _copied(text: str, folder: Path) -> Iterator[Evidence]:
    for words in _COPIED.findall(text):
        for name in [word for word in words.split() if not word.startswith("--")][:-1]:
            if _text(folder / name) is None:
                yield Evidence(what="Dockerfile", seen=f"it copies {name}, which is not there")


def _set_in_image(line: str, variables: Mapping[str, object]) -> Iterator[Evidence]:
    """A variable of the image that no pod replaces, and that changes what the plan sets."""
    for name in _SET.findall(line):
        decides = CHANGES_A_PLAN.fullmatch(name) is not None or name == "LD_PRELOAD"
        if decides and name not in variables:
            yield Evidence(what="Dockerfile", seen=line, expected=f"no {name}")


def _installed(line: str, pins: Mapping[str, str]) -> Iterator[Evidence]:
    """A pinned package that is installed in another version, or without the constraints."""
    constrained = re.search(r"(?:--constraint|-c)[ =]\S+", line) is not None
    for word in line.partition("pip install")[2].split():
        package = re.fullmatch(r"[\"']?([A-Za-z][\w.-]*)(?:\[[\w,]*\])?(.*?)[\"']?", word)
        if package is None:
            continue
        version = pins.get(package[1].lower().replace("_", "-"))
        if version is None:
            continue
        if not constrained or (package[2].startswith("==") and package[2] != f"=={version}"):
            yield Evidence(what="Dockerfile", seen=line, expected=f"{package[1]}=={version}")


def _variables_of(job: Manifest) -> dict[str, object]:
    variables = dict[str, object]()
    for template in templates_of(job):
        container = template.training or {}
        for variable in container.get("env") or ():
            variables[str(at(variable, "name"))] = at(variable, "value")
    return variables


# --- what starts the job -----------------------------------------------------------------

_GIVEN = re.compile(r"(?m)^(image|job|claim)=(\S+)$")
_NAMESPACE = re.compile(r"(?m)^namespace=(?:\$\{NAMESPACE:-)?([\w.-]+)")


def _of_steps(folder: Path, artefact: Artefact, job: Manifest) -> Iterator[Evidence]:
    """The names in kubectl.sh, compared with those of the job."""
    name = f"{artefact.path.stem}.kubectl.sh"
    text = _text(folder / name)
    if text is None:
        return
    given = {key: value.strip("'\"") for key, value in _GIVEN.findall(text)}
    images, claims = set[str](), set[str]()
    for template in templates_of(job):
        image = at(template.training or {}, "image")
        if image is not None:
            images.add(str(image))
        claims |= _claims(template.spec)
    wanted = (
        ("job", given.get("job"), {str(at(job, "metadata", "name"))}),
        ("image", given.get("image"), images),
        ("claim", given.get("claim"), claims),
    )
    namespace, of_job = _NAMESPACE.search(text), at(job, "metadata", "namespace")
    if namespace is not None and of_job is not None and namespace[1] != str(of_job):
        expected = f"{of_job}, as in {artefact.path.name}: kubectl refuses another one"
        yield Evidence(what=name, seen=f"namespace={namespace[1]}", expected=expected)
    for key, value, values in wanted:
        if value is None or not values:
            continue
        if not any(value == one or _is_digest_of(one, value) for one in values):
            expected = f"{', '.join(sorted(values))}, as in {artefact.path.name}"
            yield Evidence(what=name, seen=f"{key}={value}", expected=expected)


def _is_digest_of(image: str, tagged: str) -> bool:
    repository, at_sign, _ = image.partition("@sha256:")
    return bool(at_sign) and re.sub(r":[\w.-]+$", "", tagged).startswith(
        re.sub(r":[\w.-]+$", "", repository)
    )


def _claims(spec: Manifest) -> set[str]:
    names = set[str]()
    for volume in at(spec, "volumes") or ():
        claim = at(volume, "persistentVolumeClaim", "claimName")
        if claim is not None:
            names.add(str(claim))
    return names


# Keys of a kustomization that may change anything of a job.
_PATCHES = (
    *("patches", "patchesStrategicMerge", "patchesJson6902", "replicas", "components"),
    *("transformers", "replacements", "generators", "helmCharts"),
)


def _of_kustomization(folder: Path, artefact: Artefact) -> Iterator[Evidence]:
    name = "kustomization.yaml"
    text = _text(folder / name)
    if text is None:
        return
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        yield Evidence(what=name, seen=f"no YAML: {str(error).partition(chr(10))[0]}")
        return
    resources = at(content, "resources") or []
    configurations = at(content, "configurations") or []
    jobs = {f"{kind}.yaml" for kind in ("pytorchjob", "trainjob")} | {artefact.path.name}
    started = jobs & set(map(str, resources))
    if len(started) != 1:
        seen = f"resources: {', '.join(map(str, resources)) or 'none'}"
        yield Evidence(what=name, seen=seen, expected=f"{artefact.path.name}, and no other job")
    for one in (*resources, *configurations):
        path = folder / str(one)
        if "://" not in str(one) and not exists(path):
            yield Evidence(what=name, seen=f"{one} is not there")
    if started == {artefact.path.name}:
        yield from _of_own_job(content, artefact)


def _of_own_job(content: object, artefact: Artefact) -> Iterator[Evidence]:
    """What a kustomization changes of the job that it starts."""
    name, configurations = "kustomization.yaml", at(content, "configurations") or []
    if f"{artefact.path.stem}.kustomizeconfig.yaml" not in configurations:
        seen = f"configurations: {', '.join(map(str, configurations)) or 'none'}"
        wanted = f"{artefact.path.stem}.kustomizeconfig.yaml, for a prefix of names"
        yield Evidence(what=name, seen=seen, expected=wanted)
    for image in at(content, "images") or ():
        if at(image, "newName") or at(image, "newTag"):
            seen = f"another image for {at(image, 'name')}"
            yield Evidence(what=name, seen=seen, expected="its digest at most")
    for key in _PATCHES:
        if at(content, key):
            wanted = "a kustomization of your own, in a folder next to this one"
            yield Evidence(what=name, seen=f"{key} may change the plan", expected=wanted)


def _of_context(folder: Path, artefact: Artefact) -> Iterator[Evidence]:
    """Whether the image would get the script: .dockerignore does not leave it out."""
    name = "Dockerfile.dockerignore"
    text = _text(folder / name)
    scripts = {word for word in re.findall(r"[\w./-]+\.py\b", artefact.text) if word[0] != "/"}
    for line in lines_of(name, text or ""):
        pattern = line.removeprefix("**/")
        for script in sorted(scripts):
            below = [script, *(str(parent) for parent in Path(script).parents)]
            if any(fnmatchcase(one, pattern) for one in (*below, Path(script).name)):
                expected = f"{script} is copied into the image"
                yield Evidence(what=name, seen=line, expected=expected)


def _of_claim(folder: Path, artefact: Artefact, job: Manifest) -> Iterator[Evidence]:
    """pvc.yaml makes the claim that the pods mount, if kubectl.sh still names it."""
    text = _text(folder / "pvc.yaml")
    if text is None:
        return
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        yield Evidence(what="pvc.yaml", seen="no YAML")
        return
    claim, kind = at(document, "metadata", "name"), at(document, "kind")
    if kind != "PersistentVolumeClaim":
        yield Evidence(what="pvc.yaml", seen=f"kind: {kind}", expected="PersistentVolumeClaim")
    mounted = set[str]()
    for template in templates_of(job):
        mounted |= _claims(template.spec)
    steps = _text(folder / f"{artefact.path.stem}.kubectl.sh")
    given = dict(_GIVEN.findall(steps or ""))
    named = given.get("claim", f"{at(job, 'metadata', 'name')}-data").strip("'\"")
    renamed = any(str(claim) in name for name in mounted)  # kustomize adds a prefix
    if named in mounted and not renamed:
        expected = f"{named}, which the pods mount"
        yield Evidence(what="pvc.yaml", seen=f"the claim {claim}", expected=expected)
