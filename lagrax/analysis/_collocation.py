"""Periodic functions as piecewise polynomials, and equations with lags collocated on them.

A function of period 1 has one polynomial in each interval of a mesh. It is given by its values at
`degree` nodes in each interval; the last node of an interval is the first of the next one.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._lagged import LaggedEquation, get_lags, linearise

Mesh = Float[Array, " knots"]
Profile = Float[Array, "nodes size"]


@cache
def _constants(degree: int) -> tuple[np.ndarray, ...]:
    """Nodes in [0, 1], coefficients of the Lagrange polynomials, Gauss points and weights."""
    nodes = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    coefficients = np.linalg.inv(np.vander(nodes, increasing=True))
    points, weights = np.polynomial.legendre.leggauss(degree)
    return nodes, coefficients, (points + 1) / 2, weights / 2


def _basis(degree: int, r: Float[Array, "..."]) -> Float[Array, "... nodes"]:
    powers = r[..., None] ** np.arange(degree + 1)
    return powers @ jnp.asarray(_constants(degree)[1], r.dtype)


def _slopes(degree: int, r: np.ndarray) -> np.ndarray:
    exponents = np.arange(1, degree + 1)
    return (exponents * r[..., None] ** (exponents - 1)) @ _constants(degree)[1][1:]


def degree_of(mesh: Mesh, profile: Profile) -> int:
    return profile.shape[0] // (mesh.shape[0] - 1)


def node_times(mesh: Mesh, degree: int) -> Float[Array, " nodes"]:
    """The times of the nodes, without that at 1."""
    nodes = jnp.asarray(_constants(degree)[0][:-1], mesh.dtype)
    return (mesh[:-1, None] + jnp.diff(mesh)[:, None] * nodes).ravel()


def gauss_times(mesh: Mesh, degree: int) -> Float[Array, " nodes"]:
    points = jnp.asarray(_constants(degree)[2], mesh.dtype)
    return (mesh[:-1, None] + jnp.diff(mesh)[:, None] * points).ravel()


def locate(
    mesh: Mesh, degree: int, s: Float[Array, "..."]
) -> tuple[Array, Array, Float[Array, "... nodes"]]:
    """The period that holds each time, its nodes there, and their weights."""
    period = jnp.floor(s)
    within = s - period
    last = mesh.shape[0] - 2
    interval = jnp.clip(jnp.searchsorted(mesh, within, side="right") - 1, 0, last)
    r = (within - mesh[interval]) / (mesh[interval + 1] - mesh[interval])
    nodes = interval[..., None] * degree + np.arange(degree + 1)
    return period.astype(int), nodes, _basis(degree, r)


def interpolate(mesh: Mesh, profile: Profile, s: Float[Array, "..."]) -> Float[Array, "... size"]:
    """The values at times `s`, of which only the part within the period counts."""
    _, nodes, weights = locate(mesh, degree_of(mesh, profile), s)
    return jnp.einsum("...k,...kn->...n", weights, profile[nodes % profile.shape[0]])


def _at_gauss(mesh: Mesh, profile: Profile) -> tuple[Profile, Profile]:
    """Values and slopes at the Gauss points."""
    degree, (count, size) = degree_of(mesh, profile), profile.shape
    nodes = np.arange(0, count, degree)[:, None] + np.arange(degree + 1)
    local = profile[nodes % count]
    points = _constants(degree)[2]
    values = jnp.einsum("gk,ikn->ign", _basis(degree, jnp.asarray(points, mesh.dtype)), local)
    slopes = jnp.einsum("gk,ikn->ign", jnp.asarray(_slopes(degree, points), mesh.dtype), local)
    slopes = slopes / jnp.diff(mesh)[:, None, None]
    return values.reshape(count, size), slopes.reshape(count, size)


def _read_past(
    f: LaggedEquation, mesh: Mesh, profile: Profile, period: Float[Array, ""]
) -> Float[Array, "nodes lags size"]:
    times = gauss_times(mesh, degree_of(mesh, profile))
    return interpolate(mesh, profile, times[:, None] - f.taus / period)


def collocate(
    f: LaggedEquation,
    mesh: Mesh,
    profile: Profile,
    period: Float[Array, ""],
    reference: Profile,
) -> Float[Array, " unknowns"]:
    """The residuals of the equation at the Gauss points, and of the phase condition.

    The phase is that with the least mean square distance from the reference (E. J. Doedel, H. B.
    Keller, J. P. Kernevez, *Numerical analysis and control of bifurcation problems II*, Int. J.
    Bifurcation and Chaos 1, 1991).
    """
    values, slopes = _at_gauss(mesh, profile)
    rates = jax.vmap(f)(values, _read_past(f, mesh, profile, period))
    old, turning = _at_gauss(mesh, reference)
    degree = degree_of(mesh, profile)
    weights = (jnp.diff(mesh)[:, None] * jnp.asarray(_constants(degree)[3], mesh.dtype)).ravel()
    turning = turning / jnp.sqrt(weights @ jnp.sum(turning**2, axis=1))
    phase = weights @ jnp.sum(turning * (values - old), axis=1)
    return jnp.append((slopes - period * rates).ravel(), phase)


def equidistribute(mesh: Mesh, profile: Profile) -> Mesh:
    """A mesh whose intervals have equal shares of the error of interpolation.

    The derivative that bounds it is estimated by differences of the highest derivative of the
    polynomials (U. M. Ascher, R. M. M. Mattheij, R. D. Russell, *Numerical Solution of Boundary
    Value Problems for Ordinary Differential Equations*, section 9.3).
    """
    degree, widths = degree_of(mesh, profile), jnp.diff(mesh)
    nodes = np.arange(0, profile.shape[0], degree)[:, None] + np.arange(degree + 1)
    top = jnp.asarray(_constants(degree)[1][-1], mesh.dtype)
    highest = jnp.einsum("k,ikn->in", top, profile[nodes % profile.shape[0]])
    highest = highest / (widths**degree)[:, None]
    jumps = jnp.linalg.norm(highest - jnp.roll(highest, 1, axis=0), axis=1)
    jumps = jumps / ((widths + jnp.roll(widths, 1)) / 2)
    density = ((jumps + jnp.roll(jumps, -1)) / 2) ** (1 / (degree + 1))
    # No part of the period is left without knots.
    density = density + 0.2 * (widths @ density) + jnp.finfo(mesh.dtype).tiny
    shares = jnp.concatenate([jnp.zeros(1, mesh.dtype), jnp.cumsum(density * widths)])
    wanted = jnp.linspace(0, 1, mesh.shape[0], dtype=mesh.dtype)
    return jnp.interp(wanted, shares / shares[-1], mesh).at[0].set(0).at[-1].set(1)


def monodromy(
    f: LaggedEquation, mesh: Mesh, profile: Profile, period: Float[Array, ""], periods: int
) -> Float[Array, "history history"]:
    """The map of small deviations from one period to the next.

    A deviation has values at the nodes of the last `periods` periods, as far as the lags reach.
    """
    degree, (count, size) = degree_of(mesh, profile), profile.shape
    values, _ = _at_gauss(mesh, profile)
    past = _read_past(f, mesh, profile, period)
    matrices = jax.vmap(lambda y, u: linearise(f, y, u))(values, past)
    times = gauss_times(mesh, degree)
    number, nodes, weights = locate(mesh, degree, times[:, None] - get_lags(f) / period)
    columns = nodes + (number + periods)[..., None] * count
    rows = np.arange(count)
    total = jnp.zeros((count, (periods + 1) * count + 1, size, size), mesh.dtype)
    terms = -period * jnp.einsum("qjk,qjab->qjkab", weights, matrices)
    total = total.at[rows[:, None, None], columns].add(terms)
    # The slopes of the deviation, from its nodes in the same interval.
    local = jnp.asarray(_slopes(degree, _constants(degree)[2]), mesh.dtype)
    local = (local / jnp.diff(mesh)[:, None, None]).reshape(count, degree + 1)
    own = (rows // degree * degree)[:, None] + np.arange(degree + 1) + periods * count
    total = total.at[rows[:, None], own].add(local[..., None, None] * jnp.eye(size))
    total = jnp.moveaxis(total, 2, 1).reshape(count * size, -1)
    known = (periods * count + 1) * size
    new = -jnp.linalg.solve(total[:, known:], total[:, :known])
    kept = jnp.eye(known, dtype=mesh.dtype)[count * size :]
    return jnp.concatenate([kept, new])
