"""`key=value` becomes a typed option, or a sentence."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Literal, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fasten.contract import Recipe
from fasten.methods import METHODS, Entry
from fasten.options import LARGEST, apply_settings, check_settings, find_method, option_defaults, option_types, parse
from fasten.report.values import setting

finite = st.floats(allow_nan=False, allow_infinity=False)
RECIPE = Recipe(epochs=70, milestones=(50, 60))


@given(value=st.integers(-LARGEST, LARGEST))
def test_a_whole_number_is_read_back(value):
    assert parse("k", str(value), int) == value


@given(value=finite)
def test_a_number_is_read_back(value):
    assert parse("k", repr(value), float) == value


@given(values=st.lists(st.integers(-LARGEST, LARGEST)))
def test_a_list_of_numbers_is_read_back(values):
    assert parse("k", ",".join(map(str, values)), tuple[int, ...]) == tuple(values)


@given(value=st.none() | st.integers(-LARGEST, LARGEST))
def test_a_number_that_may_be_missing_is_read_back(value):
    assert parse("k", str(value).lower(), int | None) == value


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("Yes", True), ("1", True), ("false", False), ("NO", False), ("0", False)]
)
def test_a_switch_is_read_in_its_usual_spellings(text, value):
    assert parse("k", text, bool) is value


def test_a_choice_is_one_of_its_names():
    assert parse("k", "b", Literal["a", "b"]) == "b"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("1.5", int, "k takes a whole number, got '1.5'"),
        ("", float, "k takes a number, got ''"),
        ("2147483648", int, "k takes a whole number up to 2,147,483,647, got '2147483648'"),
        ("nan", float, "k takes a finite number, got 'nan'"),
        ("-inf", float, "k takes a finite number"),
        ("maybe", bool, "k takes true or false, got 'maybe'"),
        ("c", Literal["a", "b"], "k must be one of a, b, got 'c'"),
        ("5;6", tuple[int, ...], "k takes a whole number or several, separated by commas, got '5;6'"),
        ("None at all", int | None, "k takes a whole number, got 'None at all'"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(text, kind, message):
    with pytest.raises(ValueError, match=message):
        parse("k", text, kind)


def test_options_and_fields_of_the_recipe_are_told_apart():
    options, recipe = apply_settings("fasten", RECIPE, ["threshold=0.9", "rate=0.05", "per_class=3", "norm=joint"])
    assert options == {"threshold": 0.9, "per_class": 3, "norm": "joint"}
    assert recipe == replace(RECIPE, rate=0.05)


def test_without_settings_nothing_changes():
    assert apply_settings("fasten", RECIPE, []) == ({}, RECIPE)


@pytest.mark.parametrize(("settings", "epochs"), [([], 7), (["epochs=7"], None)])
def test_other_epochs_stretch_the_schedule(settings, epochs):
    recipe = apply_settings("fasten", RECIPE, settings, epochs)[1]
    assert (recipe.epochs, recipe.milestones) == (7, (6, 7))


def test_a_schedule_that_is_given_is_not_stretched():
    recipe = apply_settings("fasten", RECIPE, ["milestones=3,5"], 7)[1]
    assert (recipe.epochs, recipe.milestones) == (7, (3, 5))
    assert apply_settings("fasten", RECIPE, ["milestones="], 7)[1].milestones == ()


@given(epochs=st.integers(1, 1000), old=st.integers(1, 1000), data=st.data())
def test_a_stretched_schedule_stays_a_schedule(epochs, old, data):
    milestones = tuple(sorted(data.draw(st.lists(st.integers(1, old), max_size=3))))
    recipe = apply_settings("fasten", Recipe(epochs=old, milestones=milestones), [], epochs)[1]
    assert recipe.epochs == epochs
    assert list(recipe.milestones) == sorted(recipe.milestones)
    assert all(1 <= m <= epochs + 1 for m in recipe.milestones)


def test_a_methods_schedule_stretches_with_that_of_the_data_and_settings_come_last():
    paper = apply_settings("mw-net", Recipe(), [])[1]
    assert (paper.epochs, paper.milestones) == (60, (40, 50))
    short = apply_settings("mw-net", replace(Recipe(), epochs=14), ["milestones=9"])[1]
    assert (short.epochs, short.milestones) == (12, (9,))
    assert apply_settings("mw-net", Recipe(), [], epochs=30)[1].epochs == 30


@pytest.mark.parametrize(
    ("settings", "epochs", "message"),
    [
        (["threshold"], None, "key=value, got 'threshold'"),
        (["treshold=1"], None, "unknown option 'treshold' of fasten; did you mean 'threshold'"),
        (["rate=1", "rate=1"], None, "rate is set twice"),
        (["epochs=3"], 4, "epochs is set twice, by --epochs 4"),
        (["epochs=0"], None, "epochs must be at least 1, got 0"),
        (["epochs=-5"], None, "epochs must be at least 1, got -5"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, epochs, message):
    with pytest.raises(ValueError, match=message):
        apply_settings("fasten", RECIPE, settings, epochs)


@pytest.mark.parametrize("setting", ["rate=0.3", "momentum=0.5", "weight_decay=0", "milestones=5"])
@pytest.mark.parametrize("method", ["causalnl", "deep-knn"])
def test_methods_that_have_adam_refuse_what_they_would_ignore(method, setting):
    with pytest.raises(ValueError, match=f"{method} trains with Adam, which does not use {setting.partition('=')[0]};"):
        apply_settings(method, RECIPE, [setting])
    assert apply_settings(method, RECIPE, ["adam_rate=0.01", "epochs=3"])[0] == {"adam_rate": 0.01}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_can_be_asked_for_by_all_that_its_recipe_has(method):
    """As the command in a report does, whatever the defaults."""
    recipe = apply_settings(method, Recipe(), [], epochs=7)[1]
    settings = [f"{key}={setting(value)}" for key, value in vars(recipe).items() if key != "epochs"]
    assert apply_settings(method, Recipe(), settings, epochs=7)[1] == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0; leave it out for the default"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"rate": 0.0}, "rate must be above 0, got 0.0"),
        ({"rate": -0.1}, "rate must be above 0, got -0.1"),
        ({"rate": math.nan}, "rate must be above 0, got nan"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0, got inf"),
        ({"milestones": (3, 0)}, "milestones must be at least 1, got 0"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        check_settings("fasten", {}, replace(RECIPE, **changes))


# Of each range the values just inside and just outside, as the methods' papers and arithmetic have it.
BARELY = "1e-9"
SHARE = (["0", "1"], ["-0.1", "1.1", "80"])
PART = ([BARELY, "0.999"], ["0", "1", "-1"])
COUNT = (["1"], ["0", "-1"])
RATE = ([BARELY, "1e6"], ["0", "-0.1"])
NOT_NEGATIVE = (["0", "7"], ["-0.1"])
SENSE = {
    ("fasten", "threshold"): SHARE,
    ("fasten", "noisy_weight"): NOT_NEGATIVE,
    ("fasten", "per_class"): COUNT,
    ("fasten", "perturbation"): SHARE,
    ("naive-oversampling", "per_class"): COUNT,
    ("clean-only", "per_class"): COUNT,
    ("deep-knn", "neighbours"): COUNT,
    ("deep-knn", "adam_rate"): RATE,
    ("deep-knn", "adam_decay"): NOT_NEGATIVE,
    ("glc", "guard"): (["0", "0.999"], ["-0.1", "1"]),
    ("forward", "percentile"): ([BARELY, "100", "none"], ["0", "101"]),
    ("t-revision", "revision_rate"): RATE,
    ("t-revision", "percentile"): ([BARELY, "100", "none"], ["0", "101"]),
    ("t-revision", "guard"): (["0", "0.999"], ["-0.1", "1"]),
    ("volminnet", "volume_weight"): NOT_NEGATIVE,
    ("volminnet", "transition_rate"): RATE,
    ("volminnet", "initial"): (["-20", "5", "none"], ["-21", "6"]),
    ("volminnet", "guard"): (["0", "0.999"], ["-0.1", "1"]),
    ("l2rw", "clean_batch"): COUNT,
    ("mw-net", "clean_batch"): COUNT,
    ("mw-net", "meta_rate"): RATE,
    ("mlac", "clean_batch"): (["4"], ["3"]),
    ("mlac", "meta_rate"): RATE,
    ("mlac", "embedding"): COUNT,
    ("mlac", "hidden"): COUNT,
    ("mlac", "perturbation"): SHARE,
    ("mloc", "warm_up"): PART,
    ("mloc", "meta_stage_rate"): RATE,
    ("mloc", "virtual_rate"): RATE,
    ("mloc", "transition_rate"): NOT_NEGATIVE,
    ("mloc", "prior"): ([BARELY, "1"], ["0", "1.1"]),
    ("mloc", "clip"): ([BARELY, "none"], ["0"]),
    ("mloc", "clean_batch"): COUNT,
    ("mslc", "warm_up"): PART,
    ("mslc", "history"): COUNT,
    ("mslc", "virtual_rate"): RATE,
    ("mslc", "meta_rate"): RATE,
    ("mslc", "perturbation"): SHARE,
    ("mslc", "clean_batch"): COUNT,
    ("dividemix", "warm_up"): PART,
    ("dividemix", "threshold"): SHARE,
    ("dividemix", "temperature"): RATE,
    ("dividemix", "alpha"): RATE,
    ("dividemix", "unlabelled_weight"): NOT_NEGATIVE,
    ("dividemix", "ramp"): RATE,
    ("causalnl", "noise_rate"): (["0", "0.999"], ["-0.1", "1"]),
    ("causalnl", "ramp"): RATE,
    ("causalnl", "z_dim"): COUNT,
    ("causalnl", "example_weight"): NOT_NEGATIVE,
    ("causalnl", "label_weight"): NOT_NEGATIVE,
    ("causalnl", "latent_weight"): NOT_NEGATIVE,
    ("causalnl", "prior_weight"): NOT_NEGATIVE,
    ("causalnl", "adam_rate"): RATE,
}


@pytest.mark.parametrize(("method", "key"), SENSE)
def test_an_option_takes_what_makes_sense_and_refuses_the_rest_by_name(method, key):
    inside, outside = SENSE[method, key]
    for text in inside:
        assert key in apply_settings(method, RECIPE, [f"{key}={text}"])[0]
    for text in outside:
        with pytest.raises(ValueError, match=rf"^{key} must be (in|above|at least) .*, got {text}(\.0)?; "):
            apply_settings(method, RECIPE, [f"{key}={text}"])


@pytest.mark.parametrize("name", METHODS)
def test_no_number_of_a_method_goes_without_a_range(name):
    kinds = option_types(METHODS[name])
    for key in (key for key, kind in kinds.items() if {kind, *get_args(kind)} & {int, float}):
        with pytest.raises(ValueError, match=f"^{key} must be .*, got nan"):  # which is in none
            check_settings(name, {key: math.nan}, RECIPE)


def test_a_percentage_is_told_how_to_be_written():
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\], got 80.0; write 80% as 0.8$"):
        apply_settings("fasten", RECIPE, ["threshold=80"])


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_can_be_set_to_its_default(name):
    """So no option has a type that the command line cannot read."""
    defaults = option_defaults(find_method(name))
    settings = [f"{key}={str(value).lower() if value is None else value}" for key, value in defaults.items()]
    assert apply_settings(name, RECIPE, settings)[0] == defaults
    assert set(defaults) == set(option_types(find_method(name)))


def test_no_option_hides_a_field_of_the_recipe():
    names = {key for entry in METHODS.values() for key in option_types(entry)}
    assert names.isdisjoint(field.name for field in fields(Recipe))


def test_every_field_of_the_recipe_can_be_set():
    text = {str: "small-cnn", int: "3", float: "0.5", tuple[int, ...]: "3,4", str | None: "a.safetensors"}
    text[bool] = "true"
    for key, kind in get_type_hints(Recipe).items():
        recipe = apply_settings("fasten", RECIPE, [f"{key}={text[kind]}"])[1]
        assert getattr(recipe, key) == parse(key, text[kind], kind)


def test_an_oracle_is_a_switch():
    assert option_types(find_method("fasten"))["oracle"] is bool
    assert option_defaults(find_method("fasten"))["oracle"] is False
    assert option_defaults(find_method("fasten-oracle"))["oracle"] is True


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(ValueError, match="unknown method 'cross-entrpy'; did you mean 'cross-entropy'"):
        find_method("cross-entrpy")


def test_an_option_without_a_type_is_told():
    class Untyped(nn.Module):
        def __init__(self, backbone, labels, *, num_classes: int, strength=0.1) -> None: ...

    with pytest.raises(
        ValueError, match="the option strength of Untyped has no type; write one, such as strength: float"
    ):
        option_types(Entry(Untyped, "", ""))
