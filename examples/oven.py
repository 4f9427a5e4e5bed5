"""From the log of a controlled oven to its equation and the period of its controller.

A digital controller reads the temperature once a minute and sets the heating. Until the next
reading the heating stays the same, so the slope of the temperature depends on a held state.
`examples/oven.csv` is a log of one hour with a row every ten seconds: seconds, temperature,
setpoint. The log is simulated by `simulate` below, with sensor noise of standard deviation 0.2 °C
and readings rounded to 0.1 °C.

    python examples/oven.py                learns the equation, forecasts, writes oven.png
    python examples/oven.py --log PATH     writes the log anew
"""

import argparse
import csv
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import lagrax

LOG = Path(__file__).with_name("oven.csv")
PERIOD = 60.0  # of the controller, in seconds
GAIN, LOSS, ROOM = 0.02, 0.004, 20.0  # heating and cooling per second and °C; °C
SETPOINTS = (60, 90, 70, 110, 80, 100, 75, 95, 65, 85)  # each for six minutes
START, SAMPLING, HOUR, NOISE = np.datetime64("2025-03-03T08:00:00"), 10, 3600, 0.2


def setpoint(t):
    return jnp.asarray(SETPOINTS)[jnp.floor(t / (6 * PERIOD)).astype(int)]


def oven(t, temperature, args, *, history):
    (reading,) = history
    return GAIN * (setpoint(t) - reading) - LOSS * (temperature - ROOM)


def simulate() -> np.ndarray:
    """Returns seconds, temperatures and setpoints."""
    ts = np.arange(0, HOUR, SAMPLING)
    with jax.enable_x64(True):
        sol = lagrax.solve(
            oven,
            t0=0.0,
            t1=float(HOUR),
            y0=25.0,
            delays=[lagrax.Hold(PERIOD)],
            saveat=diffrax.SaveAt(ts=jnp.asarray(ts, float)),
        )
        us = setpoint(ts)
    noise = NOISE * np.random.default_rng(0).standard_normal(len(ts))
    return np.stack([ts, np.round(np.asarray(sol.ys) + noise, 1), us])


def write_log(path: Path) -> None:
    lines = ["time,temperature,setpoint"]
    for second, temperature, target in simulate().T:
        time = str(START + np.timedelta64(int(second), "s")).replace("T", " ")
        lines.append(f"{time},{temperature:.1f},{target:.0f}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_log(path: Path) -> np.ndarray:
    """Returns seconds since the first row, temperatures and setpoints."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    times = np.array([row["time"] for row in rows], "datetime64[s]")
    numbers = [[float(row[name]) for row in rows] for name in ("temperature", "setpoint")]
    return np.stack([(times - times[0]).astype(float), *numbers])


def learn(ts: np.ndarray, ys: np.ndarray, us: np.ndarray) -> lagrax.Identifier:
    """Learns the equation and the controller's period, which is given as 45 s at first."""
    delays = [lagrax.Hold(lagrax.Learn(45.0))]
    model = lagrax.Identifier(delays, "library", degree=1, progress=False)
    return model.fit(ts, ys, inputs=us)


def draw(path: Path, model: lagrax.Identifier, log: np.ndarray, known: int) -> None:
    from matplotlib.figure import Figure

    ts, ys, us = log
    # One input for the end of the known series, then one for each time.
    forecast = model.forecast(ts[known:], inputs=us[known - 1 :])
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.step(ts / 60, us, where="post", color="0.7", label="setpoint")
    axes.plot(ts / 60, ys, ".", markersize=3, color="0.3", label="log")
    axes.plot(forecast.ts / 60, forecast.mean, color="#D55E00", label="forecast")
    axes.fill_between(forecast.ts / 60, forecast.low, forecast.high, color="#D55E00", alpha=0.25)
    axes.axvline(ts[known] / 60, color="0.3", linewidth=0.8)
    axes.set(xlabel="minutes", ylabel="temperature in °C")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper left")
    axes.set_ylim(20, 125)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", metavar="PATH", type=Path, help="write the log and stop")
    parser.add_argument("--out", metavar="PATH", type=Path, default=Path("oven.png"))
    options = parser.parse_args()
    if options.log:
        write_log(options.log)
        print(f"Log: {options.log}")
        return
    log = read_log(LOG)
    known = 3 * log.shape[1] // 4
    model = learn(*log[:, :known])
    print(f"Period of the controller: {model.periods_[0]:.1f} s")
    print(*model.equations(["temperature"], ["setpoint"]), sep="\n")
    draw(options.out, model, log, known)
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
