"""What the exit code of a command says."""

from __future__ import annotations

from enum import IntEnum

from rostra import errors


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    WRONG_USE = 2
    UNREACHABLE = 3
    UNKNOWN = 4
    TOPIC_EXISTS = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "it failed; the line `error:` says why, `hint:` what to do",
    ExitCode.WRONG_USE: "wrong use: an argument, option, name or configuration file is not right",
    ExitCode.UNREACHABLE: "no node could be reached, or the connection to it was lost for good",
    ExitCode.UNKNOWN: "there is no such topic, partition, member or subscription",
    ExitCode.TOPIC_EXISTS: "the topic exists already",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code_of(error: errors.RostraError) -> ExitCode:
    match error:
        case errors.UsageError():
            return ExitCode.WRONG_USE
        case errors.NotSupported():
            return ExitCode.FAILURE
        case errors.LinkError():
            return ExitCode.UNREACHABLE
        case errors.UnknownTopic() | errors.TopicDeleted() | errors.UnknownPartition() | errors.UnknownMember():
            return ExitCode.UNKNOWN
        case errors.UnknownGroup() | errors.NotSubscribed():
            return ExitCode.UNKNOWN
        case errors.InvalidGroupName():
            return ExitCode.WRONG_USE
        case errors.TopicExists():
            return ExitCode.TOPIC_EXISTS
        case _:
            return ExitCode.FAILURE
