"""A pendulum on a cart, balanced by a digital controller: a small network compared with LQR.

The plant is continuous. The controller measures at multiples of the sampling period τ and holds its
force until the next measurement: u(t) = c(x(⌊t/τ⌋τ)), which is `lagrax.Hold(τ)`.

- The network is a small MLP. Training reduces a quadratic cost from many starts, with the gradient
  through `lagrax.solve` and so through plant, sampling and hold. The network is odd, as the plant
  is, so that upright is an equilibrium for all weights.
- LQR is the linear-quadratic regulator of the plant, linearised upright and discretised with a
  zero-order hold, for the same cost, which also counts between the samples.

Both are designed for one τ and then used unchanged at others. Upright is stable as long as the
multipliers of the knot map, from one sample to the next, lie inside the unit circle. At the
critical period the largest one leaves it. Simulations confirm this: slightly below that period a
disturbed pendulum settles, slightly above it does not.

    python examples/pendulum.py            about a minute; writes pendulum.png
    python examples/pendulum.py --quick    for a look: a short training
    python examples/pendulum.py --out PATH
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm, solve_discrete_are

import lagrax
from lagrax import analysis
from lagrax.plotting import Figure, Line, Panel, draw

CART, BOB, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81  # kg, kg, m, m/s²
LIMIT = 15.0  # N, the largest force of the motor
TAU = 0.05  # s, the sampling period that both controllers are designed for
HORIZON = 3.0  # s, over which a controller is judged
# s, over which the network learns. Over longer times, gradients through the falls of an untrained
# network carry little information, and some initial weights never learn to balance.
LESSON = 1.5
UPRIGHT = 0.1  # rad, the largest angle that counts as upright
# The cost, per second: of position, velocity, angle and its rate, and of the force.
STATE_COST, FORCE_COST = np.array([2.0, 0.1, 10.0, 0.1]), 0.01
SPREAD = np.array([0.5, 0.5, 0.6, 1.0])  # of the starts: m, m/s, rad, rad/s
LONG = 10.0  # s, of a simulation
PERIODS = np.linspace(0.02, 0.2, 37)


def plant(x, force):
    """Returns the derivative of the state: position, velocity, angle from upright and its rate."""
    _, velocity, angle, rate = x
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = force + BOB * sin * (LENGTH * rate**2 - GRAVITY * cos)
    acceleration = push / (CART + BOB * sin**2)
    return jnp.stack([velocity, acceleration, rate, (GRAVITY * sin - acceleration * cos) / LENGTH])


def running_cost(x, force):
    return jnp.sum(STATE_COST * x**2) + FORCE_COST * force**2


# --- controllers ----------------------------------------------------------------------------------


class Network(eqx.Module):
    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(4, "scalar", width_size=32, depth=2, activation=jnp.tanh, key=key)

    def __call__(self, x):
        x = x / SPREAD
        return LIMIT * jnp.tanh(self.mlp(x) - self.mlp(-x))


class Linear(eqx.Module):
    gain: jax.Array

    def __call__(self, x):
        return jnp.clip(-self.gain @ x, -LIMIT, LIMIT)


def linearise_plant():
    """Returns A and B of x' = A x + B u close to upright."""
    at = jnp.zeros(4), jnp.zeros(())
    return tuple(np.asarray(J, float) for J in jax.jacfwd(plant, argnums=(0, 1))(*at))


def lqr(tau: float = TAU) -> Linear:
    """Returns the best linear controller that samples every `tau`.

    Uses matrix exponentials: C. F. Van Loan, IEEE Transactions on Automatic Control 23 (1978),
    395-404.
    """
    A, B = linearise_plant()
    held = np.zeros((5, 5))  # (x, u)' between two samples: u' = 0
    held[:4, :4], held[:4, 4] = A, B
    cost = np.diag([*STATE_COST, FORCE_COST])
    both = expm(np.block([[-held.T, cost], [np.zeros((5, 5)), held]]) * tau)
    flow = both[5:, 5:]
    summed = flow.T @ both[:5, 5:]  # the cost from one sample to the next, of (x, u) at the first
    Ad, Bd, Q, S, R = flow[:4, :4], flow[:4, 4:], summed[:4, :4], summed[:4, 4:], summed[4:, 4:]
    P = solve_discrete_are(Ad, Bd, Q, R, s=S)
    gain = np.linalg.solve(R + Bd.T @ P @ Bd, Bd.T @ P @ Ad + S.T)
    return Linear(jnp.asarray(gain[0], float))


# --- the loop -------------------------------------------------------------------------------------


class Loop(eqx.Module):
    """The plant with a controller. lagrax calls `hold` once a sample and holds its force."""

    controller: Callable

    def hold(self, history):
        (sample,) = history
        return self.controller(sample)

    def __call__(self, t, x, args, *, history):
        return plant(x, history)


class PricedLoop(eqx.Module):
    """The plant with a controller, and the cost so far as one more state."""

    controller: Callable

    def hold(self, history):
        ((sample, _),) = history
        return self.controller(sample)

    def __call__(self, t, y, args, *, history):
        x, _ = y
        return plant(x, history), running_cost(x, history)


def judge(controller, starts, horizon: float = HORIZON):
    """Returns the cost from each start over the horizon, and whether the pendulum ends upright."""

    def one(start):
        y0 = (start, jnp.zeros(()))
        delays = [lagrax.Hold(TAU)]
        sol = lagrax.solve(PricedLoop(controller), 0.0, horizon, y0, delays=delays, steps=1)
        xs, costs = sol.ys
        return costs[-1], jnp.abs(xs[-1, 2]) < UPRIGHT

    return jax.vmap(one)(starts)


def draw_starts(key, number: int):
    return SPREAD * jax.random.uniform(key, (number, 4), minval=-1.0)


def train(iterations: int, batch: int = 64, seed: int = 0) -> Network:
    import optax

    first, *keys = jax.random.split(jax.random.key(seed), 1 + iterations)
    rate = optax.cosine_decay_schedule(1e-2, iterations)
    # Where the pendulum falls over, gradients are enormous.
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    def loss(network, starts):
        costs, _ = judge(network, starts, LESSON)
        # The logarithm: else a few starts from which it falls drown all others.
        return jnp.mean(jnp.log(costs))

    @eqx.filter_jit
    def step(network, state, key):
        value, slope = eqx.filter_value_and_grad(loss)(network, draw_starts(key, batch))
        updates, state = optimiser.update(slope, state)
        return eqx.apply_updates(network, updates), state, value

    network = Network(first)
    state = optimiser.init(eqx.filter(network, eqx.is_array))
    for i, key in enumerate(keys, start=1):
        network, state, value = step(network, state, key)
        if i % (iterations // 5) == 0:
            say(f"iteration {i} of {iterations}: mean logarithm of the cost {float(value):.3f}")
    return network


# --- stability ------------------------------------------------------------------------------------


def upright(controller, tau: float, steps: int = 16) -> analysis.Orbit:
    """Returns the upright fixed point of the knot map, with its multipliers.

    The controller samples every `tau`. Newton's method starts close to upright.
    """
    # As an array the period is an argument of the compiled program, not a part of it.
    delays = [lagrax.Hold(jnp.asarray(tau, float))]
    f = analysis.knot_map(Loop(controller), jnp.zeros(4), delays=delays, steps=steps)
    (orbit,) = analysis.periodic_orbits(f, starts=jnp.full((1, 4), 1e-3))
    return orbit


def largest(controller, tau: float) -> float:
    return float(np.abs(upright(controller, tau).multipliers[0]))


def critical_period(controller, periods=PERIODS) -> float:
    """Returns the first period at which the largest multiplier exceeds 1, to rounding.

    Returns NaN if it never does, or exceeds 1 from the first period on.
    """
    above = np.array([largest(controller, tau) >= 1 for tau in periods])
    if above[0] or not above.any():
        return float("nan")
    number = int(np.argmax(above))
    low, high = periods[number - 1 : number + 1]
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if largest(controller, middle) >= 1 else (middle, high)
    return float((low + high) / 2)


# --- simulation -----------------------------------------------------------------------------------


class Run(NamedTuple):
    ts: np.ndarray
    xs: np.ndarray
    samples: np.ndarray  # the times at which the controller measures
    forces: np.ndarray  # that it then holds

    @property
    def angles(self) -> np.ndarray:
        return self.xs[:, 2]

    @property
    def staircase(self) -> tuple[np.ndarray, np.ndarray]:
        ends = np.append(self.samples[1:], self.ts[-1])
        return np.stack([self.samples, ends], axis=1).ravel(), np.repeat(self.forces, 2)


SHOWN = diffrax.SaveAt(ts=np.linspace(0.0, LONG, 1001))


@eqx.filter_jit
def follow(controller, start, tau):
    # Compiled once for all periods from the first on, of which the span holds the most.
    sol = lagrax.solve(
        Loop(controller),
        0.0,
        LONG,
        start,
        delays=[lagrax.Hold(tau)],
        steps=8,
        intervals=round(LONG / PERIODS[0]),
        saveat=SHOWN,
    )
    return sol.ts, sol.ys, sol.knots.ts, jax.vmap(controller)(sol.knots.ys)


def simulate(controller, start, tau: float = TAU) -> Run:
    found = follow(controller, jnp.asarray(start, float), jnp.asarray(tau, float))
    ts, xs, samples, forces = map(np.asarray, found)
    there = samples < LONG  # the intervals that were not needed lie at the end
    return Run(ts, xs, samples[there], forces[there])


# --- what is shown --------------------------------------------------------------------------------

START = (0.0, 0.0, 0.5, 0.0)  # m, m/s, rad, rad/s: one of those in the picture
NUDGE = (0.0, 0.0, 0.02, 0.0)
AROUND = (0.9, 1.1)  # times the critical period
COLOURS = ("blue", "orange")


class Evaluation(NamedTuple):
    name: str
    costs: np.ndarray
    caught: np.ndarray
    multipliers: np.ndarray  # the largest, for each of PERIODS
    critical: float
    run: Run
    around: list[Run]  # from a nudge, a little below and above the critical period


def examine(name: str, controller, starts) -> Evaluation:
    say(f"{name}: stability and simulations")
    costs, caught = map(np.asarray, eqx.filter_jit(judge)(controller, starts))
    multipliers = np.array([largest(controller, tau) for tau in PERIODS])
    critical = critical_period(controller)
    periods = [factor * critical for factor in AROUND if np.isfinite(critical)]
    around = [simulate(controller, NUDGE, tau) for tau in periods]
    run = simulate(controller, START)
    return Evaluation(name, costs, caught, multipliers, critical, run, around)


def swing(run: Run) -> float:
    """Returns the largest angle in the last fifth of a run."""
    return float(np.abs(run.angles[-len(run.angles) // 5 :]).max())


def table(results: list[Evaluation]) -> list[list[str]]:
    both = np.all([r.caught for r in results], axis=0)
    swings = [f"swing at {factor:g} of it" for factor in AROUND]
    rows = [["controller", "cost", "caught", "critical period", *swings]]
    for r in results:
        cost = f"{r.costs[both].mean():.3f}" if both.any() else "none"
        swings = [f"{swing(run):.2g} rad" for run in r.around] or ["none"] * len(AROUND)
        critical = f"{r.critical:.4f} s" if np.isfinite(r.critical) else "none"
        rows.append([r.name, cost, f"{100 * r.caught.mean():.1f} %", critical, *swings])
    return rows


def explanation(starts: int) -> str:
    return (
        f"Both are designed for a period of {TAU:g} s and judged there from {starts} starts: cost, "
        "a mean over\nthose from which both catch the pendulum; caught, the share in which it "
        f"stands after {HORIZON:g} s.\nCritical period: where the largest multiplier passes 1, "
        f"looked for from {PERIODS[0]:g} to {PERIODS[-1]:g} s.\nSwing: the largest angle at the "
        f"end of {LONG:g} s after a nudge of {NUDGE[2]:g} rad, below and above it."
    )


def align_columns(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = lambda row: "  ".join(
        f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(row)
    )
    return "\n".join(line(row).rstrip() for row in rows)


def picture(results: list[Evaluation]) -> Figure:
    coloured = list(zip(results, COLOURS, strict=True))
    angles = [Line(r.run.ts, r.run.angles, r.name, colour) for r, colour in coloured]
    forces = [Line(*r.run.staircase, r.name, colour) for r, colour in coloured]
    sizes = [Line(PERIODS, r.multipliers, r.name, colour) for r, colour in coloured]
    sizes += [
        Line(PERIODS[[0, -1]], [1.0, 1.0], "limits", "grey", dashed=True, width=1.0),
        Line([TAU, TAU], [0.0, 2.0], "designed for", "grey", width=1.0),
    ]
    ends = []
    for result, colour in coloured:
        for run, dashed in zip(result.around, (False, True), strict=False):
            ends.append(Line(run.ts, run.angles, result.name, colour, dashed, width=1.0))
    below, above = (f"{abs(factor - 1):.0%}".replace("%", " %") for factor in AROUND)
    where = f"{below} below (solid) and {above} above the critical τ (dashed)"
    bounds = [Line([0.0, HORIZON], [y, y], "limits", "grey", True, 1.0) for y in (-LIMIT, LIMIT)]
    return Figure(
        "pendulum",
        "A pendulum on a cart under a digital controller, and how slowly it may sample.",
        [
            Panel(
                angles,
                f"caught from {START[2]:g} rad, τ = {TAU:g} s",
                "time in s",
                "angle in rad",
                xlim=(0.0, HORIZON),
            ),
            Panel(
                [*bounds, *forces],
                "the force, held between samples",
                "time in s",
                "force in N",
                xlim=(0.0, HORIZON),
            ),
            Panel(
                sizes,
                "upright is stable below 1",
                "sampling period τ in s",
                "largest multiplier",
                ylim=(0.7, 1.3),
            ),
            Panel(ends, where, "time in s", "angle in rad", xlim=(0.0, LONG / 2)),
        ],
        columns=2,
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short training")
    parser.add_argument("--out", metavar="PATH", type=Path, help="where the picture goes")
    options = parser.parse_args()
    path = options.out or Path("pendulum.png")
    starts = draw_starts(jax.random.key(1), 1000)  # none that the training has seen
    try:
        network = train(200 if options.quick else 2000)
        results = [examine("network", network, starts), examine("LQR", lqr(), starts)]
        draw(picture(results), path)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("matplotlib", "optax"):
            raise
        say('This example needs more: pip install "lagrax[examples]"')
        return 1
    print(align_columns(table(results)), explanation(len(starts)), sep="\n\n")
    print(f"\nThe picture lies in {path.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
