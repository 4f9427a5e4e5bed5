"""An independent reference: scipy's DOP853 by the method of steps, written from the definitions."""

import itertools
import math

import numpy as np
from scipy.integrate import solve_ivp


def held_instant(delay, t):
    """The instant whose state `delay` holds just after time t."""
    if delay.times is None:
        tau = float(delay.tau)
        return (math.floor(t / tau + 1e-9) - delay.lag) * tau
    earlier = [s for s in np.asarray(delay.times, float) if s <= t + 1e-9]
    index = len(earlier) - 1 - delay.lag
    return None if index < 0 else earlier[index]


def breakpoints(delays, t0, t1, levels=7):
    points = {t0}
    for d in delays:
        if hasattr(d, "lag") and d.times is not None:
            points |= {float(s) for s in d.times}
        elif hasattr(d, "lag"):
            tau = float(d.tau)
            points |= {k * tau for k in range(math.floor(t0 / tau), math.ceil(t1 / tau) + 1)}
    lags = [float(d.tau) for d in delays if not hasattr(d, "lag")]
    for _ in range(levels):
        points |= {p + tau for p in points for tau in lags if p + tau < t1}
    if lags:
        points |= {t0 + k * min(lags) for k in range(math.ceil((t1 - t0) / min(lags)))}
    inside = sorted(p for p in points if t0 + 1e-9 < p < t1 - 1e-9)
    kept = [p for i, p in enumerate(inside) if i == 0 or p - inside[i - 1] > 1e-9]
    return [t0, *kept, t1]


def reference(f, t0, t1, past, delays, ts, rtol=1e-12, atol=1e-13):
    """f(t, y, history) on NumPy arrays; `past` a function of t <= t0. States at `ts`."""
    pieces = []

    def solution(t):
        if t <= t0:
            return np.atleast_1d(past(t))
        for begin, end, piece in pieces:
            if begin <= t <= end:
                return piece.sol(t)
        raise AssertionError(f"{t} is not known yet")

    y = solution(t0)
    points = breakpoints(delays, t0, t1)
    for begin, end in itertools.pairwise(points):
        held = {}
        for i, d in enumerate(delays):
            if hasattr(d, "lag"):
                instant = held_instant(d, begin)
                # The instant itself may lie after the knot by rounding.
                held[i] = solution(t0 if instant is None else min(instant, begin))

        def rhs(t, y, held=held, begin=begin):
            history = [
                held[i] if i in held else solution(min(t - float(d.tau), begin))
                for i, d in enumerate(delays)
            ]
            return f(t, y, history)

        piece = solve_ivp(
            rhs, (begin, end), y, method="DOP853", rtol=rtol, atol=atol, dense_output=True
        )
        assert piece.success, piece.message
        pieces.append((begin, end, piece))
        y = piece.y[:, -1]
    return np.stack([solution(float(t)) for t in ts])
