"""The solver behind `lagrax.solve`."""
