"""Ad serving: a loop, a model fit on Spark, queries and bills in one flow, each with its regime.

What the parts are and why they survive in different ways is told in ``penstock.demos.adserving``
and in docs/adserving.md.  Here a small one runs for some seconds, processes of three parts are
killed on the way, and everything that came out is computed again and compared.

Run it with ``python examples/adserving.py``, or with other numbers of seconds and of kills, as in
``python examples/adserving.py 30 6``; ``penstock demo adserving --kill 5`` shows more.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

from penstock import Flow, localSession
from penstock.cli.adserving import CONF, adserving
from penstock.demos.adserving import AdServing, Scale
from penstock.demos.ysb import Ysb

SCALE = Scale(seconds=14, tweets_per_s=500, queries_per_s=200, fit_every="4 seconds")
HOSTS, KILLS = 6, 3


def flow() -> Flow:
    """The flow alone, from now on; bills go to a file in the present folder."""
    folder = Path(tempfile.mkdtemp(prefix="adserving-"))
    return AdServing(SCALE, Ysb.soon(5), folder, "sqlite:///billing.db").flow


def main(seconds: str = "14", kills: str = str(KILLS)) -> None:
    """Run to the end and check everything."""
    scale = dataclasses.replace(SCALE, seconds=float(seconds))
    spark = localSession("ad serving", hosts=HOSTS + 1, conf=CONF)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result, outcome, ended = adserving(spark, scale, Path(folder), HOSTS, int(kills))
    finally:
        spark.stop()
    print({name: value for name, value in result.items() if name not in ("checked", "each")})
    assert ended, result["each"]
    assert outcome.right, outcome
    assert (result["lost"], result["duplicated"]) == (0, 0)
    assert outcome.fits >= 1
    assert outcome.windows >= scale.seconds
    killed = [kill["part"] for kill in result["each"]]
    assert killed[:1] == ["components"], killed
    for kill in result["each"]:
        parts = {name.partition("[")[0] for name in kill.get("restarted", ())}
        # Whoever makes the tables goes back alone: queries are asked and answered on.
        assert kill["part"] == "serving" or not parts & {"queries", "noted", "serving"}, kill
    print(f"{outcome.queries} answers, {outcome.windows} windows and all bills are right")


if __name__ == "__main__":
    main(*sys.argv[1:])
