"""The fixed points, cycles and exponents of an equation, and how they change.

Equations with held state have a map from knot to knot. The states at the knots determine everything
after them, so z_k, z_{k−1}, … ↦ z_{k+1} is an ordinary map, whose fixed points, cycles and
exponents are those of the equation, classical or learned:

```python
population = lagrax.systems.Population(a=2.2)
for orbit in lagrax.analysis.periodic_orbits(population):
    print(orbit.points, orbit.verdict)
```

Equations with lags, and ordinary ones, have equilibria with characteristic roots and cycles with
Floquet multipliers:

```python
hopf = lagrax.analysis.find_hopf(lagrax.systems.Hutchinson, 1.5)
cycles = lagrax.analysis.continue_branch(lagrax.systems.Hutchinson, 1.5, 2.5, hopf)
```

Switch to float64 (`jax.config.update("jax_enable_x64", True)`) for more than five digits.
"""

from ._branches import (
    Branch as Branch,
    Event as Event,
    continue_branch as continue_branch,
)
from ._charts import StabilityChart as StabilityChart, stability_chart as stability_chart
from ._cycles import (
    Cycle as Cycle,
    find_cycle as find_cycle,
    floquet_multipliers as floquet_multipliers,
)
from ._diagrams import Bifurcation as Bifurcation, bifurcation as bifurcation, cobweb as cobweb
from ._equilibria import (
    Fold as Fold,
    Hopf as Hopf,
    characteristic_roots as characteristic_roots,
    find_equilibrium as find_equilibrium,
    find_fold as find_fold,
    find_hopf as find_hopf,
)
from ._exponents import lyapunov as lyapunov
from ._lagged import LaggedEquation as LaggedEquation
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
