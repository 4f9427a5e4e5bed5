"""Fits equations to measured time series, simulates and predicts by them, and scores them.

```python
model = lagrax.Identifier(delays=lagrax.holds(1.0, 2))
model.fit(ts, ys)  # one trajectory, or lists of them
model.simulate(ts, y0)  # the learned equation from a start
model.forecast(later)  # the series continued, with a band
```
"""

from ._checks import IdentifyError as IdentifyError
from ._identifier import Forecast as Forecast, Identifier as Identifier
from ._selection import (
    Candidate as Candidate,
    Scan as Scan,
    Selection as Selection,
    select_delays as select_delays,
)
