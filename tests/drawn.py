"""Properties: hypothesis draws the cases of a test, the same ones in each run."""

from hypothesis import HealthCheck, Phase, settings


def cases(number: int) -> settings:
    """A decorator, under `given`: so many cases, of any duration, with fixtures of the test shared by all of them. The
    first one that fails is shown as it was drawn: to look for a smaller one would take minutes."""
    return settings(
        max_examples=number,
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
