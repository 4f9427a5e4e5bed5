"""What an equation with held state does in the long run: the knot map and what follows from it.

The states at the knots determine everything after them, so z_k, z_{k−1}, … ↦ z_{k+1}
is an ordinary map, and its long run is that of the equation, written or learned:

```python
population = lagrax.systems.Population(a=2.2)
for orbit in lagrax.analysis.periodic_orbits(population):
    print(orbit.points, orbit.verdict)
```

Wherever a `KnotMap` is expected, a system of `lagrax.systems` with holds may be given as it is.
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
