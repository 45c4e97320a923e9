"""The controller: the process on the head that sizes and repairs the cluster, and survives being
killed.

One loop, in `loop.py`, run again and again. No step waits for a machine:

    observe     observer.py          provider's instance list, GCS reading
       |
    reconcile   reconcile.py         state + observation -> node updates and actions
       |          state.py, lifecycle.py, journal.py: what is known, kept on disk
       |
    plan        planner_input.py     nodes and demand -> scaling.plan() -> launches, drains, cancels
       |
    execute     executor.py          one task per launch, bootstrap, drain or termination
       |          node_manager.py: the provider and bootstrap calls behind the tasks
       |          head_monitor.py restarts the head's Ray, autostop.py stops an idle cluster
       |
    publish     status_publisher.py  state.json (status_file.py), `ray status`, Prometheus

Around the loop:

    agent server   agent_server.py   HTTP: renews node leases, receives interruption.py notices,
                                     lists Ray's nodes
    standby        standby.py        renews leases while `shoal up` has paused the controller
    supervisor     supervisor.py     forks the controller and restarts it; heartbeat.py kills one
                                     whose loop is stalled;
                                     crontab.py starts the supervisor after a reboot
    warm-up        warm_up.py        connects while `shoal up` still bootstraps workers
    config         controller_config.py  what `shoal up` wants, written to config.json
    client         client.py         the laptop's side: deploy, pause, stop, read the status

`controller_factory.py` wires these together, `__main__.py` is their command line, and `paths.py`
names their files on the head.
"""
