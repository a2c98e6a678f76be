# SPDX-License-Identifier: Apache-2.0
"""
Ranks that are killed, stopped, late or of another version, and a /dev/shm that is none, is full, or is not ours: the
others go on as without the shim. `hostile.c` has the steps that a job is made of.
"""

import os
import re
import shlex

from cases_matrix import program
from harness import Skip, agrees, case, check, equal, execute, only_rank, policy, setup

SECONDS = 15  # that a job may take which ends


def steps(line, nranks=2, *, shim=None, env=None, wrap=(), outer=(), status=0, seconds=SECONDS, stdout=None, agree=True,
          **rest):
    """A job of these steps. What the ranks say besides that all is right is what `stdout` has before it."""
    full = {"SIM_DEVICES": str(max(nranks, 2))}
    full.update(env or {})
    command = [*outer, setup.ranks, "-n", str(nranks), "-t", str(seconds * setup.slower), "--", *wrap,
               program("hostile"), *line.split()]
    said = r"(hostile: rank \d: all right\n){%d}" % nranks
    if stdout is None:
        stdout = said if status == 0 else ".*"
    result = execute(command, shim=setup.shim if shim is None else shim, env=full, status=status, stdout=stdout,
                     timeout=seconds * setup.slower + 60, **rest)
    if agree:
        agrees(result)
    return result


def same_end(line, nranks, result, **rest):
    """The job ends as it does without the shim."""
    without = steps(line, nranks, shim="", status=None, agree=False, stdout=".*", **rest)
    equal(result.status, without.status, "status")
    equal(sorted(result.stdout.splitlines()), sorted(without.stdout.splitlines()), "what the job says")


def counts(result, rank):
    found = {}
    for outcome in result.sequence(rank):
        found[outcome] = found.get(outcome, 0) + 1
    return found


# Processes.

# What a rank says whom NCCL's init told of its neighbour's end.
NEIGHBOUR = r"(job: rank \d: [^\n]* gives 6 \([^\n]*\n)*"
JOB = "comm take:A=4 gather:0,A*3"


@case("hostile", "killed_before_init", when="1@kill comm take:A=4 gather:0,A", init=True, wanted=[])
@case("hostile", "killed_at_a_call", when=f"{JOB} 1@kill gather:0,A")
@case("hostile", "killed_while_others_register", when=f"{JOB} take:B=4 1@kill gather:0,B")
@case("hostile", "exits_before_init", when="1@exit:7 comm take:A=4 gather:0,A", init=True, wanted=[])
@case("hostile", "exits_at_a_call", when=f"{JOB} 1@exit:7 gather:0,A")
@case("hostile", "exits_while_others_register", when=f"{JOB} take:B=4 1@exit:7 gather:0,B")
@case("hostile", "exits_at_the_second_init", when=f"{JOB} 1@exit:7 comm gather:1,A", init=True, wanted=["window"] * 3)
def gone(when, wanted=("window", "window", "window", "agree_timeout"), init=False):
    """The others go on to where NCCL leaves them without the shim, and nothing of the rank stays."""
    # Whom NCCL's init leaves waiting until it is killed, leaves an object, which the next run removes an hour later.
    outer = mounting("size=8m", after="rm -f /dev/shm/symmshim-*;") if init else ()
    result = steps(when, 3, status=None, seconds=2, agree=False, outer=outer, stdout=".*", stderr=NEIGHBOUR,
                   text=policy(agree_us=200_000, setup_ms=200))
    same_end(when, 3, result, seconds=1, outer=outer, stderr=NEIGHBOUR)
    for rank in (0, 2):
        equal(result.sequence(rank), list(wanted), f"rank {rank}: outcomes, in order")
        check(all(not symmetric for symmetric, _, _ in result.notes(rank)[3:]), "what follows is plain")


@case("hostile", "killed_in_a_registration", function="ncclCommWindowRegister")
@case("hostile", "killed_in_the_split", function="ncclCommSplit")
def killed_inside(function):
    """Where NCCL tells of it the others go on; the call after it is where they are left without the shim."""
    script = 'export SIM_DELAY=%s:1=60000; { (sleep 0.7; kill -KILL $$) & }' % function
    result = steps(JOB, 2, wrap=only_rank(1, script), status=124, seconds=3, agree=False,
                   text=policy(warn_s=1, setup_ms=300), stderr=r"([^\n]*SYMMSHIM WARN rank 0 of 2, [^\n]*\n)*")
    check(set(result.sequence(0)) <= {"register_failed", "child_failed"}, f"outcomes: {result.sequence(0)}")


@case("hostile", "stopped_at_a_call", when=f"{JOB} 1@stop:700 gather:0,A*3",
      wanted=["window"] * 3 + ["agree_timeout"] + ["window"] * 2)
@case("hostile", "late_at_a_call", when=f"{JOB} 1@sleep:700 gather:0,A*3",
      wanted=["window"] * 3 + ["agree_timeout"] + ["window"] * 2)
@case("hostile", "late_at_a_registration", when=f"{JOB} take:B=4 1@sleep:700 gather:0,B*3",
      wanted=["window"] * 3 + ["agree_timeout"] + ["window"] * 2)
@case("hostile", "stopped_before_init", when=f"1@stop:700 {JOB}", wanted=["window"] * 3)
@case("hostile", "late_at_init", when=f"1@sleep:700 {JOB}", wanted=["window"] * 3)
@case("hostile", "late_at_the_second_init", when=f"{JOB} 1@sleep:700 comm gather:1,A*2", wanted=["window"] * 5)
def slow(when, wanted):
    """One call is plain; then all is as before."""
    result = steps(when, 3, text=policy(agree_us=200_000, setup_ms=200))
    for rank in range(3):
        equal(result.sequence(rank), wanted, f"rank {rank}: outcomes, in order")


@case("hostile", "slow_in_a_registration", function="ncclCommWindowRegister",
      said=r"ncclCommWindowRegister of \d+ bytes")
@case("hostile", "slow_in_the_split", function="ncclCommSplit", said="ncclCommSplit for the child communicator")
def slow_inside(function, said):
    """The others wait in NCCL, and one line says who, on which communicator, for what; then all go symmetric."""
    result = steps(JOB, 2, env={"SIM_DELAY": f"{function}:1@rank1=1500"}, text=policy(warn_s=1, setup_ms=300),
                   stderr=rf"(\S+ \[-?\d+\] SYMMSHIM WARN rank \d of 2, communicator \w{{16}}: {said} has taken 1 s so "
                          r"far\n){1,2}")
    for rank in range(2):
        equal(result.sequence(rank), ["window"] * 3, f"rank {rank}: outcomes, in order")


@case("hostile")
def out_of_memory_in_the_arena():
    """The rank's memory is then the real cudaMalloc's, and the ranks are at one about it."""
    result = steps(JOB, 3, env={"SIM_FAIL": "cuMemMap:*@rank1=2"},
                   stderr=r"([^\n]*no memory came from the arena[^\n]*\n)?")
    for rank in range(3):
        equal(set(result.sequence(rank)), {"not_in_arena" if rank == 1 else "peer_declined"}, f"rank {rank}: outcomes")


def other_shim():
    return program("libsymmshim_other_version.so")


@case("hostile")
def another_version_on_one_rank():
    result = steps(f"{JOB} comm gather:1,A*2", 3, wrap=only_rank(1, f"export LD_PRELOAD={preload(other_shim())}"))
    for rank in range(3):
        equal(result.sequence(rank), ["shim_differs"] * 5, f"rank {rank}: outcomes, in order")
    equal({rank: result.events(rank, "start")[0]["version"] == "0.0.0-other" for rank in range(3)},
          {0: False, 1: True, 2: False}, "versions that differ")


@case("hostile")
def another_version_on_all_ranks():
    """It is a shim like any other."""
    result = steps(JOB, 2, shim=other_shim())
    equal(result.sequence(0), ["window"] * 3, "outcomes, in order")


def preload(shim):
    return shlex.quote(" ".join(filter(None, [setup.runtime, shim])))


def waited(rank, nranks, late):
    """The one line that says so."""
    return rf"\S+ \[{rank}\] SYMMSHIM WARN rank {rank} of {nranks}, communicator \w{{16}}: waited for rank {late} to " \
           r"agree on a call, in vain [^\n]*\n"


@case("hostile", "late_rank_is_named", debug=None)
@case("hostile", "late_rank_is_named_at_once", debug="INFO")
def late_rank_is_named(debug):
    """By each rank that waited, when it stops doing so; a single time-out is worth a line to those who ask for more."""
    late = "1@sleep:250 gather:0,A "
    text = policy(agree_us=100_000, pause_after=2, pause_calls=4)
    result = steps(f"comm take:A=4 gather:0,A {late} gather:0,A*2 {late * 2} gather:0,A*2", 3, text=text, stderr=".*",
                   env={"SYMMSHIM_DEBUG": debug})
    for rank in (0, 2):
        equal(len(re.findall(waited(rank, 3, 1), result.stderr)), 1, f"lines of rank {rank}")
        single = re.findall(rf"INFO rank {rank} of 3, [^\n]*: waited for rank 1 to agree on a call, in vain: the call "
                            r"is plain\n", result.stderr)
        equal(len(single), 1 if debug else 0, f"rank {rank}: lines about a single time-out")
    said = re.findall(r"rank \d of 3, communicator \w+: waited for", result.stderr)
    check(not any(line.startswith("rank 1 ") for line in said), "rank 1 waited for nobody")


# A legal program in which rank 1 comes to every all-gather only after rank 0 has waited for it in vain.

@case("hostile")
def always_late():
    """
    After a few time-outs agreement is paused, and each pause is twice as long as the one before, so that a rank waits
    seldom. Speed is not looked at, only how often was waited.
    """
    turn = "0@post:0,A 0@send:1,B 0@see 1@recv:1,B 1@post:0,A 1@see "
    count = 40
    result = steps("comm comm take:A=4 take:B=4 gather:0,A*2 " + turn * count, 2,
                   text=policy(agree_us=30_000, pause_after=3, pause_calls=8), stderr=waited(0, 2, 1))
    for rank in range(2):
        found = counts(result, rank)
        equal(found.pop("window"), 2, f"rank {rank}: windows, before it all")
        equal(sum(found.values()), count, f"rank {rank}: calls")
        check(set(found) == {"agree_timeout", "paused"}, f"rank {rank}: outcomes: {found}")
        check(3 <= found["agree_timeout"] <= 9, f"rank {rank}: time-outs: {found}")


# /dev/shm.

def mounting(options, before="true", after=""):
    """A /dev/shm of the job's own; what is left in it at the end is said."""
    private = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mount = f"mount -t tmpfs -o {options} tmpfs /dev/shm" if options else "true"
    if execute([*private, "sh", "-c", mount], status=None, stderr=".*").status != 0:
        raise Skip("file systems cannot be mounted here")
    return [*private, "sh", "-c", f'{mount} && {before} && "$@"; status=$?; {after} echo left: $(ls -A /dev/shm 2>&1); '
            "exit $status", "sh"]


def all_right(nranks, left=""):
    return rf"(hostile: rank \d: all right\n){{{nranks}}}left:{' ' if left else ''}{left}\n"


NO_BOARD = r"\S+ \[\d+\] SYMMSHIM WARN communicator \w{16}: no shared memory to agree through: %s \(/dev/shm must be " \
           r"writable and have room\)\n"


@case("hostile", "shm_full", options="size=16k", why="No space left on device")
@case("hostile", "shm_without_inodes", options="nr_inodes=1", why="No space left on device")
@case("hostile", "shm_read_only", options="ro", why="Read-only file system")
@case("hostile", "shm_absent", options="size=1m", before="umount -l /dev/shm && mount -t tmpfs tmpfs /dev && :",
      why="No such file or directory", left=r"ls: cannot access '/dev/shm'.*")
def shm(options, why, before="true", left=""):
    """For all ranks: plain, with a reason."""
    result = steps(JOB, 2, outer=mounting(options, before), stderr=f"({NO_BOARD % why}){{2}}",
                   stdout=all_right(2, left))
    for rank in range(2):
        equal(result.sequence(rank), ["board_failed"] * 3, f"rank {rank}: outcomes, in order")
        equal(result.calls_of(rank, "ncclCommSplit"), [], "splits")


@case("hostile", "shm_full_on_one_rank", options="size=16k", why="No space left on device")
@case("hostile", "shm_read_only_on_one_rank", options="ro", why="Read-only file system")
def shm_of_one_rank(options, why):
    mounting(options)  # or skip
    private = "-m" if os.geteuid() == 0 else "-rm"
    script = f'exec unshare {private} sh -c "mount -t tmpfs -o {options} tmpfs /dev/shm && exec \\"\\$@\\"" sh "$@"'
    result = steps(JOB, 3, wrap=only_rank(1, script), stderr=NO_BOARD % why)
    for rank in range(3):
        equal(result.sequence(rank), ["board_failed" if rank == 1 else "missing_ranks"] * 3, f"rank {rank}: outcomes")


@case("hostile")
def shm_fills_up():
    """Between one communicator and the next: the one that has its memory keeps it."""
    fill = "0@fill meet comm gather:1,A*2 gather:0,A"
    result = steps(f"{JOB} meet {fill}", 2, outer=mounting("size=256k"), stdout=all_right(2, "full"),
                   stderr=f"({NO_BOARD % 'No space left on device'}){{2}}")
    for rank in range(2):
        equal(result.sequence(rank), ["window"] * 3 + ["board_failed"] * 2 + ["window"], f"rank {rank}: outcomes")


# What stands at the name of the shared object before the ranks come.

@case("hostile", "planted_link", what="link")
@case("hostile", "planted_link_to_nothing", what="absent_link")
@case("hostile", "planted_too_small", what="small")
@case("hostile", "planted_too_large", what="large")
@case("hostile", "planted_open_to_all", what="open")
@case("hostile", "planted_by_another_user", what="foreign")
@case("hostile", "planted_folder", what="folder", why="Invalid argument")
@case("hostile", "planted_fifo", what="fifo")
def planted(what, why="Operation not permitted"):
    """It is left as it is, and so is what a link leads to; the communicator after it has nothing to do with it."""
    if what == "foreign" and os.geteuid() != 0:
        raise Skip("not root")
    look = 'stat -c "%f %s %u %F" /dev/shm/symmshim-*; '
    result = steps(f"plant:{what} {JOB} comm gather:1,A", 2, outer=mounting("size=8m", after=look),
                   stderr=f"({NO_BOARD % why}){{2}}",
                   stdout=r"(hostile: rank \d: all right\n){2}[^\n]*\nleft: \S+\n")
    seen = result.stdout.splitlines()[-2].split(" ", 3)
    sizes = {"small": "100", "large": str(1 << 20), "open": "0", "foreign": "0", "fifo": "0"}
    equal(seen[1] if what in sizes else "", sizes.get(what, ""), "size of what was planted")
    equal(seen[2], "12345" if what == "foreign" else str(os.geteuid()), "owner of what was planted")
    check(("link" in seen[3]) == ("link" in what), f"kind of what was planted: {seen}")
    for rank in range(2):
        equal(result.sequence(rank), ["board_failed"] * 3 + ["window"], f"rank {rank}: outcomes, in order")


def board_size():
    """Of the shared object of two ranks, while one of them waits for the other."""
    look = "(until stat -c board:%s /dev/shm/symmshim-* 2>/dev/null; do sleep 0.05; done) &"
    result = steps("1@sleep:600 comm", 2, outer=mounting("size=8m", before=f"{{ {look} }}"), stdout=".*", agree=False)
    found = re.search(r"board:([1-9]\d*)", result.stdout)
    check(found, "the size of the board is seen")
    return int(found[1])


@case("hostile")
def planted_of_the_right_size():
    """What somebody of this user left there is no board; nothing but zeros is one as new."""
    size = board_size()
    result = steps(f"plant:stale{size} {JOB} comm gather:1,A", 2, outer=mounting("size=8m"),
                   stderr=f"({NO_BOARD % 'Operation not permitted'}){{2}}", stdout=all_right(2, r"symmshim-\S+"))
    equal(result.sequence(0), ["board_failed"] * 3 + ["window"], "outcomes, in order")
    result = steps(f"plant:zeros{size} {JOB}", 2, outer=mounting("size=8m"), stdout=all_right(2))
    equal(result.sequence(0), ["window"] * 3, "outcomes, in order")
