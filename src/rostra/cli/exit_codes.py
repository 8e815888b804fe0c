"""The exit codes of all commands, and the code for each error."""

from __future__ import annotations

from enum import IntEnum

from rostra import errors


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    UNREACHABLE = 3
    UNKNOWN = 4
    TOPIC_EXISTS = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "failed; the line `error:` says why, `hint:` what to do",
    ExitCode.USAGE: "usage error: an argument, option, name or configuration file is wrong",
    ExitCode.UNREACHABLE: "no node could be reached, or the connection was lost and not restored",
    ExitCode.UNKNOWN: "no such topic, partition, member or subscription",
    ExitCode.TOPIC_EXISTS: "the topic exists already",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code_of(error: errors.RostraError) -> ExitCode:
    match error:
        case errors.UsageError():
            return ExitCode.USAGE
        case errors.NotSupported():
            return ExitCode.FAILURE
        case errors.LinkError():
            return ExitCode.UNREACHABLE
        case errors.UnknownTopic() | errors.TopicDeleted() | errors.UnknownPartition() | errors.UnknownMember():
            return ExitCode.UNKNOWN
        case errors.UnknownGroup() | errors.NotSubscribed():
            return ExitCode.UNKNOWN
        case errors.InvalidGroupName():
            return ExitCode.USAGE
        case errors.TopicExists():
            return ExitCode.TOPIC_EXISTS
        case _:
            return ExitCode.FAILURE
