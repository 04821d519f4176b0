# SPDX-License-Identifier: Apache-2.0
"""The page of `make demo`: models trained by processes over links, plain DDP against each codec."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

from report_decisions import decisions_panel
from report_page import (
    SAME,
    Palette,
    bar_chart,
    byte_text,
    capitalize,
    definitions,
    drawing,
    escape,
    legend,
    number,
    seconds_text,
    table,
    whole_page,
)
from report_plots import LinearPlot

Document = dict[str, Any]
Run = dict[str, Any]

STAGES = ("encode", "agree", "reduce", "decode")
NEARLY = 0.01  # a loss this close to another is as good

HOW_TO_READ = {
    "step": "Median time of a step (forward, backward with all-reduce, optimizer), without the "
    "first steps. Faster: that of ddp over this one.",
    "exposed": "Communication that computing does not hide: forward and backward as trained, "
    "minus forward and backward of some of the same batches under no_sync(). The codec's work and "
    "waiting for a slower worker count as communication. Part of the step.",
    "to the engine": "Bytes that one worker hands to the all-reduce in a step; the ratio is ddp's "
    "over these. A ring all-reduce of n workers sends 2 (n - 1) / n times as much.",
    "on the link": "Bytes that one worker's network interface sent in a step, headers included, as "
    "the kernel counts them.",
    "loss": "Mean over the last tenth of the steps. Same as ddp: the largest relative difference "
    "between the two loss curves.",
    "time to loss": "Training time until the mean loss of a tenth of the steps is within 1 % of "
    "what ddp's was at its end.",
    "ddp": "DistributedDataParallel as it comes: a dense all-reduce, no hook.",
    "adaptive": "Chooses for each bucket and window of ten steps among dense, exact, quant, cast, "
    "lowrank and topk (docs/adaptive.md); its first steps are dense, and count.",
    "torch:": "DistributedDataParallel with a communication hook of torch's own; PowerSGD with one "
    "bucket, because with several it may hang on Gloo.",
}


def baseline(document: Document, model: Document) -> Run:
    return next(run for run in model["runs"] if run["codec"] == document["baseline"])


def speedup(run: Run, ddp: Run) -> float:
    return float(ddp["median_step_s"] / run["median_step_s"])


def tenth(run: Run) -> int:
    return max(1, len(run["losses"]) // 10)


def final_loss(run: Run) -> float:
    return statistics.fmean(run["losses"][-tenth(run) :])


def seconds_to_loss(run: Run, target: float) -> float | None:
    """Training time until the mean of a tenth of the steps is `target` or nearly; None if never."""
    window = tenth(run)
    for end in range(window, len(run["losses"]) + 1):
        if statistics.fmean(run["losses"][end - window : end]) <= target * (1 + NEARLY):
            return float(sum(run["step_s"][:end]))
    return None


def same_loss_text(run: Run) -> str:
    difference = run.get("loss_difference")
    if difference is None:
        return "lossy"
    return "the same bits" if difference == 0 else f"within {difference:.0e}"


def summary_row(model: Document, run: Run, ddp: Run) -> str:
    plain = run is ddp
    cells = [
        seconds_text(run["median_step_s"]),
        "" if plain else f"{speedup(run, ddp):.2f}x",
        seconds_text(run["exposed_s"]),
        byte_text(run["wire_bytes"]),
        "" if plain else f"{number(ddp['wire_bytes'] / run['wire_bytes'])}x",
        byte_text(run["link_bytes"]) if run["link_bytes"] is not None else "not seen",
        f"{final_loss(run):.4g}",
        "" if plain else same_loss_text(run),
        arrival_text(run, final_loss(ddp)),
        f"{run['score']:.3g}",
    ]
    name = model["name"] if plain else ""
    css = "text" if run["replicas_identical"] else "text bad"
    same = "same bits" if run["replicas_identical"] else "DIFFER"
    return (
        f'<tr><td class="text">{escape(name)}</td><td class="text">{escape(run["codec"])}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + f'<td class="{css}">{same}</td></tr>'
    )


def summary(document: Document) -> str:
    heads = ["model", "codec", "step", "faster", "exposed", "to the engine", "ratio", "on the link"]
    heads += ["loss", "same as ddp", "time to loss", "score", "replicas"]
    rows = [
        summary_row(model, run, baseline(document, model))
        for model in document["models"]
        for run in model["runs"]
    ]
    return table(heads, rows, text_heads=("model", "codec", "replicas"))


def counts_itself(run: Run) -> bool:
    """Whether it is a codec's: torch and its own hooks say nothing about their stages."""
    return "time/encode_s" in run["metrics"]


def codec_seconds(run: Run) -> float:
    """A step's time in encode and decode on worker 0, whether or not computing hides it."""
    metrics = run["metrics"]
    work = metrics["time/encode_s"] + metrics["time/decode_s"]
    return float(work / len(run["losses"]))


def saved_bytes(run: Run, ddp: Run, workers: int) -> float:
    """What a ring of workers has less to send, each of them in a step."""
    return float((ddp["wire_bytes"] - run["wire_bytes"]) * 2 * (workers - 1) / workers)


def break_even_gbit(run: Run, ddp: Run, workers: int) -> float:
    """Link speed on which the saved bytes take as long as the codec does."""
    return saved_bytes(run, ddp, workers) * 8e-9 / codec_seconds(run)


def judgement(run: Run, ddp: Run, document: Document) -> str:
    """Whether the codec paid, in words."""
    gain, ratio = speedup(run, ddp), ddp["wire_bytes"] / run["wire_bytes"]
    if gain > 1 + SAME:
        words = f"pays: steps are {number(gain)} times as fast, bytes {number(ratio)} times fewer."
    elif gain >= 1 - SAME:
        words = "neither pays nor costs: steps take as long as plain DDP's."
    else:
        words = f"does not pay: steps take {number(1 / gain)} times as long as plain DDP's."
    if ratio < 1 + SAME:
        return words + " There is nothing to save: these gradients have hardly any zeros."
    return words + " " + costs(run, ddp, document) if counts_itself(run) else words


def costs(run: Run, ddp: Run, document: Document) -> str:
    """What the codec takes, against what its saved bytes take on this link and on faster ones."""
    limit = break_even_gbit(run, ddp, document["workers"])
    words = f"It spends {seconds_text(codec_seconds(run))} a step in the codec"
    if document["gbit"] is None:
        words += "; nothing limits these links, so saved bytes are hardly any saved time"
    else:
        saved_s = saved_bytes(run, ddp, document["workers"]) * 8e-9 / document["gbit"]
        words += f"; on this link the saved bytes take {seconds_text(saved_s)}"
    return f"{words}, and on links above {number(limit)} Gbit/s less than the codec (estimate)."


def where_it_paid(document: Document) -> str:
    """One line for the whole page, so that what does not pay is not left to be found."""
    paid: list[str] = []
    not_paid: list[str] = []
    for model in document["models"]:
        ddp = baseline(document, model)
        for run in model["runs"]:
            name = f"{run['codec']} on {model['name']}"
            if run is not ddp:
                (paid if speedup(run, ddp) > 1 + SAME else not_paid).append(name)
    return (
        f"<p><b>Compression pays</b> here for: {escape('; '.join(paid) or 'nothing')}. "
        f"<b>It does not pay</b> for: {escape('; '.join(not_paid) or 'nothing')}.</p>"
    )


def judgements(document: Document, model: Document) -> str:
    ddp = baseline(document, model)
    items = (
        f"<li><b>{escape(run['codec'])}</b> {escape(judgement(run, ddp, document))}"
        f"{escape(loss_sentence(run, ddp))}</li>"
        for run in model["runs"]
        if run is not ddp
    )
    return f"<ul>{''.join(items)}</ul>"


def loss_sentence(run: Run, ddp: Run) -> str:
    if run.get("loss_difference") is not None:
        return f" Losses {same_loss_text(run)} of plain DDP's, step for step."
    return (
        f" Lossy: it ends at a loss of {final_loss(run):.4g}, plain DDP at {final_loss(ddp):.4g}."
    )


def loss_plot(title: str, runs: list[Run], xs: list[list[float]], palette: Palette) -> str:
    """Loss curves; the first is drawn wide and pale, so that those on top of it show."""
    losses = [loss for run in runs for loss in run["losses"] if math.isfinite(loss)]
    low, high = min(losses, default=0.0), max(losses, default=1.0)
    margin = 0.04 * (high - low) or 1.0
    plot = LinearPlot((0.0, max(x[-1] for x in xs)), (low - margin, high + margin))
    curves: list[str] = []
    for run, x in zip(runs, xs):
        finite = [(a, b) for a, b in zip(x, run["losses"]) if math.isfinite(b)]
        points = plot.points([a for a, _ in finite], [b for _, b in finite])
        style = 'stroke-width="1.6"' if curves else 'stroke-width="6" opacity="0.4"'
        curves.append(
            f'<polyline points="{points}" stroke="{palette[run["codec"]]}" {style}>'
            f"<title>{escape(run['codec'])}</title></polyline>"
        )
    # The first lies below all others, the second above.
    svg = drawing(plot.width, plot.height, title, plot.axes() + curves[0] + "".join(curves[:0:-1]))
    return f'<div class="panel"><h3>{escape(title)}</h3>{svg}{legend(runs, palette)}</div>'


def bars(runs: list[Run], target: float, palette: Palette) -> str:
    step = bar_chart(
        "Step time; pale: exposed communication",
        runs,
        lambda r: float(r["median_step_s"]),
        lambda r: seconds_text(r["median_step_s"]),
        palette,
        pale=lambda r: max(0.0, r["exposed_s"]),
    )
    wire = bar_chart(
        "Bytes to the engine, one worker and step",
        runs,
        lambda r: float(r["wire_bytes"]),
        lambda r: byte_text(r["wire_bytes"]),
        palette,
    )
    arrival = bar_chart(
        "Time to the loss that ddp ended with",
        runs,
        lambda r: seconds_to_loss(r, target) or 0.0,
        lambda r: arrival_text(r, target),
        palette,
    )
    return f'<div class="grid">{step}{wire}{arrival}</div>'


def arrival_text(run: Run, target: float) -> str:
    seconds = seconds_to_loss(run, target)
    return "not reached" if seconds is None else seconds_text(seconds)


def inside_table(runs: list[Run]) -> str:
    """What the codecs say about themselves."""
    rows = []
    for run in runs:
        metrics, steps = run["metrics"], len(run["losses"])
        fallbacks = [f"{k[9:]} x{v:g}" for k, v in metrics.items() if k.startswith("fallback/")]
        modes = [f"{k[5:]} x{v:g}" for k, v in metrics.items() if k.startswith("mode/")]
        times = [metrics[f"time/{stage}_s"] / steps for stage in STAGES]
        cells = [*map(seconds_text, times), f"{100 * metrics['union_density']:.3g} %"]
        cells.append(f"{metrics['nmse']:.2g}" if metrics["nmse"] else "-")
        rows.append(
            f'<tr><td class="text">{escape(run["codec"])}</td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + f'<td class="text wrap">{escape(", ".join(modes) or "-")}</td>'
            + f'<td class="text wrap">{escape(", ".join(fallbacks) or "-")}</td></tr>'
        )
    heads = ("codec", *STAGES, "union density", "nmse", "ran", "fallbacks")
    return (
        '<div class="panel wide"><h3>Inside the codec, worker 0: time a step in each stage '
        "(agree: until all are there; buckets overlap), and buckets by mode</h3>"
        f"{table(heads, rows, text_heads=('codec', 'ran', 'fallbacks'))}</div>"
    )


def model_section(document: Document, model: Document, palette: Palette) -> str:
    runs, ddp = model["runs"], baseline(document, model)
    steps = [[float(i + 1) for i in range(len(run["losses"]))] for run in runs]
    times = [list(itertools.accumulate(run["step_s"])) for run in runs]
    compressed = [run for run in runs if counts_itself(run)]
    size = f"{model['parameters'] / 1e6:.2f} million parameters, {byte_text(model['dense_bytes'])}"
    return (
        f"<h2>{escape(capitalize(model['name']))}</h2>"
        f'<p class="soft">{escape(capitalize(model["description"]))}; {size}. '
        f"Score: {escape(model['score'])}.</p>{judgements(document, model)}"
        f'{bars(runs, final_loss(ddp), palette)}<div class="grid halves">'
        f"{loss_plot('Loss over steps', runs, steps, palette)}"
        f"{loss_plot('Loss over training time in seconds', runs, times, palette)}"
        f"{inside_table(compressed) if compressed else ''}"
        f"{''.join(decisions_panel(run) for run in runs if run.get('decisions') is not None)}</div>"
    )


def verdict(document: Document) -> str:
    failed = [check for check in document["checks"] if not check["passed"]]
    if failed:
        items = "".join(f"<li>{escape(c['claim'])}: {escape(c['detail'])}</li>" for c in failed)
        return f'<p class="bad">Failed:</p><ul class="bad">{items}</ul>'
    differences = [
        run["loss_difference"]
        for model in document["models"]
        for run in model["runs"]
        if run.get("loss_difference") is not None and run["codec"] != document["baseline"]
    ]
    words = "<p>All workers ended with the same parameters, bit for bit, in every run."
    if differences:
        words += (
            " Lossless codecs trained as plain DDP did: no loss of any step differs by more than "
            f"{max(differences):.0e} of itself."
        )
    return words + "</p>"


def machine_section(document: Document) -> str:
    machine = document["machine"]
    entries = {
        "run": f"{document['workers']} workers, a process with one thread each, all on this "
        f"machine; {document['network']}; seed {document['seed']}",
        "processor": f"{machine['cpu']}, {machine['cores']} usable cores",
        "memory": byte_text(machine["memory_bytes"]),
        "software": f"{machine['kernel']}, Python {machine['python']}, torch {machine['torch']}, "
        f"addend {machine['addend']}",
    }
    return f"<h2>Machine and run</h2>{definitions(entries)}"


def render(document: Document) -> str:
    palette = Palette(run["codec"] for model in document["models"] for run in model["runs"])
    sections = "".join(model_section(document, model, palette) for model in document["models"])
    return whole_page(
        "Addend demo",
        "<h1>Training with gradients that add while compressed</h1>"
        f'<p class="soft">{document["workers"]} workers train the same models with '
        "DistributedDataParallel over Gloo: plain, and with each codec, from the same start on the "
        f"same batches; {escape(document['network'])}.</p>"
        f"{verdict(document)}{where_it_paid(document)}{summary(document)}{sections}"
        f"<h2>How to read this</h2>{definitions(HOW_TO_READ)}{machine_section(document)}",
    )
