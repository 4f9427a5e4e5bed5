"""What does `hold(history)` save?

This script times a training step (value and gradient, jitted, Tsit5 with equal steps, float32) in
two forms: with a field that is split into `hold(history)` and `__call__`, and with the same field
joining its history to the state at every evaluation. Times are medians of 40 turns in one run, in
which the two forms alternate.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.1.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8:

    1.52     ≥ 1 met       population, Direct: joined over split, in time
    1.45     ≥ 1 met       population, Checkpointed: joined over split, in time
    1.28     ≥ 1 met       wide, Direct: joined over split, in time
    1.39     ≥ 1 met       wide, Checkpointed: joined over split, in time

For convolutions on a GPU the answer differs: see NOTES.md.

`python benchmarks/hold_split.py` takes a minute. It prints the table and writes the rows.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from measuring import RESULTS, at_least, milliseconds, options_for, table, write

import lagrax
from lagrax.nn import MLP

QUESTION = "What does hold(history) save in a training step?"
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


SIZES = {
    "population": Size(1, 1, (10, 10), 100, 3, 10, False),
    "wide": Size(32, 5, (128, 128), 256, 5, 4, True),
}


class Concatenated(eqx.Module):
    """The same network, in the same layout, without `hold`: its arguments are joined at every
    evaluation."""

    mlp: MLP

    def __call__(self, t, y, args, *, history):
        x = jnp.moveaxis(jnp.concatenate([y, *history], axis=-1), -1, 0)
        for i, layer in enumerate(self.mlp.layers):
            x = jnp.tensordot(layer.weight, self.mlp.design.activation(x) if i else x, (0, 0))
            if layer.bias is not None:
                x = x + layer.bias[:, None]
        return jnp.moveaxis(x, 0, -1)


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


def compare(name: str, way: str, repeats: int) -> dict:
    size = SIZES[name]
    mkey, ykey, tkey = jax.random.split(jax.random.key(0), 3)
    mlp = MLP(size.channels, size.widths, history=size.history, use_bias=size.use_bias, key=mkey)
    data = (
        jax.random.normal(ykey, (size.batch, size.channels)),
        jax.random.normal(tkey, (size.intervals + 1, size.batch, size.channels)),
    )
    step = make_step(size, WAYS[way])
    calls = {"split": lambda: step(mlp, *data), "joined": lambda: step(Concatenated(mlp), *data)}
    check_equal(*(call() for call in calls.values()))
    ms = milliseconds(calls, repeats=repeats)
    row = {"model": name, "gradient": way, "repeats": repeats}
    return row | {f"{form}_ms": ms[form] for form in ms} | {"ratio": ms["joined"] / ms["split"]}


def check_equal(split, joined) -> None:
    """Both forms are one function: a comparison of different ones would say nothing."""
    pairs = zip(jax.tree.leaves(split), jax.tree.leaves(joined), strict=True)
    for a, b in pairs:
        if not jnp.allclose(a, b, rtol=1e-3, atol=1e-5):
            raise AssertionError(f"the forms differ by {jnp.max(jnp.abs(a - b))}")


def main() -> None:
    options = options_for(QUESTION, RESULTS / "hold_split.json")
    repeats = 1 if options.tiny else 40
    rows = [compare(name, way, repeats) for name in SIZES for way in WAYS]
    columns = {"model": "", "gradient": "", "split_ms": ".2f", "joined_ms": ".2f", "ratio": ".2f"}
    print(table(rows, columns))
    goals = [
        at_least(f"{row['model']}, {row['gradient']}: joined over split, in time", row["ratio"], 1)
        for row in rows
    ]
    write(options.out, QUESTION, rows, goals)


if __name__ == "__main__":
    main()
