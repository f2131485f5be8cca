"""A program of a user's, which ends, forks or starts programs beside an open client:

    python client_process.py {end|exit|exec|fork|spawn} BOOTSTRAP TOPIC RUN RECORDS

It sends `RUN:0`, `RUN:1`, ... with a blocking producer and ends without closing it; `exec`, `fork` and `spawn` start
children meanwhile. The last line of its output is `ok`, or what went wrong.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading

from highwater.client import HighwaterError
from highwater.client.blocking import Producer

CHILDREN = 8
CHILD_DEADLINE_S = 60.0
REFUSED = 3  # exit status of a child that was told in a sentence what it may not do


def main() -> None:
    what, bootstrap, topic, run, records = sys.argv[1:]
    producer = Producer(bootstrap, delivery_timeout_ms=150_000, max_block_ms=150_000)
    sending = threading.Thread(target=send, args=(producer, topic, run, int(records)))
    problems: list[str] = []
    if what in ("end", "exit"):
        sending.run()
    else:
        producer.send(topic, b"first of " + run.encode())  # the client is open
        sending.start()
        for number in range(CHILDREN):
            problem = exec_child() if what == "exec" else python_child(what, bootstrap, topic, f"{run}.{number}")
            problems += [problem] if problem else []
        sending.join()
        producer.flush()
    print("; ".join(problems) or "ok", flush=True)
    if what == "exit":
        sys.exit(0)


def send(producer: Producer, topic: str, run: str, records: int) -> None:
    for number in range(records):
        producer.send(topic, f"{run}:{number}".encode())


def exec_child() -> str:
    """With code between fork and exec, as many libraries have it."""
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", "print('well')"],
            preexec_fn=_nothing,
            capture_output=True,
            text=True,
            timeout=CHILD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "a child that only execs hangs"
    return "" if done.stdout == "well\n" else f"a child that only execs ended with {done.returncode}: {done.stderr}"


def _nothing() -> None:
    pass


def python_child(what: str, bootstrap: str, topic: str, run: str) -> str:
    context = multiprocessing.get_context(what)
    child = context.Process(target=use_new_client, args=(bootstrap, topic, run))  # type: ignore[attr-defined]
    child.start()
    child.join(CHILD_DEADLINE_S)
    if child.exitcode is None:
        child.kill()
        child.join()
        return f"a child by {what} with a client of its own hangs"
    allowed = (0, REFUSED) if what == "fork" else (0,)
    return "" if child.exitcode in allowed else f"a child by {what} with a client of its own: {child.exitcode}"


def use_new_client(bootstrap: str, topic: str, run: str) -> None:
    try:
        with Producer(bootstrap) as producer:
            producer.send(topic, f"child {run}".encode())
    except (HighwaterError, RuntimeError) as error:
        print(f"refused: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
