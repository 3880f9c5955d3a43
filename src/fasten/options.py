"""`key=value` from a command line -> typed options of a method and fields of its recipe."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fasten.constants import SETTINGS
from fasten.contract import Recipe
from fasten.methods import METHODS, Entry
from fasten.ranges import check_ranges
from fasten.suggest import nearest

FROM_DATA = ("num_classes", "shape")  # what a method is told about its data; users do not set it
OF_SGD = ("rate", "momentum", "weight_decay", "milestones")  # fields of the recipe that methods with Adam do not use
LARGEST = 2**31 - 1  # of whole numbers: nothing needs more, and torch cannot count much further


def find_method(name: str) -> Entry:
    """The entry of a method; an unknown name is refused, with the nearest known ones."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; {nearest(name, METHODS)}")
    return METHODS[name]


def _constructor(entry: Entry) -> Any:
    return inspect.getattr_static(entry.build, "__init__")


@cache
def _hints(owner: Any, extras: bool = False) -> dict[str, Any]:
    """The types of a class's fields or a function's parameters. Python takes long to find them."""
    return get_type_hints(owner, include_extras=extras)


def option_types(entry: Entry) -> dict[str, Any]:
    """The types of a method's options, its keyword-only parameters; `oracle` is a switch: the run adds the matrix."""
    hints = _hints(_constructor(entry))
    parameters = inspect.signature(entry.build).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in FROM_DATA]
    for name in names:
        if name not in hints:
            raise ValueError(
                f"the option {name} of {entry.build.__name__} has no type; write one, such as {name}: float"
            )
    return {name: bool if Tensor in get_args(hints[name]) else hints[name] for name in names}


def option_defaults(entry: Entry) -> dict[str, Any]:
    """The default of each option.

    >>> option_defaults(find_method("naive-oversampling"))
    {'per_class': None, 'norm': 'split'}
    """
    parameters, kinds = inspect.signature(entry.build).parameters, option_types(entry)
    own = {name: parameters[name].default for name in kinds}
    return {name: bool(value) if kinds[name] is bool else value for name, value in own.items()} | dict(entry.options)


def apply_settings(
    method: str, recipe: Recipe, settings: Sequence[str], epochs: int | None = None
) -> tuple[dict[str, Any], Recipe]:
    """The method's options that are set, and the recipe; `epochs` stretches the schedule.

    >>> apply_settings("fasten", Recipe(), ["threshold=0.9", "rate=0.05"])[0]
    {'threshold': 0.9}
    """
    entry = find_method(method)
    option_hints, recipe_hints = option_types(entry), _hints(Recipe)
    recipe = entry.schedule.applied(recipe) if entry.schedule else recipe
    options: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--set takes key=value, got {text!r}; write for example rate=0.05")
        if key in options or key in changes:
            raise ValueError(f"{key} is set twice, the second time to {value!r}; give it once")
        if key in option_hints:
            options[key] = parse(key, value, option_hints[key])
        elif key in recipe_hints:
            changes[key] = parse(key, value, recipe_hints[key])
            if key in OF_SGD and "adam_rate" in option_hints and changes[key] != getattr(recipe, key):
                raise ValueError(f"{method} trains with Adam, which does not use {key}; leave it out, or set adam_rate")
        else:
            near = nearest(SETTINGS.get(key, key), [*option_hints, *recipe_hints])
            raise ValueError(f"unknown option {key!r} of {method}; {near}")
    if epochs is not None:
        if "epochs" in changes:
            raise ValueError(f"epochs is set twice, by --epochs {epochs} and by --set; give it once")
        changes["epochs"] = epochs
    if "epochs" in changes and "milestones" not in changes:
        recipe = recipe.scaled(changes["epochs"]) if changes["epochs"] > 0 else recipe
    recipe = replace(recipe, **changes)
    check_settings(method, options, recipe)
    return options, recipe


def rate_of(method: str, options: Mapping[str, Any], recipe: Recipe) -> tuple[str, float]:
    """The setting that holds a run's learning rate, and its value.

    >>> rate_of("fasten", {}, Recipe()), rate_of("causalnl", {}, Recipe())
    (('rate', 0.1), ('adam_rate', 0.001))
    """
    found = option_defaults(find_method(method)) | dict(options)
    return ("adam_rate", found["adam_rate"]) if "adam_rate" in found else ("rate", recipe.rate)


def check_settings(method: str, options: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse numbers outside the ranges that methods and the recipe declare."""
    check_ranges(options, _hints(_constructor(find_method(method)), extras=True))
    check_ranges(vars(recipe), _hints(Recipe, extras=True))


def parse(key: str, text: str, kind: Any) -> Any:
    """A value of the wanted type, or a ValueError that names the key, the type and the text.

    >>> parse("milestones", "5,6", tuple[int, ...]), parse("per_class", "none", int | None)
    ((5, 6), None)
    """
    choices = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        if text.lower() == "none" and type(None) in choices:
            return None
        return parse(key, text, next(c for c in choices if c is not type(None)))
    if get_origin(kind) is Literal:
        if text not in choices:
            raise ValueError(f"{key} must be one of {', '.join(choices)}, got {text!r}")
        return text
    if get_origin(kind) is tuple:
        return _parse_tuple(key, text, choices[0])
    if kind is bool:
        return _parse_bool(key, text)
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"{key} takes {_NAMES[kind]}, got {text!r}") from None
    if isinstance(value, float) and not math.isfinite(value):  # a record cannot hold it
        raise ValueError(f"{key} takes a finite number, got {text!r}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{key} takes a whole number up to {LARGEST:,}, got {text!r}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a text"}


def _parse_tuple(key: str, text: str, kind: Any) -> tuple[Any, ...]:
    try:
        return tuple(parse(key, part, kind) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{key} takes {_NAMES[kind]} or several, separated by commas, got {text!r}") from None


def _parse_bool(key: str, text: str) -> bool:
    known: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError(f"{key} takes true or false, got {text!r}")
    return known[text.lower()]
