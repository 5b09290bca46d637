"""The regression behind `learned`: it interpolates, knows what it does not know, finds which
features matter, and its gradient is that of its objective."""

from __future__ import annotations

import numpy as np
import pytest

from fa_tune.search.strategies import gaussian_process
from fa_tune.search.strategies.gaussian_process import GaussianProcess
from fa_tune.search.strategies.surrogate import expected_improvement

RNG = np.random.default_rng(1)


def test_it_interpolates_and_is_unsure_elsewhere() -> None:
    x = RNG.random((40, 2)) * 0.5
    y = np.sin(5 * x[:, 0]) + x[:, 1] ** 2
    model = GaussianProcess(2)
    model.fit(x, y)
    mean, deviation = model.predict(x)
    assert np.abs(mean - y).max() < 0.05 * np.ptp(y)
    _, far = model.predict(np.array([[1.0, 1.0]]))
    assert far[0] > 5 * deviation.max()


def test_a_feature_that_does_not_matter_gets_a_long_scale() -> None:
    x = RNG.random((60, 2))
    model = GaussianProcess(2)
    model.fit(x, np.sin(8 * x[:, 0]))
    assert model.theta[1] > model.theta[0] + 1


def test_equal_targets_are_no_division_by_zero() -> None:
    model = GaussianProcess(1)
    model.fit(np.array([[0.0], [1.0]]), np.array([2.0, 2.0]))
    mean, deviation = model.predict(np.array([[0.5]]))
    assert mean[0] == pytest.approx(2.0)
    assert np.isfinite(deviation).all()


def test_the_gradient_is_that_of_the_log_posterior() -> None:
    x, y = RNG.random((12, 3)), RNG.standard_normal(12)
    differences = (x[:, None, :] - x[None, :, :]) ** 2
    model = GaussianProcess(3)
    model.theta = np.array([0.1, -0.5, 0.4, 0.2, -1.5])

    def objective(theta: np.ndarray) -> float:
        """Twice the negative log likelihood, and the priors."""
        model.theta = theta
        kernel, _, _ = model._kernel(differences)
        total = kernel + (np.exp(2 * theta[-1]) + 1e-8) * np.eye(12)
        fit = np.linalg.slogdet(total)[1] + y @ np.linalg.solve(total, y)
        means = np.array(
            [gaussian_process.LENGTH] * 3 + [gaussian_process.SIGNAL, gaussian_process.NOISE]
        )
        widths = np.array(
            [gaussian_process.LENGTH_WIDTH] * 3
            + [gaussian_process.SIGNAL_WIDTH, gaussian_process.NOISE_WIDTH]
        )
        return float(0.5 * fit + 0.5 * (((theta - means) / widths) ** 2).sum())

    theta = model.theta.copy()
    expected = [
        (objective(theta + step) - objective(theta - step)) / 2e-6 for step in 1e-6 * np.eye(5)
    ]
    model.theta = theta
    assert model._gradient(differences, y) == pytest.approx(np.array(expected), rel=1e-4, abs=1e-6)


def test_expected_improvement_agrees_with_sampling() -> None:
    draws = RNG.normal(1.2, 0.5, 400_000)
    sampled = np.maximum(1.0 - draws, 0).mean()
    assert expected_improvement(1.0, np.array([1.2]), np.array([0.5]))[0] == pytest.approx(
        sampled, 0.02
    )
