"""What do thousands of doses cost?

This script solves y' = -y with a dose at the start of every unit of time, for one patient with
thousands of doses, and for thousands of patients with twenty doses each, whose times differ. lagrax
has a `Jump` in one solve. With diffrax the segments between doses are solves of their own: for one
patient a loop in Python over a compiled segment, for many a `lax.scan` over segments, mapped by
`vmap`. SciPy's solve_ivp loops over segments, too. All take four equal steps of Tsit5 a segment,
except SciPy, whose steps are adaptive (RK45, rtol 1e-6). Times are medians of turns in one run, in
float64.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8, scipy 1.17.1:

    0.944    ≤ 2 met       ten times the doses of one patient, in time a dose
    233      ≥ 10 met      one patient: diffrax over lagrax, in time
    2.16e+03 ≥ 10 met      one patient: SciPy over lagrax, in time
    2.37     ≥ 1 met       many patients: diffrax over lagrax, in time

`python benchmarks/dose_events.py` takes a few minutes. It prints the table and writes the rows.
"""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from measuring import RESULTS, at_least, at_most, milliseconds, options_for, table, write
from scipy.integrate import solve_ivp

import lagrax

QUESTION = "What do thousands of doses cost?"
STEPS = 4


def decay(t, y, args):
    return -y


def segment(y, start, end):
    """One solve of diffrax from dose to dose."""
    return diffrax.diffeqsolve(
        diffrax.ODETerm(decay),
        diffrax.Tsit5(),
        t0=start,
        t1=end,
        dt0=(end - start) / STEPS,
        y0=y,
        # Rounding may need one more.
        max_steps=STEPS + 1,
        stepsize_controller=diffrax.ConstantStepSize(),
    ).ys[-1]


def with_lagrax(times, amounts, end):
    jumps = [lagrax.Jump(times, add=amounts)]
    return lagrax.solve(decay, 0.0, end, 0.0, jumps=jumps, steps=STEPS).ys[-1]


def with_diffrax(times, amounts, end):
    ends = jnp.append(times[1:], end)
    body = lambda y, x: (segment(y + x[2], x[0], x[1]), None)
    return lax.scan(body, jnp.asarray(0.0), (times, ends, amounts))[0]


def with_scipy(times, amounts, end):
    y, ends = 0.0, np.append(times[1:], end)
    for start, stop, amount in zip(times, ends, amounts, strict=True):
        y = solve_ivp(lambda t, y: -y, (start, stop), [y + amount], rtol=1e-6).y[0, -1]
    return y


def one_patient(count: int, repeats: int) -> list[dict]:
    times, amounts = np.arange(float(count)), np.linspace(1.0, 2.0, count)
    exact = float(np.sum(amounts * np.exp(times - count)))
    lagrax_solve = jax.jit(lambda amounts: with_lagrax(times, amounts, float(count)))
    of_diffrax = jax.jit(segment)

    def loop():
        y = jnp.asarray(0.0)
        for start, amount in zip(times, amounts, strict=True):
            y = of_diffrax(y + amount, start, start + 1)
        return y

    calls = {"lagrax": lambda: lagrax_solve(amounts), "diffrax": loop}
    if count <= 1000:  # ten times as many take it ten times as long
        calls["scipy"] = lambda: with_scipy(times, amounts, float(count))
    ms = milliseconds(calls, repeats=repeats)
    return [
        {
            "problem": f"one patient, {count} doses",
            "library": name,
            "ms": ms[name],
            "us_a_dose": 1e3 * ms[name] / count,
            "error": abs(float(call()) / exact - 1),
        }
        for name, call in calls.items()
    ]


def many_patients(count: int, doses: int, repeats: int) -> list[dict]:
    generator = np.random.default_rng(0)
    # The first dose is at the start, since diffrax's loop begins there.
    later = np.arange(1, doses) + generator.uniform(-0.3, 0.3, (count, doses - 1))
    times = np.concatenate([np.zeros((count, 1)), later], axis=1)
    amounts = generator.uniform(1.0, 2.0, (count, doses))
    exact = np.sum(amounts * np.exp(times - doses), axis=1)
    rows, calls = [], {}
    for name, function in (("lagrax", with_lagrax), ("diffrax", with_diffrax)):
        run = jax.jit(jax.vmap(lambda t, a, f=function: f(t, a, float(doses))))
        calls[name] = lambda run=run: run(times, amounts)
    ms = milliseconds(calls, repeats=repeats)
    for name, call in calls.items():
        error = float(np.max(np.abs(np.asarray(call()) / exact - 1)))
        row = {"problem": f"{count} patients, {doses} doses", "library": name, "ms": ms[name]}
        rows.append(row | {"us_a_dose": 1e3 * ms[name] / (count * doses), "error": error})
    return rows


def main() -> None:
    options = options_for(QUESTION, RESULTS / "dose_events.json")
    few, many, patients, repeats = (10, 20, 10, 1) if options.tiny else (1000, 10000, 10000, 5)
    jax.config.update("jax_enable_x64", True)
    short, long = one_patient(few, repeats), one_patient(many, repeats)
    batch = many_patients(patients, 20, repeats)
    rows = [*short, *long, *batch]
    columns = {"problem": "", "library": "", "ms": ".1f", "us_a_dose": ".2f", "error": ".0e"}
    print(table(rows, columns))
    ratio = lambda one, other: one["ms"] / other["ms"]
    goals = [
        at_most(
            "ten times the doses of one patient, in time a dose",
            long[0]["us_a_dose"] / short[0]["us_a_dose"],
            2,
        ),
        at_least("one patient: diffrax over lagrax, in time", ratio(long[1], long[0]), 10),
        at_least("one patient: SciPy over lagrax, in time", ratio(short[2], short[0]), 10),
        at_least("many patients: diffrax over lagrax, in time", ratio(batch[1], batch[0]), 1),
    ]
    write(options.out, QUESTION, rows, goals, "scipy")


if __name__ == "__main__":
    main()
