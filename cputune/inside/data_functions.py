"""How the functions of a script may change its data set and collator.

A worker of a loader has a copy of both, made when it starts. Code that changes the original later,
or uses the model that is trained, makes other batches there. Such a change may come long after the
first steps, so the functions are read: attributes that they set.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from cputune.inside.applying.unchanged import of_script

# Methods that run before the training, or also in a worker.
FETCHES = (
    "__init__",
    "__new__",
    "__post_init__",
    "__getitem__",
    "__getitems__",
    "__iter__",
    "__next__",
    "__len__",
    "__call__",
    "__getstate__",
    "__setstate__",
)

# Of objects in objects (a subset of a data set, a collator around another).
DEPTH = 4


def changes_outside(*sources: object) -> str:
    """Why the script may change these while it trains; empty: nothing of it sets what they have."""
    owners: list[Any] = []
    for source in sources:
        owners += _inside(source)
    names: set[str] = set()
    for owner in owners:
        names |= {*getattr(owner, "__dict__", ())}
        owner_type = type(owner)
        for method in _set_in(owner_type) if of_script(owner_type.__module__) else ():
            if method not in _reached(owner_type):
                return f"{owner_type.__name__}.{method} can change it while it trains"
    mine = {type(owner) for owner in owners}
    for cls in _classes():
        if cls in mine or _is_module(cls):
            continue
        for method, name in _set_elsewhere(cls):
            if name in names:
                return f"{cls.__name__}.{method} sets its {name} while it trains"
    return ""


def refers_to_model(*sources: object) -> str:
    """Why these may use the model that is trained; empty: nothing in them refers to one.

    Libraries are not read: some hold a model for its settings (DataCollatorForSeq2Seq).
    """
    for source in sources:
        for owner in _inside(source):
            referrer = _model_in(owner, DEPTH)
            if referrer:
                return f"its {referrer} refers to a model, which other processes have a copy of"
    return ""


def _model_in(owner: Any, depth: int) -> str:
    """The name of what refers to a model that is trained; empty: nothing does."""
    function = owner if isinstance(owner, FunctionType) else getattr(owner, "__func__", None)
    if function is not None:
        if not of_script(function.__module__):
            return ""
        values = [*_variables(function)]
        name = function.__name__
    elif of_script(type(owner).__module__):
        values = [*getattr(owner, "__dict__", {}).values()]
        values += [method for _, method in _methods(type(owner))]
        name = type(owner).__name__
    else:
        return ""
    for value in values:
        if _is_trained(value):
            return name
        callable_here = isinstance(value, FunctionType) and value is not function
        if depth and callable_here and _model_in(value, depth - 1):
            return name
    return ""


def _variables(function: FunctionType) -> Iterator[Any]:
    """What a function may use: of its module, of the function around it, its defaults."""
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield from function.__defaults__ or ()


def _is_trained(value: Any) -> bool:
    torch = sys.modules["torch"]
    if hasattr(value, "train_dataset"):
        module = getattr(value, "model", None)
    else:
        module = value
    if not isinstance(module, torch.nn.Module):
        return False
    return any(parameter.requires_grad for parameter in module.parameters())


def _inside(source: Any, depth: int = DEPTH) -> Iterator[Any]:
    """A data set or collator, and those that it is made of."""
    yield source
    held = getattr(source, "__dict__", {})
    if depth == 0 or isinstance(source, FunctionType):
        return
    for value in held.values():
        if isinstance(value, (list, tuple)) and len(value) < 32:
            parts = value
        else:
            parts = [value]
        for part in parts:
            looks_so = hasattr(part, "__getitem__") or callable(part)
            if hasattr(part, "__dict__") and looks_so and not _is_module(type(part)):
                is_read = of_script(type(part).__module__) or isinstance(part, FunctionType)
                if is_read or type(part).__module__.startswith(
                    ("torch.utils.data", "transformers")
                ):
                    yield from _inside(part, depth - 1)


def _is_module(cls: type) -> bool:
    return issubclass(cls, sys.modules["torch"].nn.Module)


def _classes() -> Iterator[type]:
    for name, module in [*sys.modules.items()]:
        if of_script(name):
            for value in [*vars(module).values()]:
                if isinstance(value, type) and value.__module__ == name:
                    yield value


def _methods(cls: type) -> Iterator[tuple[str, FunctionType]]:
    for base in cls.__mro__:
        if of_script(base.__module__):
            for name, value in [*vars(base).items()]:
                if isinstance(value, FunctionType):
                    yield name, value


def _set_in(cls: type) -> Iterator[str]:
    """The methods of a class that set attributes of their object."""
    for method, function in _methods(cls):
        if any(on_self for _, on_self in _stores(function.__code__)):
            yield method


def _set_elsewhere(cls: type) -> Iterator[tuple[str, str]]:
    """The methods of a class that set attributes of other objects, and which."""
    for method, function in _methods(cls):
        for name, on_self in _stores(function.__code__):
            if method != "__init__" and not on_self:
                yield method, name


def _reached(cls: type) -> set[str]:
    """The methods that those of ``FETCHES`` call, and so on."""
    methods: dict[str, list[FunctionType]] = {}
    for name, function in _methods(cls):
        methods.setdefault(name, []).append(function)
    reached: set[str] = set()
    waiting = [name for name in FETCHES if name in methods]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            for function in methods[name]:
                for code in _codes(function.__code__):
                    waiting += [word for word in code.co_names if word in methods]
    return reached | {*FETCHES}


def _stores(code: CodeType) -> Iterator[tuple[str, bool]]:
    """The attributes that a function sets, and whether they belong to its object."""
    for each in _codes(code):
        first_argument = None
        if each.co_argcount:
            first_argument = each.co_varnames[0]
        before: dis.Instruction | None = None
        for step in dis.get_instructions(each):
            if step.opname == "STORE_ATTR":
                if before is None:
                    loaded = ""
                else:
                    loaded = before.argrepr.split(", ")[-1]
                yield str(step.argval), first_argument is not None and loaded == first_argument
            if step.opname not in ("CACHE", "EXTENDED_ARG"):
                before = step


def _codes(code: CodeType) -> Iterable[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)
