"""Write what was measured: results.md and, with matplotlib (extra "bench"), plots."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from integration.bench.figures import BASELINES, CPU, PERCENTILES, RATE, Figure, Results, number

PACKAGES = ("gnsq", "gevent", "greenlet", "python-snappy", "requests", "pyspark", "pyarrow")


def machine(server: str, seconds: float) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "server": server,
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "load": [round(each, 2) for each in os.getloadavg()],
        "seconds": round(seconds),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def write(results: Results, machine: dict[str, Any], folder: Path) -> str:
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


def markdown(results: Results, machine: dict[str, Any]) -> str:
    """Return a heading for each part, and a table for each setting; medians with the smallest and the largest value."""
    known = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"{machine['date']}, commit {machine['commit']}; server: {machine['server']}; {machine['cores']} cores,"
        f" {machine['processor']}, {machine['system']}; {machine['python']}; {known}.",
        "",
        "Median (smallest to largest) of all rounds. A ratio is that of the medians.",
        "",
    ]
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

Lines = dict[str, list[tuple[float, Figure]]]


def plots(results: Results, folder: Path) -> list[str]:
    """Draw what was measured. Returns the names of the files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "gnsq"})
    drawn = [
        _plot_clients(results, folder, "consume", "messages in flight"),
        _plot_clients(results, folder, "publish", "publishes that wait"),
        _plot_latency(results, folder),
        _plot_curves(results, folder),
    ]
    return [name for name in drawn if name]


def _lines(results: Results, chosen: Callable[[Figure], bool]) -> Lines:
    found: Lines = {}
    for figure in results.figures:
        if figure.x is not None and chosen(figure):
            found.setdefault(figure.client, []).append((figure.x, figure))
    return found


def _draw(axes: Any, lines: Lines, title: str, x: str, y: str) -> None:
    for client, points in lines.items():
        points.sort(key=lambda point: point[0])
        places, medians = [place for place, _ in points], [figure.median for _, figure in points]
        below = [figure.median - min(figure.values) for _, figure in points]
        above = [max(figure.values) - figure.median for _, figure in points]
        axes.errorbar(places, medians, [below, above], label=client, marker="o", markersize=4, capsize=2)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log")
    if len(lines) > 1:
        axes.legend()


def _plot_clients(results: Results, folder: Path, part: str, x: str) -> str | None:
    """Draw rate and CPU time of all clients against the setting."""
    import matplotlib.pyplot as plt

    if part not in results.parts():
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for axes, quantity, y in ((left, RATE, "messages/s"), (right, CPU, "CPU time, us a message")):
        chosen = _lines(results, lambda each, quantity=quantity: (each.part, each.quantity) == (part, quantity))
        _draw(axes, chosen, f"{part}: {y}", x, y)
    return _save(figure, folder, f"{part}.png")


def _plot_latency(results: Results, folder: Path) -> str | None:
    import matplotlib.pyplot as plt

    settings = results.settings("latency")
    if not settings:
        return None
    figure, panels = plt.subplots(
        1, len(settings), figsize=(5 * len(settings), 4.2), layout="constrained", squeeze=False
    )
    clients = list(dict.fromkeys(each.client for each in results.figures if each.part == "latency"))
    for axes, setting in zip(panels[0], settings, strict=True):
        figures = [each for each in results.of("latency", setting) if each.quantity in PERCENTILES]
        for client in dict.fromkeys(each.client for each in figures):
            own = [each for each in figures if each.client == client]
            color = f"C{clients.index(client)}"  # the same in all panels
            places, medians = [f"{each.quantity} %" for each in own], [each.median for each in own]
            axes.plot(places, medians, color, label=client, marker="o")
        axes.set(title=textwrap.fill(setting, 50), xlabel="percentile", ylabel="us", yscale="log")
        axes.legend()
    return _save(figure, folder, "latency.png")


def _plot_curves(results: Results, folder: Path) -> str | None:
    import matplotlib.pyplot as plt

    settings = results.settings("curves")
    if not settings:
        return None
    figure, panels = plt.subplots(
        (len(settings) + 1) // 2, 2, figsize=(10, 3.4 * ((len(settings) + 1) // 2)), layout="constrained", squeeze=False
    )
    for axes, setting in zip(panels.flat, settings, strict=False):
        costs = [each for each in results.of("curves", setting) if each.quantity == CPU]
        _draw(
            axes,
            {"": [(each.x or 0.0, each) for each in costs]},
            setting,
            setting.split(",")[0],
            "CPU time, us a message",
        )
        axes.set_ylim(bottom=min(each.median for each in costs) / 3, top=max(each.median for each in costs) * 3)
    for axes in panels.flat[len(settings) :]:
        axes.set_visible(False)
    return _save(figure, folder, "curves.png")


def _save(figure: Any, folder: Path, name: str) -> str:
    import matplotlib.pyplot as plt

    figure.savefig(folder / name, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return name
