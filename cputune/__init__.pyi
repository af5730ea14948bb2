"""What is public: each name, and where it is defined. ``__init__.py`` reads it from here."""

from types import ModuleType

from cputune.doctor import (
    Diagnosis as Diagnosis,
    Finding as Finding,
    Severity as Severity,
    diagnose as diagnose,
)
from cputune.doctor.hosts import (
    HostsDiagnosis as HostsDiagnosis,
    SeenHost as SeenHost,
    diagnose_hosts as diagnose_hosts,
)
from cputune.emitters import EmittedFile as EmittedFile, Node as Node, emit as emit
from cputune.errors import (
    CannotError as CannotError,
    CputuneError as CputuneError,
    HostError as HostError,
    Interrupted as Interrupted,
    MissingPackageError as MissingPackageError,
    NotMeasurableError as NotMeasurableError,
    NoValidTrialError as NoValidTrialError,
    RecipeError as RecipeError,
    ResultError as ResultError,
    Unreachable as Unreachable,
    UsageError as UsageError,
)
from cputune.host import RecordedHost as RecordedHost
from cputune.host.facts import HostFacts as HostFacts
from cputune.host.probing import probe as probe
from cputune.library.examine import doctor as doctor
from cputune.library.tuning import tune as tune
from cputune.plans.plan import Plan as Plan
from cputune.plans.workload import Workload as Workload
from cputune.records.options import (
    Cluster as Cluster,
    EmitOptions as EmitOptions,
    SecretKey as SecretKey,
    TuneOptions as TuneOptions,
)
from cputune.records.result import ConfirmRun as ConfirmRun, Trial as Trial
from cputune.records.steps import Runner as Runner, Step as Step, TrialError as TrialError
from cputune.report.answer import show as show
from cputune.report.drawing import (
    Kept as Kept,
    Result as Result,
    kept_results as kept_results,
)
from cputune.tuner import SearchSpace as SearchSpace, search_space as search_space
from cputune.tuner.comparing import Comparison as Comparison, compare as compare
from cputune.tuner.events import (
    ComparisonSoFar as ComparisonSoFar,
    ConfirmStarted as ConfirmStarted,
    Event as Event,
    Message as Message,
    OnEvent as OnEvent,
    StepTaken as StepTaken,
    StudyEnded as StudyEnded,
    StudyStarted as StudyStarted,
    TrialEnded as TrialEnded,
    TrialStarted as TrialStarted,
)
from cputune.verifier import Verification as Verification, verify as verify

class DoctorModule(ModuleType):
    def __call__(self, *given: object, **named: object) -> object: ...

__version__: str
