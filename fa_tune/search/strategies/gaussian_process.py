"""Gaussian-process regression with one length scale per feature.

Small on purpose: a search has at most some hundred observations, refits after each of them
and must give the same proposals on every machine, so the optimiser takes a fixed number of
steps from a fixed start, or from where it was.  Optuna's own needs torch and SciPy,
scikit-learn's SciPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FIRST_STEPS = 60
NEXT_STEPS = 8
RATE = 0.1
# Means and widths of normal priors on the logarithms of the hyperparameters.
LENGTH, LENGTH_WIDTH = 0.7, 1.0
SIGNAL, SIGNAL_WIDTH = 0.0, 0.7
NOISE, NOISE_WIDTH = -4.0, 1.0
ROOT5 = 5.0**0.5


class GaussianProcess:
    """A Matérn-5/2 kernel over features in [0, 1]; targets are standardised inside."""

    def __init__(self, n_features: int) -> None:
        # log length scales, log signal deviation, log noise deviation
        self.theta = np.array([LENGTH] * n_features + [SIGNAL, NOISE])
        self._fitted = False

    def fit(self, x: Array, y: Array) -> None:
        """Learn from rows `x` with targets `y`."""
        self._x = x
        self._mean, self._scale = float(y.mean()), float(y.std()) or 1.0
        target = (y - self._mean) / self._scale
        differences = (x[:, None, :] - x[None, :, :]) ** 2
        first, second = np.zeros_like(self.theta), np.zeros_like(self.theta)
        for step in range(1, (NEXT_STEPS if self._fitted else FIRST_STEPS) + 1):
            gradient = self._gradient(differences, target)
            first = 0.9 * first + 0.1 * gradient
            second = 0.99 * second + 0.01 * gradient**2
            unbiased = first / (1 - 0.9**step)
            self.theta = self.theta - RATE * unbiased / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        self._fitted = True
        self._condition(differences, target)

    def believe(self, x: Array) -> None:
        """Take the prediction at one more row for an observation: its neighbourhood is then no
        longer unknown, so that the next proposal goes elsewhere."""
        mean, _ = self.predict(x[None, :])
        self._x = np.vstack([self._x, x])
        target = np.append(self._target, (mean[0] - self._mean) / self._scale)
        self._condition((self._x[:, None, :] - self._x[None, :, :]) ** 2, target)

    def _condition(self, differences: Array, target: Array) -> None:
        kernel, _, _ = self._kernel(differences)
        noise = np.exp(2 * self.theta[-1]) + 1e-8
        self._target = target
        self._inverse = np.linalg.inv(kernel + noise * np.eye(len(target)))
        self._weights = self._inverse @ target

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the targets at rows `x`, noise not included."""
        lengths = np.exp(self.theta[:-2])
        a, b = x / lengths, self._x / lengths
        squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
        r = ROOT5 * np.sqrt(np.maximum(squared, 0.0))
        signal = np.exp(2 * self.theta[-2])
        cross = signal * (1 + r + r**2 / 3) * np.exp(-r)
        variance = signal - ((cross @ self._inverse) * cross).sum(1)
        deviation = np.sqrt(np.maximum(variance, 1e-12))
        return cross @ self._weights * self._scale + self._mean, deviation * self._scale

    def _kernel(self, differences: Array) -> tuple[Array, Array, Array]:
        """The kernel, its derivative by squared distance, and squared inverse lengths."""
        inverse = np.exp(-2 * self.theta[:-2])
        r = ROOT5 * np.sqrt(np.maximum(differences @ inverse, 0.0))
        decay = np.exp(2 * self.theta[-2] - r)
        return decay * (1 + r + r**2 / 3), -5 / 6 * decay * (1 + r), inverse

    def _gradient(self, differences: Array, target: Array) -> Array:
        """Gradient of the negative log posterior, by theta."""
        kernel, by_distance, inverse = self._kernel(differences)
        noise = np.exp(2 * self.theta[-1])
        total = np.linalg.inv(kernel + (noise + 1e-8) * np.eye(len(target)))
        weights = total @ target
        outer = total - np.outer(weights, weights)
        gradient = np.empty_like(self.theta)
        gradient[:-2] = np.einsum("ij,ijk->k", outer * by_distance, differences) * -inverse
        gradient[-2] = (outer * kernel).sum()
        gradient[-1] = noise * np.trace(outer)
        gradient[:-2] += (self.theta[:-2] - LENGTH) / LENGTH_WIDTH**2
        gradient[-2] += (self.theta[-2] - SIGNAL) / SIGNAL_WIDTH**2
        gradient[-1] += (self.theta[-1] - NOISE) / NOISE_WIDTH**2
        return gradient
