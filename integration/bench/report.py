"""Write what was measured: results.md and, with matplotlib (extra "bench"), plots."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from integration.bench.figures import BASELINES, CPU, PERCENTILES, RATE, Figure, Results, number

PACKAGES = ("gnsq", "gevent", "greenlet", "python-snappy", "requests", "pyspark", "pyarrow")


def machine(server: str) -> str:
    """Return what the figures depend on, as a line."""
    installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    versions = ", ".join(f"{name} {installed[name]}" for name in PACKAGES if name in installed)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}; server: {server}; {os.cpu_count()} cores, {_processor()}, "
        f"{platform.system()} {platform.release()}, {platform.machine()}; "
        f"{platform.python_implementation()} {platform.python_version()}; {versions}."
    )


def _commit() -> str:
    """Return git's name of the commit, with "+" if files are changed; empty outside a clone."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def write(results: Results, machine: str, folder: Path) -> str:
    """Write all files. Returns a sentence that says where."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    tables = markdown(results, machine)
    (folder / "results.md").write_text(tables, encoding="utf-8")
    print(tables)
    try:
        drawn = plots(results, folder)
    except ImportError:
        return f"{folder}/: results.md; no plots, since matplotlib is not installed (extra bench)"
    return f"{folder}/: results.md{''.join(f', {name}' for name in drawn)}"


# --- tables


def markdown(results: Results, machine: str) -> str:
    """Return a heading for each part, and a table for each setting; medians with the smallest and the largest value."""
    lines = [machine, "", "Median (smallest to largest) of all rounds. A ratio is that of the medians.", ""]
    for part in results.parts():
        lines += [f"## {part}", ""]
        for setting in results.settings(part):
            lines += [*table(results, results.of(part, setting)), ""]
    return "\n".join(lines)


def table(results: Results, figures: list[Figure]) -> list[str]:
    """Return the lines of a table with a row for each client, and a column for each quantity."""
    quantities = list(dict.fromkeys((figure.quantity, figure.unit) for figure in figures))
    clients = list(dict.fromkeys(figure.client for figure in figures))
    cells = {(figure.client, figure.quantity): figure for figure in figures}
    if any(quantity == RATE for quantity, _ in quantities) and not any(
        figure.x for figure in figures if figure.part == "curves"
    ):
        clients.sort(key=lambda client: -cells[client, RATE].median if (client, RATE) in cells else 0)
    baselines = [name for name in BASELINES if (name, RATE) in cells]
    head = [figures[0].setting]
    for quantity, unit in quantities:
        head.append(_title(quantity, unit))
        if quantity == RATE:
            head += [f"of {name}" for name in baselines]
    rows = []
    for client in clients:
        row = [client]
        for quantity, _ in quantities:
            figure = cells.get((client, quantity))
            row.append(str(figure) if figure else "")
            if quantity == RATE:
                ratios = [figure and results.ratio(figure, name) for name in baselines]
                row += [number(ratio) if ratio else "" for ratio in ratios]
        rows.append(row)
    return ["| " + " | ".join(each) + " |" for each in [head, ["---"] + ["---:"] * (len(head) - 1), *rows]]


def _title(quantity: str, unit: str) -> str:
    if quantity == RATE:
        return unit
    name = f"{quantity} %" if quantity in PERCENTILES else quantity
    return f"{name}, {unit}" if unit else name


# --- plots


def plots(results: Results, folder: Path) -> list[str]:
    """Draw what was measured. Returns the names of the files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    drawers = {"consume": _plot_clients, "publish": _plot_clients, "latency": _plot_latency, "curves": _plot_curves}
    names = []
    for part in [each for each in drawers if each in results.parts()]:
        figure = drawers[part](results, part)
        figure.savefig(folder / f"{part}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)
        names.append(f"{part}.png")
    return names


def _panels(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)


def _by_client(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.client, []).append(figure)
    return found


def _draw(axes: Any, lines: dict[str, list[Figure]], title: str, x: str, y: str) -> None:
    for label, figures in lines.items():
        own = sorted(figures, key=lambda figure: figure.x or 0.0)
        places, medians = [each.x for each in own], [each.median for each in own]
        below = [each.median - min(each.values) for each in own]
        above = [max(each.values) - each.median for each in own]
        axes.errorbar(places, medians, [below, above], label=label, marker="o", markersize=4, capsize=2)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log")
    if len(lines) > 1:
        axes.legend()


def _plot_clients(results: Results, part: str) -> Any:
    """Draw rate and CPU time of all clients against the setting."""
    x = {"consume": "messages in flight", "publish": "publishes that wait"}[part]
    figure, panels = _panels(1, 2, 5, 4.2)
    for axes, quantity, y in zip(panels[0], (RATE, CPU), ("messages/s", "CPU time, us a message"), strict=True):
        chosen = [each for each in results.figures if (each.part, each.quantity) == (part, quantity)]
        _draw(axes, _by_client(chosen), f"{part}: {y}", x, y)
    return figure


def _plot_latency(results: Results, part: str) -> Any:
    settings = results.settings(part)
    figure, panels = _panels(1, len(settings), 5, 4.2)
    clients = list(dict.fromkeys(each.client for each in results.figures if each.part == part))
    for axes, setting in zip(panels[0], settings, strict=True):
        figures = [each for each in results.of(part, setting) if each.quantity in PERCENTILES]
        for client, own in _by_client(figures).items():
            color = f"C{clients.index(client)}"  # the same in all panels
            places, medians = [f"{each.quantity} %" for each in own], [each.median for each in own]
            axes.plot(places, medians, color, label=client, marker="o")
        axes.set(title=textwrap.fill(setting, 50), xlabel="percentile", ylabel="us", yscale="log")
        axes.legend()
    return figure


def _plot_curves(results: Results, part: str) -> Any:
    settings = results.settings(part)
    figure, panels = _panels((len(settings) + 1) // 2, 2, 5, 3.4)
    for axes, setting in zip(panels.flat, settings, strict=False):
        costs = [each for each in results.of(part, setting) if each.quantity == CPU]
        _draw(axes, {"": costs}, setting, setting.split(",")[0], "CPU time, us a message")
        axes.set_ylim(bottom=min(each.median for each in costs) / 3, top=max(each.median for each in costs) * 3)
    for axes in panels.flat[len(settings) :]:
        axes.set_visible(False)
    return figure
