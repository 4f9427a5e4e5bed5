"""The speed of conduction in a brain, found from its activity: 84 regions, 6,972 delays.

Each region is an oscillator of about 10 Hz. A signal takes the length of the fibre divided by the
speed of conduction to arrive, so that every link has a delay of its own, between 1 and 40 ms:

    theta_i' = omega_i + K sum_j w_ij sin(theta_j(t - length_ij / speed) - theta_i)

`lagrax.LagMatrix` reads all delayed phases at once. The script simulates the activity cos(theta)
with noise, and finds the speed and the strength K of the coupling from it by Gauss and Newton's
method. It needs the derivatives of the solution with respect to all delays, which `jax.jacfwd`
gives. The standard errors follow from the same derivatives.

The connectome (weights and lengths of fibres of the Desikan-Killiany regions) comes from the Python
package tvboptim, under the European Union Public Licence 1.2. It is loaded when the example runs:
`pip install 'lagrax[brain]'`.

    python examples/brain_network.py            writes brain_network.png
    python examples/brain_network.py --quick    takes 12 of the regions
"""

import argparse
import sys
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import lagrax

# In mm/ms, which is m/s, and per ms.
SPEED, STRENGTH = 6.0, 0.03
FIRST_GUESS = 10.0, 0.02
FASTEST = 15.0
NOISE = 0.1
BLUE, ORANGE = "#0072B2", "#D55E00"


class Brain(NamedTuple):
    """Weights whose rows add up to 1, lengths in mm, frequencies per ms and first phases."""

    weights: np.ndarray
    lengths: np.ndarray
    omega: np.ndarray
    start: np.ndarray
    labels: list[str]


def load(count: int | None = None) -> Brain:
    """The connectome, or its first `count` regions, with frequencies and phases drawn at random."""
    from tvboptim.data import load_structural_connectivity

    weights, lengths, labels = load_structural_connectivity()
    weights, lengths = (np.asarray(x, float)[:count, :count] for x in (weights, lengths))
    weights = np.log1p(weights)  # they span five powers of ten
    generator = np.random.default_rng(0)
    omega = 2e-3 * np.pi * generator.normal(10.0, 1.0, len(weights))
    start = generator.uniform(0.0, 2 * np.pi, len(weights))
    return Brain(weights / weights.sum(axis=1, keepdims=True), lengths, omega, start, labels)


def oscillators(t, theta, args, *, history):
    omega, weights, strength = args
    (past,) = history  # past[i, j] is theta_j(t - delay_ij)
    return omega + strength * jnp.sum(weights * jnp.sin(past - theta[:, None]), axis=1)


def simulate(speed, strength, brain: Brain, ts: np.ndarray):
    """The activity of all regions at `ts`. Before t = 0 they oscillate on their own."""
    links = brain.weights > 0
    omega, start = jnp.asarray(brain.omega), jnp.asarray(brain.start)
    sol = lagrax.solve(
        oscillators,
        t0=0.0,
        t1=float(ts[-1]),
        y0=lambda t: start + omega * t,
        args=(omega, jnp.asarray(brain.weights), strength),
        delays=[lagrax.LagMatrix(brain.lengths / speed, links=links)],
        solver=diffrax.Bosh3(),
        steps=1,
        # The speed is traced, so the number of intervals is chosen beforehand.
        intervals=int(np.ceil(ts[-1] * FASTEST / np.min(brain.lengths[links]))),
        saveat=diffrax.SaveAt(ts=ts),
        gradient=lagrax.Direct(),  # supports forward mode
        throw=False,
    )
    return jnp.cos(sol.ys)


def fit(activity, brain: Brain, ts: np.ndarray, most: int = 30):
    """The iterates of speed and strength, at most so many, and the covariance of the last one.

    Logarithms are fitted, so that both stay positive.
    """

    def predict(logs):
        speed, strength = jnp.exp(logs)
        return simulate(jnp.minimum(speed, FASTEST), strength, brain, ts).ravel()

    @jax.jit
    def improve(logs):
        value, slope = predict(logs), jax.jacfwd(predict)(logs)
        residual = activity.ravel() - value
        step, *_ = jnp.linalg.lstsq(slope, residual)
        variance = jnp.mean(residual**2)
        # A long step would leave the range in which the equation is nearly linear.
        return logs + jnp.clip(step, -0.3, 0.3), variance * jnp.linalg.inv(slope.T @ slope)

    logs, found = jnp.log(jnp.array(FIRST_GUESS)), []
    while len(found) < most:
        found.append(np.exp(logs))
        before = logs
        logs, covariance = improve(logs)
        if np.max(np.abs(logs - before)) < 1e-4:
            break
    return np.array(found), np.asarray(covariance)


def draw(brain: Brain, ts, activity, found, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12)
    delays, traces, speeds = figure.subplots(1, 3, width_ratios=[1, 1.4, 1])
    matrix = np.where(brain.weights > 0, brain.lengths / found[-1, 0], np.nan)
    image = delays.imshow(matrix, cmap="viridis")
    figure.colorbar(image, ax=delays, label="delay (ms)", shrink=0.8)
    delays.set(title="a delay for each link", xlabel="from region", ylabel="to region")
    fitted = np.asarray(jax.jit(lambda p: simulate(p[0], p[1], brain, ts))(jnp.asarray(found[-1])))
    for row, region in enumerate(np.linspace(0, len(brain.omega) - 1, 4).astype(int)):
        lift = -2.6 * row
        traces.plot(ts, activity[:, region] + lift, ".", color="0.6", markersize=2.5)
        traces.plot(ts, fitted[:, region] + lift, color=BLUE)
        traces.text(ts[-1] * 1.02, lift, brain.labels[region], va="center", fontsize=8)
    traces.set(title="activity: data and fit", xlabel="t (ms)", yticks=[])
    speeds.axhline(SPEED, color="0.6", linestyle="--", label="true")
    speeds.plot(found[:, 0], "o-", color=ORANGE, label="fit")
    speeds.set(title="speed of conduction", xlabel="iteration", ylabel="m/s")
    speeds.legend(frameon=False)
    for axes in (traces, speeds):
        axes.spines[["top", "right"]].set_visible(False)
    traces.spines["left"].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="take 12 of the regions")
    options = parser.parse_args()
    try:
        brain = load(12 if options.quick else None)
    except ImportError as error:
        print(f"{error}. Install it with: pip install 'lagrax[brain]'", file=sys.stderr)
        return 1
    ts = np.arange(0.0, 301.0, 3.0)
    clean = jax.jit(lambda p: simulate(p[0], p[1], brain, ts))(jnp.array([SPEED, STRENGTH]))
    activity = np.asarray(clean) + NOISE * np.random.default_rng(1).normal(size=clean.shape)
    found, covariance = fit(activity, brain, ts)
    errors = found[-1] * np.sqrt(np.diag(covariance))  # those of logarithms are relative
    print(f"{len(brain.omega)} regions, {int(np.sum(brain.weights > 0))} delays")
    print(f"speed {found[-1, 0]:.3f} ± {errors[0]:.3f} m/s, simulated with {SPEED:g}")
    print(f"strength {found[-1, 1]:.5f} ± {errors[1]:.5f} per ms, simulated with {STRENGTH:g}")
    draw(brain, ts, activity, found, "brain_network.png")
    print("Wrote brain_network.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
