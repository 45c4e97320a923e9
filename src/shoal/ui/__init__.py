"""The page: every cluster known on this machine, live in a browser, on the functions that the
commands use.

    server.py      starts the page and ends it
    access.py      which requests are answered: token, Host, Origin
    views.py       snapshots and histories as JSON
    live.py        sends what has changed to each open page
    actions.py     runs operations that ask for confirmation
    workloads.py   jobs, sweeps, trainings and logs
    simulation.py  runs the simulator
    static/        HTML, CSS and JavaScript, without a build step and without other sources
"""
