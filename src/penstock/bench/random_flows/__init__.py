"""Flows drawn at random, tortured, and compared with a model: ``penstock chaos --random``.

- :mod:`.rows`: what sources make, and how sets of rows are compared;
- :mod:`.pieces`: what a flow is made of: each piece builds stages and has a model of its own;
- :mod:`.results`: pieces that end in a sink, and what the sink must hold;
- :mod:`.draw`: a flow, its settings and its faults from a seed;
- :mod:`.life`: a process that runs such a flow once, and is killed at times;
- :mod:`.run`: one run with all its lives, and many of them.
"""
