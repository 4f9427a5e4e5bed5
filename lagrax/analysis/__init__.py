"""The long run of an equation with held state, from its knot map.

The states at the knots determine everything after them, so z_k, z_{k−1}, … ↦ z_{k+1} is an ordinary
map. Its fixed points, cycles and exponents are those of the equation, classical or learned:

```python
population = lagrax.systems.Population(a=2.2)
for orbit in lagrax.analysis.periodic_orbits(population):
    print(orbit.points, orbit.verdict)
```

Each function takes a `KnotMap` or a system of `lagrax.systems` with holds.
Switch to float64 (`jax.config.update("jax_enable_x64", True)`) for more than five digits.
"""

from ._diagrams import Bifurcation as Bifurcation, bifurcation as bifurcation, cobweb as cobweb
from ._exponents import lyapunov as lyapunov
from ._map import KnotMap as KnotMap, Start as Start, knot_map as knot_map
from ._orbits import (
    Critical as Critical,
    Orbit as Orbit,
    critical as critical,
    periodic_orbits as periodic_orbits,
)
from ._planes import (
    Basins as Basins,
    StabilityRegion as StabilityRegion,
    basins as basins,
    stability_region as stability_region,
)
