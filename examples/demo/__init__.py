"""The demo, `python -m examples.demo`: kills the two jobs in the folder above and checks each row.

`__main__` shows both jobs, each by its own page: `flights_demo` and `fleet_demo`. They start a job as
a separate process (`job_process`), kill it (`kills`, `runs`), and compare all it wrote with
the source (`check`, `fleet_check`, `account`). `job_start` is what both jobs do first.
"""
