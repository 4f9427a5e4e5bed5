"""What does `hold(history)` save?

One training step (value and gradient, jitted, Tsit5 with equal steps, float32), with a field that
is split in `hold(history)` and `__call__`, and with the same field joining its history to the state
at every evaluation. Two cores of an AMD EPYC, not otherwise idle; Python 3.11, JAX 0.10.2. Medians
of 60 repeats in one run, in which the two forms take turns; the ratio is the median of the ratios,
repeat by repeat, and is to be trusted more than the milliseconds.

    model                             gradient        split     joined    joined / split
    population, 2-10-10-1, batch 100  Direct         3.6 ms     4.1 ms    1.10
                                      Checkpointed   4.0 ms     4.4 ms    1.09
    wide, 192-128-128-32, batch 256   Direct         136 ms     203 ms    1.50
                                      Checkpointed    97 ms     162 ms    1.66

So: a tenth for one held number, where the first layer is hardly any of the work, and a third or
more of the step for five held states of 32. An earlier run gave 1.13, 1.15, 1.50 and 1.67. For
convolutions on a GPU the answer is another one, see NOTES.md. results/hold_split.json has all rows.

Run it with `python benchmarks/hold_split.py` (a minute); it prints the table and writes the rows.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

import lagrax
from lagrax.nn import MLP

QUESTION = "What does hold(history) save in a training step?"
RESULTS = Path(__file__).parent / "results" / "hold_split.json"
WAYS = {"Direct": lagrax.Direct(), "Checkpointed": lagrax.Checkpointed()}


@dataclass(frozen=True)
class Size:
    """A model and its data; the solver is Tsit5, `steps` equal steps in each interval."""

    channels: int
    history: int
    widths: tuple[int, ...]
    batch: int
    intervals: int
    steps: int
    use_bias: bool
    calls: int  # in one timing, so that it lasts some ten milliseconds


SIZES = {
    "population": Size(1, 1, (10, 10), 100, 3, 10, False, 10),
    "wide": Size(32, 5, (128, 128), 256, 5, 4, True, 1),
}


class Concatenated(eqx.Module):
    """The same network without `hold`: its arguments are joined at every evaluation."""

    mlp: MLP

    def __call__(self, t, y, args, *, history):
        x = jnp.concatenate([y, *history], axis=-1)
        first, *others = self.mlp.layers
        x = first(x)
        for layer in others:
            x = layer(self.mlp.design.activation(x))
        return x


def make_step(size: Size, gradient):
    """Value and gradient of a mean square at the knots, as training computes them."""

    def loss(field, y0, target):
        sol = lagrax.solve(
            field,
            0.0,
            float(size.intervals),
            y0,
            delays=lagrax.holds(1.0, size.history),
            steps=size.steps,
            gradient=gradient,
            throw=False,
        )
        return jnp.mean((sol.knots.ys - target) ** 2)

    return eqx.filter_jit(eqx.filter_value_and_grad(loss))


def seconds(step, *arguments, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        answer = step(*arguments)
    jax.block_until_ready(answer)
    return (time.perf_counter() - start) / calls


def compare(name: str, way: str, repeats: int) -> dict:
    size = SIZES[name]
    mkey, ykey, tkey = jax.random.split(jax.random.key(0), 3)
    mlp = MLP(size.channels, size.widths, history=size.history, use_bias=size.use_bias, key=mkey)
    data = (
        jax.random.normal(ykey, (size.batch, size.channels)),
        jax.random.normal(tkey, (size.intervals + 1, size.batch, size.channels)),
    )
    step = make_step(size, WAYS[way])
    split, joined = (step, mlp, *data), (step, Concatenated(mlp), *data)
    check_equal(step(mlp, *data), step(Concatenated(mlp), *data))
    times = {"split": [], "joined": []}
    # Alternating, so that whatever else the machine does meets both alike.
    for i in range(repeats):
        pair = [("split", split), ("joined", joined)]
        for form, arguments in pair if i % 2 == 0 else reversed(pair):
            times[form].append(seconds(*arguments, calls=size.calls))
    ratios = [j / s for j, s in zip(times["joined"], times["split"], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "gradient": way,
        "split_ms": round(1e3 * statistics.median(times["split"]), 3),
        "joined_ms": round(1e3 * statistics.median(times["joined"]), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
        "repeats": repeats,
        "calls_a_repeat": size.calls,
    }


def check_equal(split, joined) -> None:
    """Both forms are one function: a comparison of different ones would say nothing."""
    pairs = zip(jax.tree.leaves(split), jax.tree.leaves(joined), strict=True)
    for a, b in pairs:
        if not jnp.allclose(a, b, rtol=1e-3, atol=1e-5):
            raise AssertionError(f"the forms differ by {jnp.max(jnp.abs(a - b))}")


def hardware() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(models),
        "device": jax.devices()[0].device_kind,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    print(f"{'model':12} {'gradient':13} {'split':>9} {'joined':>9}  joined / split (quartiles)")
    for name in SIZES:
        for way in WAYS:
            row = compare(name, way, options.repeats)
            rows.append(row)
            print(
                f"{name:12} {way:13} {row['split_ms']:6.2f} ms {row['joined_ms']:6.2f} ms  "
                f"{row['ratio']:.2f} ({row['ratio_quartiles'][0]:.2f} to "
                f"{row['ratio_quartiles'][1]:.2f})",
                flush=True,
            )
    goals = [
        {
            "name": f"joined / split, wide, {row['gradient']}",
            "value": row["ratio"],
            "goal": ">= 1.0",
            "met": row["ratio"] >= 1.0,
        }
        for row in rows
        if row["model"] == "wide"
    ]
    report = {
        "question": QUESTION,
        "hardware": hardware(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "diffrax", "equinox")},
            "lagrax": lagrax.__version__,
        },
        "rows": rows,
        "goals": goals,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for goal in goals:
        print(f"{goal['name']}: {goal['value']:.2f}, {'met' if goal['met'] else 'not met'}")
    print(f"Wrote {options.out}")


if __name__ == "__main__":
    main()
