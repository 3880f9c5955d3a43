"""Commands that show what is available, and how fast it is: methods, datasets, bench."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

from fasten.commands.arguments import Device, Json, name, number, text


def methods(as_json: Json = False) -> None:
    """List the methods, what each needs, and its options.

    \b
    Example:
      fasten methods --json
    """
    from fasten.commands import console
    from fasten.contract import Recipe
    from fasten.methods import METHODS

    rows = [_describe(method) for method in METHODS]
    if as_json:
        print(json.dumps(rows))
    else:
        console.show_methods(rows, [*asdict(Recipe())])


def _describe(method: str) -> dict[str, Any]:
    from fasten.options import find_method, option_defaults

    entry = find_method(method)
    needs = ("clean_set", "true_transition", "images", "stages", "networks", "backprops")
    values = {"name": method, "family": entry.family, "about": entry.about}
    defaults = option_defaults(entry)
    return values | {key: getattr(entry, key) for key in needs} | {"options": [*defaults], "defaults": defaults}


def datasets(as_json: Json = False) -> None:
    """List the known data sets.

    \b
    Example:
      fasten datasets
    """
    from fasten.commands import console
    from fasten.datasets import DATASETS

    rows = []
    for key, dataset in DATASETS.items():
        sizes = {"clean": dataset.num_clean, "valid": dataset.num_valid}
        own = "its own" if dataset.given else "injected by --noise"
        rows.append({"name": key, "about": dataset.about, **sizes, "labels": own, "recipe": asdict(dataset.recipe)})
    if as_json:
        print(json.dumps(rows))
    else:
        shown = [[r[key] for key in ("name", "about", "clean", "valid", "labels")] for r in rows]
        console.show_table(["data set", "what it holds", "clean", "valid", "noisy labels"], shown)


def bench(
    names: Annotated[str, name("--methods", "Method names, separated by commas, or `all`.")] = "fasten,cross-entropy",
    device: Device = "auto",
    net: Annotated[str | None, name("--net", "The network; by default small-cnn on a CPU, resnet34 on a GPU.")] = None,
    size: Annotated[
        int | None, number("--size", 2, "Width and height of the images; by default 8 on a CPU, 32 on a GPU.")
    ] = None,
    batch: Annotated[int, number("--batch", 2, "Noisy rows in an update; there are as many clean ones.")] = 100,
    rounds: Annotated[int, number("--rounds", 1, "How often each method is timed; the methods take turns.")] = 15,
    updates: Annotated[int, number("--updates", 1, "Updates in a round.")] = 20,
    kernels: Annotated[str, name("--kernels", "On a GPU: auto, plain, fused, overlapped or compiled.")] = "auto",
    settings: Annotated[
        list[str] | None, text("--set", "KEY=VALUE", "An option, for the methods that have it; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time an update of each method against cross-entropy.

    The stages of all methods are timed in turns, in one process, on the same
    images. From these times follows how long a run of the paper's length takes,
    relative to FasTEN's.

    \b
    Examples:
      fasten bench
      fasten bench --methods all --device cuda --kernels compiled
      fasten bench --methods mw-net --set route=graph
    """
    from fasten.bench import bench as time_methods
    from fasten.bench import image_task, run_ratios, with_kernels
    from fasten.commands import console
    from fasten.contract import Recipe
    from fasten.grid.compare import read_methods
    from fasten.machine import choose_machine
    from fasten.records import Run

    machine = with_kernels(choose_machine(device), kernels)
    on_gpu = machine.device.type == "cuda"
    recipe = Recipe(net or ("resnet34" if on_gpu else "small-cnn"), batch_size=batch)
    wanted = read_methods(names)
    pixels = size or (32 if on_gpu else 8)
    task = image_task(pixels)
    lines = time_methods(Run("bench", recipe=recipe), task, machine, wanted, rounds, updates, settings or ())
    if as_json:
        values = {"device": machine.name, "kernels": machine.kernels, "settings": settings or []}
        timed = {"net": recipe.net, "size": pixels, "batch": batch, "rounds": rounds}
        timings = {"methods": [asdict(line) for line in lines], "run_ratios": run_ratios(lines)}
        print(json.dumps({**values, **timed, **timings}))
    else:
        console.show_bench(lines, machine.name, recipe.net)
