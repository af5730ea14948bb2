"""What each store of trials promises: a file, and a database of Optuna.

What only a file can suffer is in ``test_tune_storage.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from in_process import Run
from simulated_ranks import simulate
from sqlalchemy.pool import NullPool
from tuner.fakes import PLANS, SMALL, FakeRunner, Heard, failing, truthful, tune

import cputune
from cputune import CannotError, Result, Trial, UsageError, kept_results
from cputune.records.history import keep_earlier, require_result
from cputune.records.result import COMPLETED, FAILED, PRUNED, State, Throughput
from cputune.records.steps import Crashed
from cputune.tuner.reading import Run as Reading
from cputune.tuner.storage import StudyStorage
from cputune.tuner.stores import StudyDatabase, StudyStore, store_of

PASSWORD = "hunter2planted"
SPACE = cputune.search_space(SMALL.facts, SMALL.workload)
RATE = Throughput(centre=4.0, low=3.0, high=5.0)


class Store:
    """Where studies are kept, each by its name in a test."""

    def options(self, name: str) -> dict[str, Any]:
        """What ``cputune.tune`` is given for the study."""
        raise NotImplementedError

    def optuna(self, name: str) -> optuna.Study:
        """The study as Optuna alone reads it."""
        raise NotImplementedError

    def opened(self, name: str) -> StudyStore:
        options = self.options(name)
        found = store_of(options["study"], options.get("study_name"))
        assert found is not None
        return found

    def storage(self, name: str, *, resume: bool) -> StudyStorage:
        options = self.options(name)
        return StudyStorage(options["study"], resume=resume, name=options.get("study_name"))

    def tune(self, name: str, script: Any = truthful(), **more: Any) -> Result:  # noqa: B008
        return tune(FakeRunner(script), **{**self.options(name), **more})

    def cut_off(self, name: str) -> None:
        """A study that ends after its third trial."""

        def interrupt() -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            self.tune(name, on_event=Heard({2: interrupt}))

    def past(self, name: str) -> list[tuple[Trial, Reading]]:
        """All that is read when the study is resumed."""
        book = self.storage(name, resume=True)
        try:
            return book.past()
        finally:
            book.close()


@dataclass
class InAFile(Store):
    folder: Path

    def options(self, name: str) -> dict[str, Any]:
        return {"study": self.folder / f"{name}.db"}

    def optuna(self, name: str) -> optuna.Study:
        (file,) = self.folder.glob(f"{name}.db")
        backend = optuna.storages.journal.JournalFileBackend(str(file))
        storage = optuna.storages.JournalStorage(backend)
        return optuna.load_study(study_name=None, storage=storage)


@dataclass
class InADatabase(Store):
    """SQLite, because everybody has it."""

    folder: Path

    def options(self, name: str) -> dict[str, Any]:
        return {"study": f"sqlite:///{self.folder}/all.sqlite", "study_name": name}

    def optuna(self, name: str) -> optuna.Study:
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.folder}/all.sqlite", engine_kwargs={"poolclass": NullPool}
        )
        return optuna.load_study(study_name=name, storage=storage)


@pytest.fixture(params=[InAFile, InADatabase])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    (tmp_path / "studies").mkdir()
    found: Store = request.param(folder=tmp_path / "studies")
    return found


class TestEveryStore:
    @pytest.mark.parametrize(
        ("state", "logs", "value"),
        [
            (COMPLETED, (0.5, 1.5), 0.25),
            (PRUNED, (0.5, 1.5), math.exp(1.5)),
            (FAILED, (0.5,), None),
        ],
    )
    def test_what_is_reported_of_a_trial_comes_back(
        self, store: Store, state: State, logs: tuple[float, ...], value: float | None
    ) -> None:
        rate = RATE if state == COMPLETED else None
        trial = Trial(number=0, plan=PLANS[0], state=state, samples_per_second=rate, reason="why")
        book = store.storage("one", resume=True)
        assert book.past() == []
        assert book.begin(SPACE, PLANS[0]) == PLANS[0]
        book.end(trial, Reading(logs=list(logs), losses=[2.0, None, math.nan]))
        assert book.write_down() is None
        book.close()
        ((told, again),) = store.past("one")
        assert told == trial
        assert (again.logs, again.losses) == (list(logs), [2.0, None, None])
        (frozen,) = store.optuna("one").trials
        assert "cputune.trial" in frozen.user_attrs
        assert frozen.user_attrs["reason"] == "why"
        assert frozen.value == pytest.approx(value)
        seconds = {index: math.exp(one) for index, one in enumerate(logs)}
        assert frozen.intermediate_values == pytest.approx(seconds)

    @pytest.mark.parametrize("after", [False, True])
    def test_a_trial_that_an_interrupt_met_while_it_was_written_is_there_once(
        self, after: bool, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.tune("one", budget=2)
        before = store.past("one")
        trial, run = before[0]
        add = optuna.Study.add_trial

        def interrupted(study: optuna.Study, frozen: optuna.trial.FrozenTrial) -> None:
            monkeypatch.setattr(optuna.Study, "add_trial", add)
            if after:
                add(study, frozen)
            raise KeyboardInterrupt

        book = store.storage("one", resume=True)
        book.begin_baseline()
        book.end(replace(trial, number=len(before)), run)
        monkeypatch.setattr(optuna.Study, "add_trial", interrupted)
        with pytest.raises(KeyboardInterrupt):
            book.write_down()
        assert book.write_down() is None
        book.close()
        assert [one.number for one, _ in store.past("one")] == [*range(len(before) + 1)]
        assert len(store.optuna("one").trials) == len(before) + 1

    def test_optuna_reads_the_trials_with_their_states(self, store: Store) -> None:
        result = store.tune("one", failing(Crashed("rank 0 died"), when="bf16"))
        study = store.optuna("one")
        states = {"completed": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        assert [t.state.name for t in study.trials] == [states[t.state] for t in result.trials]
        assert study.trials[1].user_attrs["reason"].startswith("rank 0 died")
        assert study.trials[-1].params["precision"] in ("fp32", "bf16")
        assert study.best_trial.value == pytest.approx(SMALL.seconds(result.best.plan) / 8, rel=0.5)

    def test_a_study_is_resumed_and_has_the_trials_of_an_undisturbed_one(
        self, store: Store
    ) -> None:
        store.cut_off("kept")
        begun = store.optuna("kept").trials
        with pytest.raises(CannotError) as refused:
            store.tune("kept")
        assert refused.value.hint.startswith("resume=True")
        result = store.tune("kept", resume=True)
        assert len(begun) == 3
        plans = [trial.plan.describe() for trial in result.trials[:3]]
        assert plans == [trial.user_attrs["plan"] for trial in begun]
        whole = store.tune("whole")
        assert [trial.plan for trial in result.trials] == [trial.plan for trial in whole.trials]
        assert [trial for trial, _ in store.past("kept")] == list(result.trials)

    def test_a_study_that_is_empty_or_over_makes_room_and_one_cut_off_is_renamed(
        self, store: Store
    ) -> None:
        store.storage("empty", resume=False).close()
        empty = store.opened("empty")
        assert empty.is_over()
        for _ in range(2):
            store.tune("empty", budget=2)
            assert empty.is_over()
            assert empty.make_room() is None
            assert not empty.holds_study()
        store.cut_off("cut")
        cut = store.opened("cut")
        assert not cut.is_over()
        moved = cut.make_room()
        assert moved.trials == 3
        assert not cut.holds_study()
        option, beside = moved.option.split()
        renamed = {option.removeprefix("--").replace("-", "_"): beside}
        assert len(store.tune("cut", resume=True, **renamed).trials) > 3
        cut.finish()  # of a study that is gone: nothing

    def test_a_study_without_a_trial_is_taken_away(self, store: Store) -> None:
        store.tune("with", budget=2)
        for name, resume in (("with", True), ("without", False)):
            store.storage(name, resume=resume).discard()
            assert store.opened(name).holds_study() == resume

    def test_a_study_that_is_removed_meanwhile_changes_no_trial_and_is_said(
        self, store: Store
    ) -> None:
        undisturbed = store.tune("whole")
        for after in (1, len(undisturbed.trials) - 1):
            name = f"after-{after}"
            said = Heard({after: store.opened(name).remove})
            result = store.tune(name, on_event=said)
            assert [trial.plan for trial in result.trials] == [t.plan for t in undisturbed.trials]
            assert result.best.plan == undisturbed.best.plan
            (warning,) = (text for text in said if text.startswith("warning: "))
            assert "it was removed" in warning
            (note,) = (note for note in result.notes if "it was removed" in note)
            assert "--resume" in note
            assert not store.opened(name).holds_study()

    @pytest.mark.usefixtures("workdir")
    def test_a_second_tune_is_typed_without_force(
        self, store: Store, cputune: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        simulate(monkeypatch, SMALL.seconds, SMALL.facts)
        words = ["tune", "--budget", "2"]
        for name, value in store.options("typed").items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for seed in ("0", "1"):
            ended = cputune(*words, "--seed", seed)
            assert ended.code == 0, ended.err
            assert "note: a study" not in ended.err
            assert len(store.past("typed")) == len(Result.load("cputune.json").trials)
        assert cputune(*words, "--seed", "1", "--resume").code == 0


def test_a_study_of_another_program_in_a_database_is_not_removed(tmp_path: Path) -> None:
    store = InADatabase(folder=tmp_path)
    store.tune("ours", budget=1)
    other = optuna.create_study(study_name="other", storage=store.optuna("ours")._storage)
    other.add_trial(optuna.trial.create_trial(value=1.0))
    for act in (store.opened("other").remove, store.opened("other").move_aside):
        with pytest.raises(CannotError) as refused:
            act()
        assert "--study-name" in refused.value.hint
    assert len(store.optuna("other").trials) == 1
    store.opened("ours").remove()
    assert not store.opened("ours").holds_study()


def test_what_is_no_result_makes_no_room_for_one(tmp_path: Path) -> None:
    for text in ("", "steps: 3", '{"steps": 3}'):
        path = tmp_path / "train.json"
        path.write_text(text)
        with pytest.raises(UsageError) as caught:
            require_result(path)
        assert "--force" in str(caught.value.hint)


@pytest.mark.usefixtures("history")
def test_a_result_that_is_kept_already_is_not_kept_again(tmp_path: Path, result: Result) -> None:
    path = tmp_path / "cputune.json"
    result.save(path)
    id = keep_earlier(path)
    assert keep_earlier(path) == id
    assert [kept.id for kept in kept_results()] == [id]


class TestAnAddress:
    @pytest.mark.parametrize(
        ("address", "shown"),
        [
            (f"postgresql://ada:{PASSWORD}@db:5432/optuna", "postgresql://db:5432/optuna"),
            (f"mysql://db/optuna?user=ada&password={PASSWORD}", "mysql://db/optuna"),
            (f"mariadb+pymysql://{PASSWORD}@db/optuna", "mariadb+pymysql://db/optuna"),
        ],
    )
    def test_is_shown_without_user_password_and_options(self, address: str, shown: str) -> None:
        store = store_of(address, "bert")
        assert store == StudyDatabase(address=address, name="bert")
        assert store.shown == f"{shown}, study 'bert'"

    @pytest.mark.parametrize(
        "address",
        [
            f"postgresql+pg8000://a:{PASSWORD}@h/d",  # no such driver
            f"postgresql://a:{PASSWORD}@h:port/d",
            f"nothing://a:{PASSWORD}@h/d",
            "sqlite:////no/such/folder/s.sqlite",
        ],
    )
    def test_that_cannot_be_opened_shows_no_password(self, address: str) -> None:
        with pytest.raises(CannotError, match="cannot be opened: ") as refused:
            StudyDatabase(address=address).holds_study()
        assert PASSWORD not in f"{refused.value} {refused.value.hint}"
        assert refused.value.hint
