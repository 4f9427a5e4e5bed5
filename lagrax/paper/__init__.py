"""The paper's experiments, each with its claims checked: `lagrax reproduce`.

Q. Zhu, Y. Shen, D. Li, W. Lin: Neural Piecewise-Constant Delay Differential Equations, AAAI 2022.
"""
