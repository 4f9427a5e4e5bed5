"""Kills runs at random moments, restarts them, and compares their results.

python results/soak/kills.py --kills 100    writes kills.json and its section in README.md

Each run is a separate process, ended by SIGKILL. It is restarted until it ends by itself. Its files
must then equal those of an undisturbed run, bit for bit apart from times.
"""

import argparse
import dataclasses
import datetime
import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
MARKERS = ("<!-- kills -->", "<!-- /kills -->")

STEPS = 1500

# The probabilities of a kill while Python starts, during the work, and as a file is written.
MOMENTS = {"start": 0.15, "work": 0.45, "write": 0.40}


# --- runs, each in its own process ----------------------------------------------------------------


def run_training(folder: Path, seed: int) -> None:
    """Trains for three hundred blocks, each with a checkpoint."""
    import jax
    import jax.numpy as jnp
    import optax

    from lagrax.training import train

    xs = jnp.linspace(-1, 1, 10)[:, None]

    def loss(model: Any, batch: Any) -> Any:
        x, y = batch
        return jnp.sum((model["weight"] * x + model["bias"] - y) ** 2, axis=-1)

    def make(key: Any) -> Any:
        weight, bias = jax.random.normal(key, (2,))
        return {"weight": weight, "bias": bias}

    train(
        loss,
        make,
        (xs, 3 * xs - 1),
        optax.adam(0.1),
        steps=STEPS,
        seeds=seed,
        batch_size=4,
        block=5,
        evaluate=lambda model, test: {"error": jnp.abs(model["weight"] - test)},
        test_data=jnp.array(3.0),
        folder=folder,
        checkpoint_seconds=0.0,
        progress=False,
    )


def run_sweep(folder: Path, seed: int) -> None:
    """Trains two image classifiers on artificial images, and draws their figures."""
    from reproduction.images import ImageRun, Protocol, sweep

    protocol = Protocol(
        "euler",
        1,
        precision="f32",
        epochs=2,
        batch_size=16,
        images=48,
        test_images=20,
        counted=0,
        checked=False,
    )
    runs = [ImageRun("mnist", "NODE", 10 * seed + i, protocol) for i in range(2)]
    sweep(runs, folder, data=folder.parent / "mnist", progress=False)


def run_answer(folder: Path, seed: int) -> None:
    """Runs `lagrax analyse`, whose answer replaces an earlier one."""
    from lagrax._cli import app as cli

    line = f"analyse population --a 2.{seed + 1} --param a 1.5 2.5 --values 10 --keep 5 --skip 5"
    if cli.run([*line.split(), "--json", "--out", str(folder)]):
        sys.exit(1)


# --- results --------------------------------------------------------------------------------------


def read_files(folder: Path) -> dict[str, bytes]:
    """The content of all files by name, except for the empty lock files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("lock")
    }


def read_training(folder: Path) -> dict[str, Any]:
    from lagrax.training._checkpoints import load_arrays

    found: dict[str, Any] = read_files(folder)
    del found["config.json"]
    for name in [name for name in found if name.endswith(".safetensors")]:
        arrays, about = load_arrays(folder / name)
        found[name] = {k: x.tobytes() for k, x in arrays.items()} | {**about, "seconds": None}
    found["done.json"] = json.loads(found["done.json"]) | {"seconds": None}
    return found


def read_sweep(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_files(folder)
    for name in found:
        if name.startswith("lines/"):
            found[name] = json.loads(found[name]) | {"seconds": None, "versions": None}
        elif name.startswith("runs/"):
            found[name] = None  # The content is no longer needed.
    return found


def read_answer(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_files(folder)
    other = {"seconds": None, "date": None, "machine": None}
    found["summary.json"] = json.loads(found["summary.json"]) | other
    found["beside"] = sorted(path.name for path in folder.parent.glob(".*.part"))
    return found


class Kind(NamedTuple):
    """A kind of run.

    - `run(folder, seed)`: the work of the process.
    - `read(folder)`: its results, without times.
    - `grows`: patterns of files, relative to the folder, that change once the work has begun.
    - `share`: the fraction of all kills.
    """

    run: Callable[[Path, int], None]
    read: Callable[[Path], dict[str, Any]]
    grows: tuple[str, ...]
    share: float


KINDS = {
    "training": Kind(run_training, read_training, ("checkpoints/step-*",), 0.76),
    "sweep": Kind(run_sweep, read_sweep, ("runs/*", "runs/*/metrics.jsonl", "lines/*"), 0.12),
    "answer": Kind(run_answer, read_answer, ("../.*.part",), 0.12),
}


# --- killing --------------------------------------------------------------------------------------


class Kill(NamedTuple):
    """The moment of a kill, the lines of metrics at that time, and whether it left an unfinished
    file."""

    kind: str
    moment: str
    lines: int
    write: bool


@dataclasses.dataclass
class Undisturbed:
    """The results of a run, and its seconds until the work begins and until it ends."""

    results: dict[str, Any]
    begin: float
    end: float


def start(kind: str, folder: Path, seed: int) -> subprocess.Popen:
    command = [sys.executable, __file__, "--run", kind, "--seed", str(seed), str(folder)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name("stderr.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)


def take_snapshot(kind: str, folder: Path) -> set[tuple[str, int, int]]:
    """Names, sizes and times of the files that change once the work has begun."""
    found = set()
    for pattern in KINDS[kind].grows:
        place, pattern = (folder.parent, pattern[3:]) if pattern[:2] == ".." else (folder, pattern)
        for path in place.glob(pattern):
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            found.add((str(path), about.st_size, about.st_mtime_ns))
    return found


def find_unfinished(folder: Path) -> set[Path]:
    return {*folder.rglob(".*.part"), *folder.parent.glob(f".{folder.name}.*.part")}


def wait_for(process: subprocess.Popen, happens: Callable[[], Any]) -> None:
    while process.poll() is None and not happens():
        time.sleep(0.001)


def run_undisturbed(kind: str, folder: Path, seed: int) -> Undisturbed:
    before, began = take_snapshot(kind, folder), time.monotonic()
    process = start(kind, folder, seed)
    wait_for(process, lambda: take_snapshot(kind, folder) != before)
    begin = time.monotonic() - began
    if process.wait():
        sys.exit(f"The undisturbed {kind} of seed {seed} failed: see {folder}")
    return Undisturbed(KINDS[kind].read(folder), begin, time.monotonic() - began)


def kill(kind: str, folder: Path, seed: int, like: Undisturbed, rng: random.Random) -> Kill | None:
    """Starts a run and kills it. Returns None if the run ended first."""
    (moment,) = rng.choices(list(MOMENTS), list(MOMENTS.values()))
    before, unfinished_before = take_snapshot(kind, folder), find_unfinished(folder)
    process = start(kind, folder, seed)
    if moment == "start":
        time.sleep(rng.uniform(0, like.begin))
    else:
        wait_for(process, lambda: take_snapshot(kind, folder) != before)
        # After a small part of the work, so a run takes many kills.
        time.sleep(rng.uniform(0, (like.end - like.begin) / 6))
        if moment == "write":
            wait_for(process, lambda: find_unfinished(folder) - unfinished_before)
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        return None
    metrics = max(folder.rglob("metrics.jsonl"), key=lambda p: p.stat().st_mtime, default=None)
    content = metrics.read_bytes() if metrics else b""
    write = bool(find_unfinished(folder) - unfinished_before)
    return Kill(kind, moment, content.count(b"\n"), write)


def survive(
    kind: str, folder: Path, seed: int, rng: random.Random, kills: int
) -> tuple[list[Kill], bool]:
    """Kills a run up to `kills` times and lets it end. Returns the kills, and whether its results
    equal those of an undisturbed run."""
    folder.mkdir(parents=True)
    place, reference = folder / kind, folder / "undisturbed" / kind
    if kind == "sweep":
        write_images(folder / "mnist")
        write_images(reference.parent / "mnist")
    like = run_undisturbed(kind, reference, seed)
    if kind == "answer":
        # An answer that this one replaces.
        run_undisturbed(kind, place, seed + 1)
    hits: list[Kill] = []
    while len(hits) < kills:
        hit = kill(kind, place, seed, like, rng)
        if hit is None:
            break
        hits.append(hit)
    if start(kind, place, seed).wait():
        return hits, False
    return hits, KINDS[kind].read(place) == like.results


def write_images(folder: Path) -> None:
    """Writes files in the format of MNIST, with black images and labels 0 to 9 in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 60000), ("t10k", 10000)):
        images = struct.pack(">4I", 0x803, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count))
        for what, content in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{name}-{what}-ubyte.gz"
            path.write_bytes(gzip.compress(content, 1))


# --- the soak -------------------------------------------------------------------------------------


def soak(kills: int, seed: int) -> dict[str, Any]:
    """Runs each kind until it has had its share of the kills."""
    rng, began = random.Random(seed), time.monotonic()
    found: dict[str, Any] = {}
    for kind, about in KINDS.items():
        hits: list[Kill] = []
        runs, same = 0, 0
        while len(hits) < about.share * kills:
            work = Path(tempfile.mkdtemp(prefix="lagrax-soak-"))
            most = int(about.share * kills + 0.999) - len(hits)
            new, ended_the_same = survive(kind, work / "run", runs, rng, min(most, 20))
            runs, same, hits = runs + 1, same + ended_the_same, hits + new
            print(f"{kind}: {len(hits)} kills, {same} of {runs} runs ended the same", flush=True)
            if ended_the_same:
                shutil.rmtree(work)
            else:
                print(f"  see {work}")
        found[kind] = summarise(hits, runs, same)
    total = {name: sum(k[name] for k in found.values()) for name in ("kills", "runs", "same")}
    from lagrax.training import _machine

    machine = _machine.describe()
    about = {name: machine[name] for name in ("python", "device", "cores", "system")}
    return total | {
        "kinds": found,
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": about | {name: machine["versions"][name] for name in ("lagrax", "jax")},
    }


def summarise(hits: list[Kill], runs: int, same: int) -> dict[str, Any]:
    """Counts the runs and kills of a kind. `steps` counts kills by the steps done before."""
    steps = Counter(hit.lines // 300 * 300 for hit in hits if hit.kind == "training")
    return {
        "runs": runs,
        "same": same,
        "kills": len(hits),
        "moments": dict(sorted(Counter(hit.moment for hit in hits).items())),
        "in a write": sum(hit.write for hit in hits),
    } | ({"steps": {format_span(n): steps[n] for n in sorted(steps)}} if steps else {})


def format_span(first: int) -> str:
    return "all of them" if first == STEPS else f"{first} to {first + 299}"


def format_section(found: dict[str, Any]) -> str:
    """The section of README.md."""
    rows = [
        f"| {name} | {k['runs']} | {k['kills']} | {k['runs'] + k['kills']} | "
        f"{k['moments'].get('start', 0)} | {k['in a write']} | {k['same']} |"
        for name, k in found["kinds"].items()
    ]
    steps = found["kinds"]["training"]["steps"]
    where = ", ".join(f"{count} after {between}" for between, count in steps.items())
    machine = found["machine"]
    return "\n".join(
        [
            "## Kills",
            "",
            "Written by `results/soak/kills.py` from `kills.json`; do not edit. Runs are ended by "
            "`kill -9`, many of them while they write a file, and restarted until they end by "
            "themselves. With the same end, parameters, metrics, lines and answers equal those of "
            "an undisturbed run bit for bit, and no other file remains.",
            "",
            f"{found['kills']} kills of {found['runs']} runs; {found['same']} ended with exactly "
            f"the undisturbed result. {found['date']}, {found['seconds']} s, lagrax "
            f"{machine['lagrax']}, jax {machine['jax']}, {machine['device']}.",
            "",
            "| kind | runs | kills | starts | as Python starts | in a write | the same end |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"Kills of a training of {STEPS} steps, by the steps done before: {where}.",
        ]
    )


def replace_section(page: str, found: dict[str, Any]) -> str:
    first, last = MARKERS
    if first not in page:
        page = f"{page.rstrip()}\n\n{first}\n{last}\n".lstrip()
    before, _, rest = page.partition(first)
    _, _, after = rest.partition(last)
    return f"{before}{first}\n\n{format_section(found)}\n\n{last}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="minimum number of kills (100)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the moments")
    parser.add_argument("--run", choices=KINDS, help="kind of a single undisturbed run")
    parser.add_argument("folder", nargs="?", type=Path, help="folder of that run")
    options = parser.parse_args()
    if options.run:
        KINDS[options.run].run(options.folder, options.seed)
        return 0
    found = soak(options.kills, options.seed)
    (HERE / "kills.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    page = HERE / "README.md"
    before = page.read_text(encoding="utf-8") if page.exists() else "# Long tests\n"
    page.write_text(replace_section(before, found), encoding="utf-8")
    return 0 if found["same"] == found["runs"] else 1


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.exit(main())
